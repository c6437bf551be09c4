"""The cache's own records are complete (I16): without that no other invariant of it can pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import many
from kvtrace.analyses.lock_contract._findings import Asked, Finding, judged, missing_events, untold

if TYPE_CHECKING:
    from kvtrace.run import Run

_LATE = """
SELECT count(DISTINCT object) FILTER (late AND life = 0), count(*), count(DISTINCT object) FROM object_step
WHERE event NOT IN ('accessed', 'failed')
"""


def records_complete(run: Run, asked: Asked) -> list[Finding]:
    """Events that the bus dropped, and keys whose history began before the records did."""
    if (why := untold(asked)) is not None:
        return [why]
    ((early, events, objects),) = asked.connection.sql(_LATE).fetchall()
    began = f"{many(early, 'key')} there before the records began" if early else None
    told = f"{many(events, 'event')} of {many(objects, 'key')}"
    return judged([], (missing_events(run, asked).said, began), Finding("pass", told, "native"))
