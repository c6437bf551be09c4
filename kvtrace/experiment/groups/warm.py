"""Was a warm group ready: which stores were not over when the measured phase began?

warm-up request |------|            measured phase
          store    |--------|       |
          store      |--------------|---------|  late_ns
                                    ^ measured_from_ns
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvtrace.analyses.store_lag.stores import MOVING, WAITING
from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from kvtrace.run import Run

WARM = ("tiered", "tiered_cut")
"""Groups that begin with a warm tier; so do those whose base is one of them."""

_COUNTS = ("stores", "unfinished", "open", "requests", "loads")
_UNFINISHED = """
WITH decided AS (
    SELECT complete_ns FROM moving WHERE good AND decided_ns < $before
    UNION ALL
    SELECT NULL FROM waiting w WHERE queued_ns < $before AND (left_ns IS NULL OR left_ns > $before)
        AND NOT EXISTS (FROM moving m WHERE m.request_id = w.request_id AND m.queued_ns = w.queued_ns)
)
SELECT count(*), count(*) FILTER (complete_ns IS NULL OR complete_ns > $before),
    max(complete_ns - $before) FILTER (complete_ns > $before)::BIGINT,
    count(*) FILTER (complete_ns IS NULL),
    (SELECT count(*) FROM request WHERE start_ns < $before AND evidence IS DISTINCT FROM 'predicted'),
    (SELECT count(*) FROM transfer WHERE op = 'load' AND start_ns < $before
        AND coalesce(tier_to, 'gpu') = 'gpu'
        AND coalesce(outcome, 'ok') NOT IN ('failed', 'timeout', 'cancelled', 'skipped')
        AND evidence IS DISTINCT FROM 'predicted')
FROM decided
"""
"""What still waits in a queue to be stored is a store that was not over; one that came of it counts once."""


class Warm(NamedTuple):
    """Stores that were decided before a moment, and those that were not over then.

    late_ns: how much later the last of them was; null when none was, or of none it is known. open: of how
    many no end was seen at all. requests: how many began before it; loads: what came to the GPU before it.
    """

    stores: int
    unfinished: int
    late_ns: int | None
    open: int
    requests: int = 0
    loads: int = 0

    def nothing_stored(self) -> bool:
        """Whether there was a warm-up that put nothing into the tier, and found nothing there either."""
        return self.requests > 0 and not self.stores and not self.loads


def warmed(run: Run, before_ns: int) -> Warm:
    """What a run says of its stores before the measured phase."""
    connection = spilling(run)
    try:
        connection.execute(MOVING)
        connection.execute(WAITING)
        (row,) = connection.sql(_UNFINISHED, params={"before": before_ns}).fetchall()
    finally:
        connection.close()
    return Warm(*row)


def said(run: Run, begins_ns: int | None) -> Warm | None:
    """What run.json says of the warm-up (kvtrace experiment writes it), else the run itself; null: nobody.

    begins_ns: when the measured phase of a run that holds its own warm-up began.
    """
    told = run.meta.get("warm")
    if isinstance(told, dict) and all(_is_count(told.get(name)) for name in ("stores", "unfinished")):
        late = told.get("late_ns")
        counts = {name: told[name] if _is_count(told.get(name)) else 0 for name in _COUNTS}
        return Warm(**counts, late_ns=late if _is_count(late) else None)
    return None if begins_ns is None else warmed(run, begins_ns)


def _is_count(said: object) -> bool:
    return isinstance(said, int) and not isinstance(said, bool) and said >= 0
