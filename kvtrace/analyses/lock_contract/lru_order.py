"""What is evicted was used less lately than what stays (I15); of a single LRU without tenants.

    a  touched |------------------------------------------ stays
    b               touched |------------| evicted               a was older, and free to go: violated
    c          touched |=== locked ======================= stays: not free to go

A touch is a write's end, a landing or an access. A key that came from L2 and goes with its last reader, and a
buffer whose load failed, are not evicted: their lives are left out, as are clears.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import duration, many
from kvtrace.analyses.lock_contract._findings import Asked, Finding, judged, late, missing_events, untold
from kvtrace.analyses.lock_contract.not_removed_while_locked import CLEARED_WITHIN_NS

if TYPE_CHECKING:
    from kvtrace.run import Run

_STAYS = """
WITH touch AS (
    SELECT object, process, life, key, time_ns AS touched_ns, late,
        lead(time_ns) OVER (PARTITION BY object, life ORDER BY place) AS next_ns
    FROM object_step s
    WHERE event IN ('written', 'accessed') AND s.written_place + (event = 'written')::BIGINT > 0
        AND NOT EXISTS (SELECT 1 FROM object_step l
            WHERE l.object = s.object AND l.life = s.life AND l.reason = 'landed')
), gone AS (
    SELECT object, life, time_ns AS gone_ns, held_most, ran_out FROM object_step WHERE event = 'removed'
), stay AS (
    SELECT t.*, coalesce(t.next_ns, g.gone_ns) AS until_ns,
        t.next_ns IS NULL AND g.gone_ns IS NOT NULL AS evicted
    FROM touch t LEFT JOIN gone g USING (object, life)
), cleared AS (
    SELECT process, time_ns FROM block WHERE event = 'cleared'
), evicted AS (
    SELECT * FROM stay s WHERE evicted AND NOT EXISTS (
        SELECT 1 FROM cleared c WHERE c.process IS NOT DISTINCT FROM s.process
            AND s.until_ns - c.time_ns BETWEEN 0 AND $within)
)
"""
# An older stay contains a younger one: the latest end of all that began before it lies beyond its own.
_CANDIDATES = """
, around AS (
    SELECT object, process, life, key, touched_ns, until_ns, evicted, late, max(
            coalesce(until_ns, 9223372036854775807)) OVER (PARTITION BY process ORDER BY touched_ns
            RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS latest_ns
    FROM stay
), candidate AS (
    SELECT a.* FROM around a JOIN evicted e USING (object, life) WHERE a.evicted AND a.latest_ns > a.until_ns
), state AS (
    SELECT object, life, time_ns, CASE WHEN event IN ('removed', 'expired') THEN 1 ELSE held_most
            + CASE event WHEN 'locked' THEN most_n WHEN 'unlocked' THEN -least_n ELSE 0 END END AS held_most,
        event = 'reserved' OR reserved_place > written_place AND event <> 'written' AS writing
    FROM object_step QUALIFY place = max(place) OVER (PARTITION BY object, time_ns)
), pair AS (
    SELECT c.object, c.key, c.touched_ns, c.until_ns AS gone_ns, s.object AS other, s.touched_ns AS other_ns
    FROM candidate c JOIN stay s ON s.process IS NOT DISTINCT FROM c.process AND s.touched_ns < c.touched_ns
        AND (s.until_ns IS NULL OR s.until_ns > c.until_ns) AND NOT s.late AND NOT c.late
), free AS (
    SELECT p.* FROM pair p ASOF JOIN state t ON t.object = p.other AND t.time_ns <= p.gone_ns
    WHERE t.held_most <= 0 AND NOT t.writing
)
SELECT key, gone_ns, max(touched_ns - other_ns)::DOUBLE, count(DISTINCT other) FROM free
GROUP BY object, key, gone_ns ORDER BY gone_ns, key
"""
_COUNTS = "SELECT count(*), count(*) FILTER (late) FROM evicted"
_SALTED = """
SELECT count(*) FROM block WHERE starts_with(identity_id, 'lmcache:salt:') AND event = 'written'
"""


def policies(run: Run) -> set[str]:
    """The eviction policies of the LMCache servers in the run, as their configuration says."""
    engines = run.meta.get("engines")
    told = engines.values() if isinstance(engines, dict) else ()
    return {
        str(one["eviction_policy"]) for one in told if isinstance(one, dict) and one.get("eviction_policy")
    }


def lru_order(run: Run, asked: Asked) -> list[Finding]:
    """A row an evicted key; equal times are no order."""
    if (why := untold(asked)) is not None:
        return [why]
    named = policies(run)
    if not named:
        return [Finding("unobserved", "the eviction policy was not recorded")]
    ((salted,),) = asked.connection.sql(_SALTED).fetchall()
    if named != {"LRU"} or salted:
        other = "an LRU of several tenants" if named == {"LRU"} else "not a single LRU"
        return [Finding("not_applicable", other)]
    params = {"within": CLEARED_WITHIN_NS}
    ((evicted, early),) = asked.connection.sql(_STAYS + _COUNTS, params=params).fetchall()
    if not evicted:
        return [Finding("unobserved", "nothing was evicted")]
    lost = missing_events(run, asked)
    rows = asked.connection.sql(_STAYS + _CANDIDATES, params=params).fetchall()
    violations = [
        Finding(
            "violated", f"evicted though {many(others, 'key')} free to go had been used before it, "
            f"by up to {duration(older)}", "native", "error", None, key, time_ns)
        for key, time_ns, older, others in rows
    ]  # fmt: skip
    told = f"{many(evicted, 'key')} evicted, the least used of those free to go"
    return judged(lost.shows(violations), (lost.said, late(early)), Finding("pass", told, "native"))
