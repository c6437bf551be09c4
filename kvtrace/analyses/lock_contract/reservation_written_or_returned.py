"""Every reservation is written, or given back, within its time to live (I9).

    reserved |------| written                 kept
    reserved |------| removed                 given back
    reserved |-- time to live --| ...         neither: room is lost, and the key reads as if it were there

LMCache has no way to give up a reservation: a store that raised, or whose client died, leaves one behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import duration, many
from kvtrace.analyses.lock_contract._findings import (
    Asked,
    Finding,
    judged,
    missing_events,
    untold,
    weakest,
)  # fmt: skip

if TYPE_CHECKING:
    from kvtrace.run import Run

_RESERVED = """
WITH next AS (
    SELECT *, min(time_ns) FILTER (event IN ('written', 'removed', 'expired')) OVER (
        PARTITION BY object, life ORDER BY place ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS end_ns
    FROM object_step
), judged AS (
    SELECT n.*, c.last_ns, CASE
        WHEN end_ns::HUGEINT - n.time_ns > n.ttl_ns THEN 'over'
        WHEN end_ns IS NOT NULL THEN 'ended'
        WHEN c.last_ns::HUGEINT - n.time_ns > n.ttl_ns THEN 'left'
        ELSE 'open' END AS kind
    FROM next n LEFT JOIN cache_end c ON c.process IS NOT DISTINCT FROM n.process WHERE event = 'reserved'
)
"""
_COUNTS = "SELECT kind, count(*), list(DISTINCT evidence) FROM judged GROUP BY kind ORDER BY kind"
_VIOLATED = """
SELECT kind, key, time_ns + ttl_ns, (coalesce(end_ns, last_ns) - time_ns)::DOUBLE, ttl_ns::DOUBLE, evidence
FROM judged WHERE kind IN ('over', 'left') ORDER BY 3, key
"""


def reservation_written_or_returned(run: Run, asked: Asked) -> list[Finding]:
    """Rests on the absence of an end, so that with losses nothing is judged."""
    if (why := untold(asked)) is not None:
        return [why]
    counts = asked.connection.sql(_RESERVED + _COUNTS).fetchall()
    if not counts:
        return [Finding("unobserved", "nothing was reserved")]
    number = {kind: count for kind, count, _ in counts}
    lost = missing_events(run, asked)
    rows = asked.connection.sql(_RESERVED + _VIOLATED).fetchall()
    still = number.get("open", 0)
    told = f"{many(number.get('ended', 0), 'reservation')} written or given back"
    reasons = (lost.said, f"{still:,} may be written later" if still else None)
    evidence = weakest(word for *_, words in counts for word in words)
    return judged(lost.shows(_violation(*row) for row in rows), reasons, Finding("pass", told, evidence))


def _violation(
    kind: str, key: str, time_ns: int, took_ns: float, ttl_ns: float, evidence: str | None
) -> Finding:
    what = "neither written nor given back" if kind == "left" else "written or given back only"
    detail = f"reserved, {what} {duration(took_ns)} later; its time to live is {duration(ttl_ns)}"
    return Finding("violated", detail, evidence, "error", None, key, time_ns)
