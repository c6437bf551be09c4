"""Room for a load from L2 is reserved whole or not at all (I6).

    search in L2  |------- no room for k2 -------| found: what L1 alone had        k1 was given back
    search in L2  |------- no room for k2 ---| load of k1                          violated
    search in L2  |------- no room for k2 -------| found: k1                       violated: nobody locked it

A failed reservation falls back to what was confirmed before: no load is submitted, and what the lookup then
reports as found is locked. LMCache names keys, not the request: the search that asked for them tells it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import count, many
from kvtrace.analyses.lock_contract._findings import Asked, Finding, judged, missing_events, untold

if TYPE_CHECKING:
    from kvtrace.run import Run

_REFUSED = """
WITH refused AS (
    SELECT DISTINCT process, key_space, key, time_ns, reason FROM block
    WHERE event = 'failed' AND starts_with(component, 'lmcache.l2') AND reason IN ('l1_oom', 'l1_contended')
        AND time_ns IS NOT NULL
), search AS (
    SELECT request_id, process, start_ns, end_ns, attributes['prefetch_id'] AS prefetch FROM span
    WHERE op IS NULL AND name = 'l2.prefetch.lookup' AND request_id IS NOT NULL
), placed AS (
    SELECT r.process, r.time_ns, r.key, r.reason, s.request_id, s.prefetch, s.start_ns,
        count(DISTINCT (s.request_id, s.prefetch)) OVER (
            PARTITION BY r.process, r.time_ns, r.key_space, r.key) AS claims
    FROM refused r LEFT JOIN (search s JOIN (SELECT DISTINCT request_id, key_space, key FROM request_key) k
            USING (request_id))
        ON k.key_space = r.key_space AND k.key = r.key AND s.process IS NOT DISTINCT FROM r.process
        AND s.start_ns <= r.time_ns AND (s.end_ns IS NULL OR s.end_ns >= r.time_ns)
), failed AS (
    SELECT process, request_id, prefetch, any_value(start_ns) AS start_ns, min(time_ns) AS time_ns,
        min(key) AS key, count(DISTINCT key) AS keys, min(reason) AS reason
    FROM placed WHERE claims = 1 GROUP BY process, request_id, prefetch
), loaded AS (
    SELECT DISTINCT process, attributes['prefetch_id'] AS prefetch FROM span WHERE name = 'l2.load_task'
), reported AS (
    SELECT f.request_id, f.prefetch, f.process, max(l.end_ns) AS end_ns,
        arg_max(l.start_ns, l.end_ns) AS asked_ns, arg_max(l.found_tokens, l.end_ns) AS found
    FROM failed f JOIN span l ON l.op = 'lookup' AND l.observer = 'server' AND l.request_id = f.request_id
        AND l.process IS NOT DISTINCT FROM f.process AND l.start_ns <= f.time_ns
        AND l.end_ns >= f.time_ns AND l.found_tokens IS NOT NULL
    GROUP BY f.request_id, f.prefetch, f.process
), prompt AS (
    SELECT request_id, key_space, key,
        sum(max(tokens)) OVER (PARTITION BY request_id ORDER BY position ROWS UNBOUNDED PRECEDING) AS stop
    FROM request_key WHERE request_id IN (SELECT request_id FROM failed)
    GROUP BY request_id, key_space, key, position
), bare AS (
    SELECT r.request_id, r.prefetch, r.process, count(*) AS unlocked
    FROM reported r JOIN prompt p ON p.request_id = r.request_id AND p.stop <= r.found
    WHERE NOT EXISTS (SELECT 1 FROM object_event e
        WHERE e.event = 'locked' AND NOT e.asked AND e.key = p.key AND e.key_space = p.key_space
            AND e.process IS NOT DISTINCT FROM r.process AND e.time_ns BETWEEN r.asked_ns AND r.end_ns)
    GROUP BY r.request_id, r.prefetch, r.process
), judged AS (
    SELECT f.*, b.unlocked, CASE WHEN l.prefetch IS NOT NULL THEN 'loaded' WHEN b.unlocked > 0 THEN 'bare' END
        AS broken
    FROM failed f LEFT JOIN loaded l ON l.prefetch = f.prefetch AND l.process IS NOT DISTINCT FROM f.process
    LEFT JOIN bare b ON b.request_id = f.request_id AND b.prefetch IS NOT DISTINCT FROM f.prefetch
        AND b.process IS NOT DISTINCT FROM f.process
)
"""
_COUNTS = """
SELECT (SELECT count(*) FROM search), (SELECT count(*) FROM placed WHERE claims <> 1), count(*) FROM judged
"""
_VIOLATED = """
SELECT broken, request_id, key, time_ns, keys, reason, unlocked FROM judged
WHERE broken IS NOT NULL ORDER BY time_ns, request_id
"""


def reservation_all_or_nothing(run: Run, asked: Asked) -> list[Finding]:
    """By search in L2; that one was loaded in spite of it is seen, whatever is missing."""
    if (why := untold(asked)) is not None:
        return [why]
    ((searches, unclaimed, failed),) = asked.connection.sql(_REFUSED + _COUNTS).fetchall()
    if not searches and not unclaimed:
        return [Finding("unobserved", "no search in L2 was recorded")]
    lost = missing_events(run, asked)
    rows = asked.connection.sql(_REFUSED + _VIOLATED).fetchall()
    seen = [_violation(*row) for row in rows if row[0] == "loaded"]
    shown = lost.shows(_violation(*row) for row in rows if row[0] == "bare")
    reasons = (
        lost.said,
        f"{many(unclaimed, 'key')} without room, of nobody's search or of several's" if unclaimed else None,
    )
    told = f"{many(searches, 'search', 'searches')} in L2, {count(failed)} without room for all, left whole"
    return judged([*seen, *shown], reasons, Finding("pass", told, "native"))


def _violation(
    broken: str, request_id: str, key: str, time_ns: int, keys: int, reason: str, unlocked: int | None
) -> Finding:
    what = f"no room for {many(keys, 'key')} ({reason}), and a load was submitted all the same"
    if broken == "bare":
        what = (
            f"no room for {many(keys, 'key')} ({reason}); {count(unlocked)} reported as found and not locked"
        )
    return Finding("violated", what, "native", "error", request_id, key, time_ns)
