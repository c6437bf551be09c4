"""The objects of a cache with locks, event by event, and what was held at each of them, as SQL.

    reserved   written   locked    unlocked   removed     reserved ...
    |----------|---------|=========|----------|           |-------
    life 0               session 0                        life 1

An object is one key of one process, rank, object group and identity. A life ends when it is removed. A lock
has a time to live that each further lock begins anew; once it is over, the next lock counts from 1 again: a
session. LMCache's events say neither how many locks one of them took or gave back, so each is at least 1 and
at most what any call about its key asked for (`reason` = asked, rows with a count); where no call was
recorded, any number.

object_event   every event of an object, calls (asked) included
object_step    what the cache says happened, with the state before it
cache_end      the last record of each process
"""

from __future__ import annotations

_EVENT = """
CREATE OR REPLACE TEMP TABLE object_event AS
WITH locking AS (
    SELECT DISTINCT coalesce(component, '') AS component FROM block
    WHERE event IN ('locked', 'unlocked', 'reserved')
), own AS (
    SELECT *, coalesce(bool_or(reason IS DISTINCT FROM 'asked' AND event IN ('locked', 'reserved'))
        OVER (PARTITION BY process), false) AS told
    FROM block
    WHERE key IS NOT NULL AND time_ns IS NOT NULL AND evidence IS DISTINCT FROM 'predicted'
        AND event IN ('reserved', 'written', 'locked', 'accessed', 'failed', 'unlocked', 'removed', 'expired')
        AND coalesce(component, '') IN (FROM locking)
)
SELECT
    dense_rank() OVER (ORDER BY process, engine, component, key_space, key, rank, object_group, identity_id)
        AS object,
    process, component, key_space, key, time_ns, seq, event, mode, count, ttl_ns, reason, request_id,
    evidence, NOT told OR coalesce(reason = 'asked', false) AS asked, told,
    bool_or(reason = 'asked' AND count IS NOT NULL) OVER (PARTITION BY process) AS counted
FROM own
"""
"""told: what became of the calls was recorded in its process; without it every row is a call. counted: so
were calls with counts."""

_STEP = """
CREATE OR REPLACE TEMP TABLE object_step AS
WITH most AS (
    SELECT object, max(count) AS most FROM object_event WHERE asked GROUP BY object
), placed AS (
    SELECT e.*, row_number() OVER (PARTITION BY object ORDER BY time_ns, seq NULLS FIRST, list_position(
            ['reserved', 'written', 'locked', 'accessed', 'failed', 'unlocked', 'removed', 'expired'], event),
            reason) AS place,
        event = 'failed' AND coalesce(mode = 'reserve', false) AS refused,
        coalesce(count, 1)::HUGEINT AS least_n,
        coalesce(count, CASE WHEN counted THEN coalesce(m.most, 1) ELSE 4294967296 END)::HUGEINT AS most_n,
        max(ttl_ns) FILTER (event = 'locked') OVER (PARTITION BY object)::HUGEINT AS read_ttl_ns
    FROM object_event e LEFT JOIN most m USING (object) WHERE NOT asked
), lived AS (
    SELECT *, count(*) FILTER (event IN ('removed', 'expired')) OVER earlier AS life,
        max(time_ns) FILTER (event = 'locked') OVER earlier AS ever_locked_ns
    FROM placed
    WINDOW earlier AS (PARTITION BY object ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), timed AS (
    SELECT *,
        max(time_ns) FILTER (event = 'locked') OVER earlier AS locked_ns,
        max(time_ns) FILTER (event = 'reserved') OVER earlier AS reserved_ns,
        coalesce(max(place) FILTER (event = 'reserved') OVER earlier, 0) AS reserved_place,
        coalesce(max(place) FILTER (event = 'written') OVER earlier, 0) AS written_place,
        count(*) FILTER (event NOT IN ('accessed', 'failed')) OVER earlier > 0 AS known
    FROM lived
    WINDOW earlier AS (
        PARTITION BY object, life ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), parted AS (
    SELECT *, count(*) FILTER (event = 'locked' AND time_ns::HUGEINT - locked_ns > read_ttl_ns) OVER (
        PARTITION BY object, life ORDER BY place ROWS UNBOUNDED PRECEDING) AS session,
        NOT first_value(event = 'reserved' OR refused) OVER (PARTITION BY object, life
            ORDER BY event = 'accessed' OR event = 'failed' AND NOT refused, place) AS late
    FROM timed
)
SELECT *,
    coalesce(sum(least_n) FILTER (event = 'locked') OVER earlier, 0)
        - coalesce(sum(most_n) FILTER (event = 'unlocked') OVER earlier, 0) AS held_least,
    coalesce(sum(most_n) FILTER (event = 'locked') OVER earlier, 0)
        - coalesce(sum(least_n) FILTER (event = 'unlocked') OVER earlier, 0) AS held_most,
    coalesce(time_ns::HUGEINT - locked_ns + 5000000 > read_ttl_ns, false) AS ran_out
FROM parted
WINDOW earlier AS (
    PARTITION BY object, life, session ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""
"""States are those before the event. held_least: locks that are held for certain, held_most: that may be.
late: the life does not begin with its reservation, or one that was refused. known: something of the life was
seen before. ran_out: an event is stamped after what it tells, by 5 ms at most (a lock of many keys): a lock
that seems to have 5 ms left may have had none."""

_END = """
CREATE OR REPLACE TEMP TABLE cache_end AS
WITH record AS (
    SELECT process, max(time_ns) AS last_ns FROM block GROUP BY process
    UNION ALL SELECT process, max(greatest(start_ns, end_ns, submit_ns)) FROM span GROUP BY process
    UNION ALL SELECT process, last_ns FROM process
)
SELECT process, max(last_ns) AS last_ns FROM record GROUP BY process
"""

OBJECTS = (_EVENT, _STEP, _END)
