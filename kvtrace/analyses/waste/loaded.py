"""What was loaded into the GPU, and which of it was in vain, a request at a time.

    prompt   |= GPU hit =|======== used ========|-- computed again --|
    moved  |-------------------------------------------------------------|    whole chunks
           |-|rounding                          |---- recomputed ----|---| rounding

What a request used of its first admission's loads and lost with a preemption is recomputed too, where its
later steps compute it again, and loaded twice, where later loads bring it again.
"""

from __future__ import annotations

_MOVES = """
CREATE OR REPLACE TEMP TABLE move AS
SELECT op, request_id, CASE WHEN op = 'load' THEN tier_from ELSE tier_to END AS tier, component, bytes,
    start_ns, tier_to IN ('gpu', 'unknown') AS lands,
    CASE WHEN attributes['usable_tokens'] IS NULL THEN tokens
        ELSE least(tokens, TRY_CAST(attributes['usable_tokens'] AS BIGINT)) END AS tokens
FROM transfer
WHERE coalesce(outcome, 'ok') IN ('ok', 'partial') AND (end_ns IS NOT NULL OR start_ns IS NULL)
    AND evidence IS DISTINCT FROM 'predicted'
"""
"""What failed, was skipped or is open brought nothing that anybody counted."""

_HOPS = """
CREATE OR REPLACE TEMP TABLE hop AS
WITH place AS (
    SELECT DISTINCT tier, component FROM move
), named AS (
    SELECT p.tier, p.component, CASE WHEN count(s.component) = 1 THEN any_value(s.component)
        ELSE p.component END AS part
    FROM place p LEFT JOIN stored s ON s.tier = p.tier
        AND (s.component = p.component OR starts_with(s.component, p.component || '.'))
    GROUP BY p.tier, p.component
)
SELECT m.* REPLACE (n.part AS component),
    w.again_ns IS NULL OR m.start_ns IS NULL OR m.start_ns < w.again_ns AS first
FROM move m JOIN named n ON n.tier = m.tier AND n.component IS NOT DISTINCT FROM m.component
    LEFT JOIN wanted w USING (request_id)
WHERE m.tier <> 'gpu'
"""
"""A transfer's component may be the product's, an event's that of its part: where one part only holds the
tier both are one."""

_LOST = """
CREATE OR REPLACE TEMP TABLE lost AS
WITH again AS (
    SELECT request_id, again_ns, gpu_hit AS low, TRY(gpu_hit + loaded) AS high FROM wanted
    WHERE again_ns IS NOT NULL AND loaded > 0 AND later > 0
), membership AS (
    SELECT start_ns, unnest(members) AS m FROM span
    WHERE op = 'step' AND (end_ns IS NULL OR end_ns >= start_ns) AND EXISTS (FROM again)
), computed AS (
    SELECT a.request_id, m.computed_before IS NULL OR m.scheduled_tokens IS NULL AS is_unknown,
        greatest(m.computed_before, low) AS begin,
        least(TRY(m.computed_before + m.scheduled_tokens), high) AS stop
    FROM membership s JOIN again a ON s.m.request_id = a.request_id AND s.start_ns >= a.again_ns
), laid AS (
    SELECT *, max(stop) OVER (PARTITION BY request_id ORDER BY begin, stop
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
    FROM computed WHERE is_unknown OR stop > begin
)
SELECT request_id, CASE WHEN NOT bool_or(is_unknown)
    THEN coalesce(sum(greatest(0, stop - greatest(begin, coalesce(reached, begin)))), 0)::BIGINT END AS tokens
FROM laid GROUP BY request_id
"""
"""Tokens that a request had loaded and that its later steps computed again, each once."""

_HELD = """
CREATE OR REPLACE TEMP TABLE held_twice AS
WITH tenant AS (
    SELECT request_id, max(identity_id) AS tenant FROM span
    WHERE op = 'lookup' AND starts_with(identity_id, 'lmcache:salt:') GROUP BY request_id
), began AS (
    SELECT request_id, min(start_ns) AS start_ns FROM hop WHERE op = 'load' AND lands AND first
    GROUP BY request_id
), asked AS (
    SELECT DISTINCT request_id, key_space, position, key, tokens FROM request_key
    WHERE coalesce(attempt, 1) = 1 AND key IS NOT NULL AND position IS NOT NULL
        AND request_id IN (SELECT request_id FROM began)
), laid AS (
    SELECT *, TRY_CAST(sum(tokens) OVER so_far AS BIGINT) AS stop,
        count(tokens) OVER so_far = count(*) OVER so_far AND position = row_number() OVER so_far - 1 AS whole
    FROM asked
    WINDOW so_far AS (PARTITION BY request_id, key_space ORDER BY position ROWS UNBOUNDED PRECEDING)
), covered AS (
    SELECT l.request_id, l.key_space, l.key, l.tokens, w.engine, t.tenant, b.start_ns,
        coalesce(w.end_ns, 9223372036854775807) AS end_ns
    FROM laid l JOIN wanted w USING (request_id) JOIN began b USING (request_id)
        LEFT JOIN tenant t USING (request_id)
    WHERE l.whole AND w.usable > 0 AND l.stop > w.gpu_hit
        AND l.stop - l.tokens < w.gpu_hit::HUGEINT + w.usable
), judged AS (
    SELECT *, max(end_ns) OVER (PARTITION BY engine, tenant, key_space, key ORDER BY start_ns, request_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) > start_ns AS is_held
    FROM covered
), summed AS (
    SELECT request_id, key_space, count(start_ns) = count(*) AS timed,
        coalesce(sum(tokens) FILTER (is_held), 0) AS tokens
    FROM judged GROUP BY request_id, key_space
)
SELECT request_id,
    CASE WHEN coalesce(bool_and(timed), true) THEN coalesce(max(s.tokens), 0) END::BIGINT AS tokens
FROM (SELECT DISTINCT request_id FROM asked) LEFT JOIN summed s USING (request_id) GROUP BY request_id
"""
"""Tokens of keys that a request of the same engine had loaded before and still held: it was running.
Null where its own loads say no times."""

_JUDGED = """
CREATE OR REPLACE TEMP TABLE judged AS
WITH mine AS (
    SELECT request_id, any_value(tier) AS tier, any_value(component) AS component,
        count(DISTINCT (tier, coalesce(component, ''))) AS sources,
        CASE WHEN count(bytes) FILTER (first) = count(*) FILTER (first)
            THEN TRY_CAST(coalesce(sum(bytes) FILTER (first), 0) AS BIGINT) END AS bytes,
        CASE WHEN count(tokens) = count(*)
            THEN TRY_CAST(coalesce(sum(tokens) FILTER (NOT first), 0) AS BIGINT) END AS again
    FROM hop WHERE op = 'load' AND lands GROUP BY request_id
), parted AS (
    SELECT m.*, w.moved, greatest(0, w.moved - w.usable) AS rounding,
        greatest(0, least(w.moved, w.usable) - w.loaded)::HUGEINT
            + CASE WHEN w.later = 0 OR w.loaded = 0 OR w.again_ns IS NULL THEN 0
                ELSE least(coalesce(l.tokens, 0), w.loaded, w.moved) END AS recomputed,
        CASE WHEN m.again IS NOT NULL THEN least(w.moved, m.again) END AS again_known,
        CASE WHEN least(w.moved, w.usable) = 0 THEN 0
            WHEN h.tokens IS NOT NULL THEN least(w.moved, h.tokens) END AS held,
        l.request_id IS NULL OR l.tokens IS NOT NULL AS told
    FROM mine m JOIN wanted w USING (request_id) LEFT JOIN lost l USING (request_id)
        LEFT JOIN held_twice h USING (request_id)
    WHERE w.moved >= 0 AND w.usable >= 0 AND w.loaded >= 0 AND w.later >= 0
)
SELECT request_id, tier, component, bytes, moved, rounding, recomputed, held::HUGEINT + again_known AS twice,
    bytes / nullif(moved, 0)::DOUBLE AS token_bytes
FROM parted
WHERE told AND sources = 1
"""
"""Whose fate is known. Of a request that several places served nobody says whose bytes were in vain."""

_LOADED = """
CREATE OR REPLACE TEMP TABLE loaded AS
WITH every AS (
    SELECT tier, component, count(*) AS loads, CASE WHEN count(bytes) = count(*)
        THEN TRY_CAST(sum(bytes) AS BIGINT) END AS loaded_bytes
    FROM hop WHERE op = 'load' GROUP BY tier, component
), part AS (
    SELECT tier, component, count(*) AS judged_requests, sum(moved) AS judged_tokens,
        sum(bytes) AS judged_bytes, count(bytes) = count(*) AS sized, count(twice) = count(*) AS keyed,
        sum(recomputed) AS recomputed_tokens, sum(twice) AS twice_tokens, sum(rounding) AS rounding_tokens,
        coalesce(sum(recomputed * token_bytes), 0) AS recomputed_bytes,
        coalesce(sum(twice * token_bytes), 0) AS twice_bytes,
        coalesce(sum(rounding * token_bytes), 0) AS rounding_bytes
    FROM judged GROUP BY tier, component
)
SELECT e.*, coalesce(p.judged_requests, 0) AS judged_requests,
    TRY_CAST(judged_tokens AS BIGINT) AS judged_tokens,
    CASE WHEN sized THEN TRY_CAST(judged_bytes AS BIGINT) END AS judged_bytes,
    TRY_CAST(recomputed_tokens AS BIGINT) AS recomputed_tokens,
    CASE WHEN keyed THEN TRY_CAST(twice_tokens AS BIGINT) END AS twice_tokens,
    TRY_CAST(rounding_tokens AS BIGINT) AS rounding_tokens,
    CASE WHEN sized THEN TRY_CAST(round(recomputed_bytes) AS BIGINT) END AS recomputed_bytes,
    CASE WHEN sized AND keyed THEN TRY_CAST(round(twice_bytes) AS BIGINT) END AS twice_bytes,
    CASE WHEN sized THEN TRY_CAST(round(rounding_bytes) AS BIGINT) END AS rounding_bytes
FROM every e LEFT JOIN part p ON p.tier = e.tier AND p.component IS NOT DISTINCT FROM e.component
"""

LOADED = (_MOVES, _HOPS, _LOST, _HELD, _JUDGED, _LOADED)
"""Statements that make `loaded`, a row a tier and component, from `wanted` and `stored`."""
