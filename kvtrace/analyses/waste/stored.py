"""What was stored, and which of it nobody read before it went.

    written |--------- read ---------| removed       written |------------| removed: never read

An object is one key of one place, rank, object group and tenant; each time that it is brought anew is a stay
of its own. Brought twice it is there once. What a lower tier lands in an upper one was not stored by anybody:
it is a part of a load. A touch is no read: LMCache's L1 says `accessed` of all the keys of a request when it
ends, of those that it wrote too; what is read there is in the calls (reason asked).
"""

from __future__ import annotations

_PLACED = """
CREATE OR REPLACE TEMP TABLE placed AS
WITH telling AS (
    SELECT DISTINCT process, component FROM block
    WHERE event IN ('stored', 'written') AND reason IS DISTINCT FROM 'asked' AND process IS NOT NULL
), recording AS (
    SELECT DISTINCT process FROM block WHERE reason = 'asked' AND process IS NOT NULL
), named AS (
    SELECT *, coalesce(tier, 'unknown') AS named_tier, coalesce(reason = 'asked', false) AS is_asked,
        coalesce(component = 'lmcache.l1', false) AS touches,
        coalesce(process IN (FROM recording), false) AS is_recorded
    FROM block
    WHERE key IS NOT NULL AND time_ns IS NOT NULL AND evidence IS DISTINCT FROM 'predicted'
        AND event IN ('stored', 'written', 'removed', 'expired', 'accessed')
        AND tier IS DISTINCT FROM 'gpu'
)
SELECT
    hash(process, engine, named_tier, component, locality, key_space) AS spot,
    hash(key, rank, object_group, identity_id) AS object,
    process, engine, named_tier AS tier, component, locality, key_space, time_ns, seq, bytes, is_recorded,
    CASE event WHEN 'accessed' THEN 2 WHEN 'stored' THEN 1 WHEN 'written' THEN 1 ELSE 0 END AS kind,
    coalesce(reason = 'landed', false) AS landed
FROM named n
WHERE CASE WHEN event = 'accessed' THEN is_asked OR NOT touches
    WHEN event IN ('stored', 'written') AND is_asked THEN NOT EXISTS (
        SELECT 1 FROM telling t WHERE t.process = n.process AND t.component IS NOT DISTINCT FROM n.component)
    ELSE true END
"""
"""Events that bring an object (1), take it (0) or read it (2); where a server says what it wrote, the call is
no second word. Place and object are numbers: at the millions that a run may have two meet once in a million
runs."""

_SPOTS = """
CREATE OR REPLACE TEMP TABLE spot AS
SELECT spot, any_value(process) AS process, any_value(engine) AS engine, any_value(tier) AS tier,
    any_value(component) AS component, any_value(locality) AS locality, any_value(key_space) AS key_space,
    bool_or(kind = 2) OR bool_and(is_recorded) AS reads_told
FROM placed GROUP BY spot
"""
_CLEARINGS = """
CREATE OR REPLACE TEMP TABLE clearing AS
SELECT s.spot, b.time_ns, row_number() OVER (PARTITION BY s.spot ORDER BY b.time_ns) AS clears
FROM spot s JOIN block b ON b.event = 'cleared' AND b.time_ns IS NOT NULL
    AND b.evidence IS DISTINCT FROM 'predicted'
    AND (b.process IS NULL OR b.process IS NOT DISTINCT FROM s.process)
    AND (b.tier IS NULL OR b.tier = s.tier)
    AND (b.component IS NULL OR b.component IS NOT DISTINCT FROM s.component)
    AND (b.engine IS NULL OR b.engine IS NOT DISTINCT FROM s.engine)
    AND (b.key_space IS NULL OR b.key_space IS NOT DISTINCT FROM s.key_space)
    AND (b.locality IS NULL OR b.locality IS NOT DISTINCT FROM s.locality)
"""

_STAYS = """
CREATE OR REPLACE TEMP TABLE stay AS
WITH cleared AS (
    SELECT spot, max(clears) AS clears FROM clearing GROUP BY spot
), dated AS (
    SELECT p.spot, p.object, p.time_ns, p.seq, p.kind, p.bytes, p.landed, coalesce(x.clears, 0) AS clears
    FROM placed p ASOF LEFT JOIN clearing x ON p.spot = x.spot AND p.time_ns > x.time_ns
), numbered AS (
    SELECT *, row_number() OVER of_it AS place, count(*) FILTER (kind = 0) OVER (
        of_it ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS taken
    FROM dated
    WINDOW of_it AS (PARTITION BY spot, object ORDER BY time_ns, seq NULLS FIRST, kind)
), lived AS (
    SELECT spot, clears, bool_or(kind = 1 AND NOT landed) AS stored,
        coalesce(max(place) FILTER (kind = 2) > min(place) FILTER (kind = 1), false) AS was_read,
        bool_or(kind = 0) AS taken, max(bytes) FILTER (kind = 1) AS bytes
    FROM numbered GROUP BY spot, object, taken, clears
)
SELECT l.spot, l.was_read, l.bytes, l.taken OR l.clears < coalesce(c.clears, 0) AS gone
FROM lived l LEFT JOIN cleared c USING (spot) WHERE l.stored
"""

_STORED = """
CREATE OR REPLACE TEMP TABLE stored AS
SELECT s.tier, s.component, count(*) AS stored_objects,
    CASE WHEN count(t.bytes) = count(*) THEN TRY_CAST(sum(t.bytes) AS BIGINT) END AS stored_bytes,
    bool_and(s.reads_told) AS told,
    CASE WHEN told THEN count(*) FILTER (NOT was_read) END AS never_read_objects,
    CASE WHEN told AND count(t.bytes) FILTER (NOT was_read) = count(*) FILTER (NOT was_read)
        THEN TRY_CAST(coalesce(sum(t.bytes) FILTER (NOT was_read), 0) AS BIGINT) END AS never_read_bytes,
    CASE WHEN told AND count(t.bytes) FILTER (NOT was_read AND gone) = count(*) FILTER (NOT was_read AND gone)
        THEN TRY_CAST(coalesce(sum(t.bytes) FILTER (NOT was_read AND gone), 0) AS BIGINT) END
        AS gone_unread_bytes
FROM stay t JOIN spot s USING (spot) GROUP BY s.tier, s.component
"""

STORED = (_PLACED, _SPOTS, _CLEARINGS, _STAYS, _STORED)
"""Statements that make `stored`: a row a tier and component."""
