"""What a request was served counts as used when it ends: else the least used is not what is evicted (I11).

lookup finds k0 k1      request ends | k0 k1 accessed      touched
lookup finds k0 k1      request ends |        ...          not touched: its session was gone
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import many
from kvtrace.analyses.lock_contract._findings import Asked, Finding, judged, missing_events, untold

if TYPE_CHECKING:
    from kvtrace.run import Run

TOUCHED_WITHIN_NS = 1_000_000_000
"""The touch follows the end at once; records that stop earlier do not tell."""
_SERVED = """
WITH ended AS (
    SELECT process, request_id, min(start_ns) AS end_ns FROM span
    WHERE op IS NULL AND name = 'mp.request.end' AND request_id IS NOT NULL GROUP BY ALL
), found AS (
    SELECT request_id, process, arg_max(found_tokens, start_ns) AS found FROM span
    WHERE op = 'lookup' AND observer = 'server' AND found_tokens IS NOT NULL GROUP BY ALL
), prompt AS (
    SELECT request_id, key_space, key, position,
        sum(max(tokens)) OVER (PARTITION BY request_id ORDER BY position ROWS UNBOUNDED PRECEDING) AS stop
    FROM request_key GROUP BY request_id, key_space, key, position
), touch AS (
    SELECT DISTINCT process, key_space, key, time_ns FROM object_event WHERE event = 'accessed' AND NOT asked
), latest AS (
    SELECT process, key_space, key, max(time_ns) AS touched_ns FROM touch GROUP BY ALL
), judged AS (
    SELECT e.request_id, e.process, e.end_ns, count(*) AS keys, min(p.key) FILTER (
            coalesce(t.touched_ns < e.end_ns, true)) AS key,
        count(*) FILTER (coalesce(t.touched_ns < e.end_ns, true)) AS untouched,
        any_value(c.last_ns)::HUGEINT - e.end_ns < $within AS short
    FROM ended e JOIN found f ON f.request_id = e.request_id AND f.process IS NOT DISTINCT FROM e.process
    JOIN prompt p ON p.request_id = e.request_id AND p.stop <= f.found
    LEFT JOIN latest t ON t.process IS NOT DISTINCT FROM e.process AND t.key = p.key
        AND t.key_space = p.key_space
    LEFT JOIN cache_end c ON c.process IS NOT DISTINCT FROM e.process
    GROUP BY e.request_id, e.process, e.end_ns
)
"""
_COUNTS = """
SELECT count(*), coalesce(sum(keys), 0)::BIGINT, count(*) FILTER (untouched > 0 AND short IS NOT false)
FROM judged
"""
_VIOLATED = """
SELECT request_id, key, end_ns, untouched, keys FROM judged WHERE untouched > 0 AND NOT short
ORDER BY end_ns, request_id
"""


def served_keys_touched(run: Run, asked: Asked) -> list[Finding]:
    """By request, at its first end; it rests on the absence of a touch, so that losses leave it open.

    A touch of a later request hides that one was missing.
    """
    if (why := untold(asked)) is not None:
        return [why]
    connection, params = asked.connection, {"within": TOUCHED_WITHIN_NS}
    ((requests, keys, short),) = connection.sql(_SERVED + _COUNTS, params=params).fetchall()
    if not requests:
        return [Finding("unobserved", "no request that was served ended")]
    lost = missing_events(run, asked)
    rows = connection.sql(_SERVED + _VIOLATED, params=params).fetchall()
    violations = [
        Finding("violated", f"{untouched:,} of {many(of, 'key')} that it was served not touched at its end",
                "native", "error", request_id, key, end_ns)
        for request_id, key, end_ns, untouched, of in rows
    ]  # fmt: skip
    reasons = (lost.said, f"{many(short, 'request')} ended with the records" if short else None)
    told = f"{many(keys, 'key')} of {many(requests, 'request')} touched at the end"
    return judged(lost.shows(violations), reasons, Finding("pass", told, "native"))
