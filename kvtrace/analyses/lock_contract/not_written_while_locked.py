"""Nothing is written while a reader holds it (I12).

locked |------ written                the reader may see half of the old and half of the new
locked |------ write refused          LMCache refuses to call it written; the bytes are there all the same
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import duration, many
from kvtrace.analyses.lock_contract._findings import (
    Asked,
    Finding,
    judged,
    late,
    missing_events,
    untold,
    weakest,
)  # fmt: skip

if TYPE_CHECKING:
    from kvtrace.run import Run

_WRITTEN = """
WITH judged AS (
    SELECT *, CASE WHEN held_least > 0 AND NOT ran_out THEN 'held'
        WHEN late AND NOT known THEN 'late'
        WHEN held_most > 0 AND locked_ns IS NOT NULL AND NOT ran_out THEN 'unsure' ELSE 'free' END AS kind
    FROM object_step
    WHERE event = 'written' OR event = 'failed' AND mode = 'write' AND reason = 'unfinished'
)
"""
_COUNTS = "SELECT kind, count(*), list(DISTINCT evidence) FROM judged GROUP BY kind ORDER BY kind"
_VIOLATED = """
SELECT event, key, time_ns, held_least::BIGINT, (time_ns - locked_ns)::DOUBLE, evidence
FROM judged WHERE kind = 'held' ORDER BY time_ns, key
"""


def not_written_while_locked(run: Run, asked: Asked) -> list[Finding]:
    """A lock whose time to live is over protects nobody; with losses its release may be missing."""
    if (why := untold(asked)) is not None:
        return [why]
    counts = asked.connection.sql(_WRITTEN + _COUNTS).fetchall()
    if not counts:
        return [Finding("unobserved", "nothing was written")]
    number = {kind: count for kind, count, _ in counts}
    lost = missing_events(run, asked)
    rows = asked.connection.sql(_WRITTEN + _VIOLATED).fetchall()
    unsure = number.get("unsure", 0)
    reasons = (
        lost.said,
        late(number.get("late", 0)),
        f"whether {many(unsure, 'key')} had a reader left was not told" if unsure else None,
    )
    told = f"{many(number.get('free', 0), 'write')} of keys that no reader held"
    evidence = weakest(word for *_, words in counts for word in words)
    return judged(lost.shows(_violation(*row) for row in rows), reasons, Finding("pass", told, evidence))


def _violation(
    event: str, key: str, time_ns: int, locks: int, held_ns: float, evidence: str | None
) -> Finding:
    what = "written" if event == "written" else "a write of it was refused"
    detail = f"{what} {duration(held_ns)} after {many(locks, 'lock')} of it that nobody had released"
    return Finding("violated", detail, evidence, "error", None, key, time_ns)
