"""A retrieve reads only what its lookup locked (I14).

    lookup of r locks k0 k1 |----------| retrieve of r reads k0 k1       its own
                                       | retrieve of r reads k7          not asked for, or not locked

What nothing had locked LMCache refuses, where it notices. What a lock that ran out did not protect any more,
or what was removed in spite of its lock, is `read_within_ttl`'s. Locks have no owner: a lock of somebody else
protects k7 as long as nobody releases it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import count, many
from kvtrace.analyses.lock_contract._findings import Asked, Finding, judged, late, missing_events, untold

if TYPE_CHECKING:
    from kvtrace.run import Run

_READS = """
WITH reading AS (
    SELECT object, process, key_space, key, time_ns FROM object_event
    WHERE event = 'accessed' AND asked AND told
), state AS (
    SELECT object, time_ns, late, lead(reason) OVER (PARTITION BY object ORDER BY place) AS next,
        held_most + CASE event WHEN 'locked' THEN most_n WHEN 'unlocked' THEN -least_n ELSE 0 END AS held_most
    FROM object_step
    QUALIFY place = max(place) OVER (PARTITION BY object, time_ns)
), active AS (
    SELECT process, request_id, coalesce(submit_ns, start_ns) AS start_ns, end_ns FROM span
    WHERE op = 'load' AND name = 'mp.retrieve' AND observer = 'server' AND request_id IS NOT NULL
), asked_key AS (
    SELECT DISTINCT request_id, key_space, key FROM request_key
), owned AS (
    SELECT r.object, r.time_ns, min(a.request_id) AS request_id,
        bool_and(a.request_id IN (SELECT request_id FROM asked_key)) AS told,
        count(k.key) AS owners
    FROM reading r JOIN active a ON a.process IS NOT DISTINCT FROM r.process AND a.start_ns <= r.time_ns
        AND (a.end_ns IS NULL OR a.end_ns >= r.time_ns)
    LEFT JOIN asked_key k ON k.request_id = a.request_id AND k.key_space = r.key_space AND k.key = r.key
    GROUP BY r.object, r.time_ns
), judged AS (
    SELECT r.key, r.time_ns, o.request_id, CASE
        WHEN o.told AND o.owners = 0 THEN 'foreign'
        WHEN s.held_most > 0 THEN CASE WHEN s.next LIKE 'l1_retrieve:%' THEN 'failed' ELSE 'locked' END
        WHEN s.object IS NULL OR s.late THEN 'late' ELSE 'bare' END AS kind
    FROM reading r ASOF LEFT JOIN state s ON s.object = r.object AND s.time_ns <= r.time_ns
    LEFT JOIN owned o ON o.object = r.object AND o.time_ns = r.time_ns
)
"""
_COUNTS = "SELECT kind, count(*) FROM judged GROUP BY kind ORDER BY kind"
_VIOLATED = """
SELECT kind, min(key), time_ns, request_id, count(*) FROM judged WHERE kind IN ('foreign', 'bare')
GROUP BY kind, time_ns, request_id ORDER BY time_ns, 2
"""


def read_only_what_was_locked(run: Run, asked: Asked) -> list[Finding]:
    """A row a read; one that a time to live, or a removal, made vain is told by `read_within_ttl`."""
    if (why := untold(asked)) is not None:
        return [why]
    number = dict(asked.connection.sql(_READS + _COUNTS).fetchall())
    if not number:
        return [Finding("unobserved", "no read of the storage was recorded")]
    lost = missing_events(run, asked)
    rows = asked.connection.sql(_READS + _VIOLATED).fetchall()
    violations = [
        Finding(
            "violated", f"{many(keys, 'key')} read {_WHY[kind]}", "native", "error", request_id, key, time_ns
        )
        for kind, key, time_ns, request_id, keys in rows
    ]
    told = f"{count(number.get('locked', 0))} keys read while locked for their request"
    return judged(
        lost.shows(violations), (lost.said, late(number.get("late", 0))), Finding("pass", told, "native")
    )


_WHY = {"foreign": "that its lookup had not asked for", "bare": "that nothing had locked"}
