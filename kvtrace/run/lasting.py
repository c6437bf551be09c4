"""Whether a run is still being recorded, or was cut off: what a person must know before reading numbers.

kvtrace run    ├─ the engine starts ─┼─ it writes spools ──────┤ run.json has its end
               goes on               goes on                     nothing is said
                                          killed ──┴─ processes write: goes on; none does: cut off
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvtrace.sources.spool.drain import spool_files
from kvtrace.sources.spool.finishing import has_closed
from kvtrace.sources.spool.liveness import ended

if TYPE_CHECKING:
    from kvtrace.run.opening import Run

STARTED_BY = "kind", "run"
"""What run.json says of a run that `kvtrace run` started."""


class Lasting(NamedTuple):
    """A recording whose end nobody has written down."""

    goes_on: bool
    """Somebody records it at this moment; else whoever started it was killed, and all others have ended."""
    writers: int
    """Processes that write now."""


def lasting(run: Run) -> Lasting | None:
    """Whether a recording goes on or was cut off; None when it is over, or was made of files."""
    name, kind = STARTED_BY
    if run.meta.get(name) != kind:
        return None
    writers = sum(not has_closed(spool) for spool in spool_files(run.origin))
    if writers:
        return Lasting(goes_on=True, writers=writers)
    if run.meta.get("ended_ns") is not None:
        return None
    over = ended(run.meta.get("recorder"))
    return None if over is None else Lasting(goes_on=not over, writers=0)
