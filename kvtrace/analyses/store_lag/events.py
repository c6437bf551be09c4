"""What events of keys say of stores: which request brought a key beyond the GPU, and when a router saw it.

request a asks K     b asks K
----|---------------------|---------->
        K stored (a's)         K stored (b's)
"""

from __future__ import annotations

_EVENT = """
CREATE OR REPLACE TEMP TABLE key_event AS
WITH serving AS (SELECT DISTINCT engine FROM request WHERE engine IS NOT NULL), telling AS (
    SELECT DISTINCT process FROM block
    WHERE event = 'written' AND component = 'lmcache.l1' AND reason IS DISTINCT FROM 'asked'
        AND process IS NOT NULL
)
SELECT time_ns, key_space, key, request_id, tokens,
    event = 'published' OR coalesce(component LIKE 'dynamo.%', false) AS is_published,
    event IN ('stored', 'written') AS is_stored, CASE WHEN engine IN (FROM serving) THEN engine END AS engine
FROM block
WHERE event IN ('stored', 'written', 'published') AND evidence IS DISTINCT FROM 'predicted'
    AND time_ns IS NOT NULL AND key IS NOT NULL AND tier NOT IN ('gpu', 'unknown')
    AND reason IS DISTINCT FROM 'landed'
    AND NOT (coalesce(process IN (FROM telling), false)
        AND (coalesce(reason = 'asked', false) OR coalesce(component LIKE 'lmcache.l2%', false)))
"""
"""What landed in LMCache's L1 came from its L2, and what its L2 stores was in its L1: neither left a GPU.
Where a server says what it wrote, the call is no second word. Dynamo's event plane is what its routers read:
stored there is published (component dynamo.<tier>)."""

_ASKED = """
CREATE OR REPLACE TEMP TABLE asked_key AS
SELECT k.key_space, k.key, r.request_id, r.start_ns, r.engine, max(k.tokens) AS tokens
FROM request_key k JOIN request r USING (request_id)
WHERE coalesce(k.attempt, 1) = 1 AND r.start_ns IS NOT NULL AND r.evidence IS DISTINCT FROM 'predicted'
GROUP BY ALL
"""

_BROUGHT = """
CREATE OR REPLACE TEMP TABLE brought AS
SELECT e.time_ns, e.is_published, e.is_stored, e.key_space, e.key, coalesce(e.tokens, a.tokens) AS tokens,
    a.request_id, false AS is_named
FROM (FROM key_event WHERE request_id IS NULL AND engine IS NOT NULL) e ASOF JOIN asked_key a
    ON e.key_space = a.key_space AND e.key = a.key AND e.engine = a.engine AND e.time_ns >= a.start_ns
UNION ALL
SELECT e.time_ns, e.is_published, e.is_stored, e.key_space, e.key, coalesce(e.tokens, a.tokens),
    a.request_id, false
FROM (FROM key_event WHERE request_id IS NULL AND engine IS NULL) e ASOF JOIN asked_key a
    ON e.key_space = a.key_space AND e.key = a.key AND e.time_ns >= a.start_ns
UNION ALL
SELECT time_ns, is_published, is_stored, key_space, key, tokens, request_id, true FROM key_event
WHERE request_id IS NOT NULL
"""

_SUMS = """
CREATE OR REPLACE TEMP TABLE from_events AS
WITH shared AS (
    SELECT key_space, key FROM asked_key GROUP BY ALL HAVING count(DISTINCT request_id) > 1
), each AS (
    SELECT request_id, key_space, key, max(tokens) AS tokens, min(time_ns) FILTER (is_stored) AS stored_ns,
        bool_or(is_named AND is_stored) AS is_named
    FROM brought GROUP BY request_id, key_space, key
), owned AS (
    SELECT e.*, e.is_named OR s.key IS NULL AS is_own
    FROM each e LEFT JOIN shared s ON s.key_space = e.key_space AND s.key = e.key
), counted AS (
    SELECT request_id, CASE WHEN count(tokens) = count(*) THEN sum(tokens) END AS tokens,
        max(stored_ns) AS brought_ns, max(stored_ns) FILTER (is_own) AS own_brought_ns,
        CASE WHEN count(tokens) FILTER (is_own) = count(*) FILTER (is_own)
            THEN sum(tokens) FILTER (is_own) END AS own_tokens
    FROM owned WHERE stored_ns IS NOT NULL GROUP BY request_id
)
SELECT request_id, any_value(c.brought_ns) AS brought_ns,
    max(time_ns) FILTER (is_published) AS published_ns, any_value(c.tokens) AS tokens,
    any_value(c.own_brought_ns) AS own_brought_ns, any_value(c.own_tokens) AS own_tokens
FROM brought LEFT JOIN counted c USING (request_id) GROUP BY request_id
"""
"""Its own are events that name it, or of a key that nobody else asked for: no other's store of its keys."""

_ALREADY = """
CREATE OR REPLACE TEMP TABLE already AS
SELECT k.request_id, count(DISTINCT (k.key_space, k.key)) AS keys_there
FROM asked_key k JOIN request r USING (request_id)
JOIN residency s ON s.key_space = k.key_space AND s.key = k.key
WHERE s.tier NOT IN ('gpu', 'unknown') AND s.ends_seen AND s.start_ns <= r.end_ns
    AND (s.end_ns IS NULL OR s.end_ns > r.end_ns)
    AND (s.engine IS NULL OR s.engine = r.engine OR s.engine NOT IN (
        SELECT engine FROM request WHERE engine IS NOT NULL))
GROUP BY k.request_id
"""

EVENTS = (_EVENT, _ASKED, _BROUGHT, _SUMS, _ALREADY)
"""Statements that make `brought`, `from_events` and `already`: which keys lay there at the finish."""
