"""Was a warm group ready: which stores were not over when the measured phase began?

warm-up request |------|            measured phase
          store    |--------|       |
          store      |--------------|---------|  late_ns
                                    ^ measured_from_ns
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvtrace.analyses.store_lag.stores import MOVING
from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from kvtrace.run import Run

WARM = ("tiered", "tiered_cut")
"""Groups that begin with a warm tier; so do those whose base is one of them."""

_UNFINISHED = """
SELECT count(*), count(*) FILTER (complete_ns IS NULL OR complete_ns > $before),
    max(complete_ns - $before) FILTER (complete_ns > $before)::BIGINT,
    count(*) FILTER (complete_ns IS NULL)
FROM moving WHERE good AND decided_ns < $before
"""


class Warm(NamedTuple):
    """Stores that were decided before a moment, and those that were not over then.

    late_ns: how much later the last of them was; null when none was, or of none it is known. open: of how
    many no end was seen at all.
    """

    stores: int
    unfinished: int
    late_ns: int | None
    open: int


def warmed(run: Run, before_ns: int) -> Warm:
    """What a run says of its stores before the measured phase."""
    connection = spilling(run)
    try:
        connection.execute(MOVING)
        (row,) = connection.sql(_UNFINISHED, params={"before": before_ns}).fetchall()
    finally:
        connection.close()
    return Warm(*row)


def said(run: Run, begins_ns: int | None) -> Warm | None:
    """What run.json says of the warm-up (kvtrace experiment writes it), else the run itself; null: nobody.

    begins_ns: when the measured phase of a run that holds its own warm-up began.
    """
    told = run.meta.get("warm")
    if isinstance(told, dict) and all(isinstance(told.get(name), int) for name in ("stores", "unfinished")):
        late, left = told.get("late_ns"), told.get("open")
        return Warm(
            told["stores"], told["unfinished"], late if isinstance(late, int) else None,
            left if isinstance(left, int) else 0,
        )  # fmt: skip
    return None if begins_ns is None else warmed(run, begins_ns)
