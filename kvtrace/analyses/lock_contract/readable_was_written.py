"""Nothing that can be read was never written (I13).

reserved |--| written   locked            its bytes are there
reserved |-- time to live --|  locked     it reads as there, and holds whatever the memory held before
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

_READABLE = """
WITH judged AS (
    SELECT *, CASE WHEN reserved_place > written_place THEN 'unwritten'
        WHEN written_place = 0 THEN 'late' ELSE 'written' END AS kind
    FROM object_step WHERE event = 'locked'
)
"""
_COUNTS = (
    "SELECT kind, count(DISTINCT object), list(DISTINCT evidence) FROM judged GROUP BY kind ORDER BY kind"
)
_VIOLATED = """
SELECT key, time_ns, (time_ns - reserved_ns)::DOUBLE, evidence
FROM judged WHERE kind = 'unwritten'
QUALIFY row_number() OVER (PARTITION BY object, life ORDER BY place) = 1 ORDER BY time_ns, key
"""


def readable_was_written(run: Run, asked: Asked) -> list[Finding]:
    """A lock of a reader is granted only for what can be read; a row a key, when it was first granted."""
    if (why := untold(asked)) is not None:
        return [why]
    counts = asked.connection.sql(_READABLE + _COUNTS).fetchall()
    if not counts:
        return [Finding("unobserved", "nothing was locked for a reader")]
    number = {kind: count for kind, count, _ in counts}
    lost = missing_events(run, asked)
    rows = asked.connection.sql(_READABLE + _VIOLATED).fetchall()
    told = f"{many(number.get('written', 0), 'key')} locked for readers after being written"
    evidence = weakest(word for *_, words in counts for word in words)
    reasons = (lost.said, late(number.get("late", 0)))
    return judged(lost.shows(_violation(*row) for row in rows), reasons, Finding("pass", told, evidence))


def _violation(key: str, time_ns: int, age_ns: float, evidence: str | None) -> Finding:
    detail = f"locked for a reader {duration(age_ns)} after it was reserved, and never written"
    return Finding("violated", detail, evidence, "error", None, key, time_ns)
