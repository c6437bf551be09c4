"""Where each key of a request could have come from, the best place of each, and the four events there.

latest   (request, position, place of a copy): its last stay there before the decision
seen     of them those that were there then; told, computed: what others say or let one derive
place    (request, position, tier, locality): by events of the key, the engine's own hit, an answer, a router
best     one a position: where it existed before where it did not, local before remote, seen before unseen,
         then the order of the tiers
judged   the four events at it: a time and who says so; who says so alone: it was watched and did not happen
"""

from __future__ import annotations

_LATEST = """
CREATE OR REPLACE TEMP TABLE latest AS
WITH place AS (
    SELECT DISTINCT key_space, key, tier, component, engine, locality, object_group FROM stay
), probe AS (
    SELECT k.request_id, k.position, r.decided_ns, r.engine AS own_engine, p.*
    FROM asked k JOIN asking r USING (request_id)
    JOIN place p ON p.key_space = k.key_space AND p.key = k.key
    WHERE r.decided_ns IS NOT NULL
)
SELECT p.*, s.start_ns, s.end_ns, s.published_ns, s.evidence, s.is_plane
FROM probe p ASOF JOIN stay s ON s.key_space = p.key_space AND s.key = p.key AND s.tier = p.tier
    AND s.component IS NOT DISTINCT FROM p.component AND s.engine IS NOT DISTINCT FROM p.engine
    AND s.locality IS NOT DISTINCT FROM p.locality AND s.object_group IS NOT DISTINCT FROM p.object_group
    AND p.decided_ns >= s.start_ns
"""
"""The stay of a key in each place that began last before the decision: earlier ones are over by then."""

_SEEN = """
CREATE OR REPLACE TEMP TABLE seen AS
WITH worker AS (
    SELECT engine FROM asking WHERE engine IS NOT NULL
    UNION SELECT engine FROM block WHERE tier = 'gpu' AND engine IS NOT NULL
)
SELECT request_id, position, tier, CASE WHEN engine IS NULL OR own_engine IS NULL THEN locality
        WHEN locality = 'remote' OR (engine <> own_engine AND engine IN (FROM worker)) THEN 'remote'
        ELSE 'local' END AS locality,
    start_ns AS exists_ns, coalesce(evidence, 'native') AS exists_evidence,
    CASE WHEN published_ns <= decided_ns THEN published_ns WHEN is_plane THEN start_ns END AS visible_ns,
    CASE WHEN published_ns <= decided_ns THEN coalesce(evidence, 'native')
        WHEN is_plane THEN 'derived' END AS visible_evidence, 0 AS basis
FROM latest WHERE end_ns IS NULL OR end_ns > decided_ns
"""
"""What lies with a cache server, which serves no request itself, is as near to one engine as to another."""

_TOLD = """
CREATE OR REPLACE TEMP TABLE told AS
WITH tier AS (
    SELECT unnest(['gpu', 'host', 'peer', 'disk', 'object', 'unknown']) AS tier,
        unnest([0, 1, 2, 3, 4, 5]) AS place
), answer AS (
    SELECT r.request_id, t.tier, t.place, r.found_by_tier[t.tier] AS tokens, answered_ns, answer_evidence
    FROM asking r CROSS JOIN tier t WHERE cardinality(r.found_by_tier) > 0 AND r.found_by_tier[t.tier] > 0
    UNION ALL
    SELECT request_id, 'unknown', 5, found_tokens, answered_ns, answer_evidence FROM asking
    WHERE found_tokens > 0 AND coalesce(cardinality(found_by_tier), 0) = 0
), found AS (
    SELECT *, sum(tokens) OVER (PARTITION BY request_id ORDER BY place) AS stop FROM answer
), route AS (
    SELECT r.request_id, t.tier, t.place, r.seen_by_tier[t.tier] AS tokens, NULL::BIGINT AS blocks, routed_ns,
        route_evidence, is_gpu_derived
    FROM asking r CROSS JOIN tier t WHERE r.seen_by_tier IS NOT NULL AND r.seen_by_tier[t.tier] > 0
        AND (t.tier = 'gpu' OR r.seen_by_tier['gpu'] IS NOT NULL)
    UNION ALL
    SELECT r.request_id, t.tier, t.place, NULL,
        CASE t.tier WHEN 'gpu' THEN gpu_blocks WHEN 'host' THEN host_blocks ELSE disk_blocks END, routed_ns,
        route_evidence, is_gpu_derived
    FROM asking r CROSS JOIN tier t WHERE r.seen_by_tier IS NULL AND r.gpu_blocks IS NOT NULL
        AND t.tier IN ('gpu', 'host', 'disk')
), reach AS (
    SELECT *, sum(tokens) OVER nearer AS stop, sum(blocks) OVER nearer AS stop_block FROM route
    WINDOW nearer AS (PARTITION BY request_id ORDER BY place)
)
SELECT k.request_id, k.position, 'gpu' AS tier, 'local' AS locality, r.decided_ns AS exists_ns,
    r.evidence AS exists_evidence, r.decided_ns AS visible_ns, r.evidence AS visible_evidence, 1 AS basis
FROM asked k JOIN asking r USING (request_id) WHERE k.stop <= r.gpu_hit_tokens
UNION ALL
SELECT k.request_id, k.position, f.tier, CASE WHEN f.tier = 'peer' THEN 'remote' ELSE 'local' END,
    f.answered_ns, f.answer_evidence, f.answered_ns, f.answer_evidence, 2
FROM asked k JOIN found f USING (request_id) WHERE k.stop > f.stop - f.tokens AND k.stop <= f.stop
UNION ALL
SELECT k.request_id, k.position, p.tier, 'local', NULL, NULL, p.routed_ns,
    CASE WHEN p.tier = 'gpu' AND p.is_gpu_derived THEN 'derived' ELSE p.route_evidence END, 3
FROM asked k JOIN reach p USING (request_id)
WHERE CASE WHEN p.blocks IS NULL THEN k.stop > p.stop - p.tokens AND k.stop <= p.stop
    ELSE k.position >= p.stop_block - p.blocks AND k.position < p.stop_block END
"""
"""Tokens by tier are prefixes of each other: the nearest tier has the first of them. Where a router's log
leaves open how many the GPU had, nobody knows where those of the next tier begin: they are placed nowhere."""

_COMPUTED = """
CREATE OR REPLACE TEMP TABLE computed AS
WITH made AS (
    SELECT k.key_space, k.key, a.engine, min(r.end_ns) AS made_ns
    FROM request_key k JOIN request r USING (request_id) JOIN asking a USING (request_id)
    WHERE r.end_ns IS NOT NULL AND coalesce(r.status, 'ok') = 'ok' AND a.engine IS NOT NULL
    GROUP BY ALL
), watched AS (
    SELECT DISTINCT key_space, engine FROM block WHERE tier NOT IN ('gpu', 'unknown')
), whole AS (
    SELECT request_id, max(tokens) AS tokens FROM asked GROUP BY request_id
)
SELECT k.request_id, k.position, 'unknown' AS tier, 'remote' AS locality, min(m.made_ns) AS exists_ns,
    'derived' AS exists_evidence, NULL::BIGINT AS visible_ns, NULL::VARCHAR AS visible_evidence, 4 AS basis
FROM asked k JOIN asking r USING (request_id) JOIN whole w USING (request_id)
JOIN made m ON m.key_space = k.key_space AND m.key = k.key
WHERE k.tokens = w.tokens AND m.engine <> r.engine AND m.made_ns <= r.decided_ns AND r.is_routed
    AND NOT EXISTS (SELECT 1 FROM watched e
        WHERE e.key_space = k.key_space AND (e.engine = m.engine OR e.engine IS NULL))
GROUP BY k.request_id, k.position
"""
"""What an earlier request computed on another engine, of whose tiers beyond the GPU no event was recorded: it
may be there or gone. A block that is not full is kept by nobody."""

_BEST = """
CREATE OR REPLACE TEMP TABLE best AS
WITH every AS (
    FROM seen UNION ALL FROM told UNION ALL FROM computed
), place AS (
    SELECT request_id, position, tier, locality,
        arg_min(exists_ns, (basis, exists_ns)) FILTER (exists_ns IS NOT NULL) AS exists_ns,
        arg_min(exists_evidence, (basis, exists_ns)) FILTER (exists_ns IS NOT NULL) AS exists_evidence,
        arg_min(visible_ns, (visible_evidence = 'derived', basis, visible_ns)) FILTER (visible_ns IS NOT NULL)
            AS visible_ns,
        arg_min(visible_evidence, (visible_evidence = 'derived', basis, visible_ns))
            FILTER (visible_ns IS NOT NULL) AS visible_evidence,
        bool_or(basis BETWEEN 1 AND 3) AS is_told, min(basis) AS basis
    FROM every GROUP BY request_id, position, tier, locality
), ranked AS (
    SELECT p.*, row_number() OVER (PARTITION BY p.request_id, p.position ORDER BY
        CASE WHEN p.exists_ns IS NOT NULL AND p.locality = 'local' THEN 0
            WHEN p.locality = 'local' AND k.stop <= r.loaded_to THEN 1
            WHEN p.exists_ns IS NOT NULL THEN 2 ELSE 3 END,
        CASE p.locality WHEN 'local' THEN 0 WHEN 'remote' THEN 2 ELSE 1 END, NOT is_told,
        coalesce(list_position(['gpu', 'host', 'peer', 'disk', 'object'], tier), 6)) AS choice
    FROM place p JOIN asked k USING (request_id, position) JOIN asking r USING (request_id)
)
SELECT * FROM ranked WHERE choice = 1
"""

_JUDGED = """
CREATE OR REPLACE TEMP TABLE judged AS
WITH gone AS (
    SELECT DISTINCT request_id, position FROM latest
    WHERE end_ns <= decided_ns AND key_space IN (
        SELECT key_space FROM block WHERE tier NOT IN ('gpu', 'unknown'))
), plane AS (
    SELECT DISTINCT key_space FROM block WHERE event = 'published' OR component LIKE 'dynamo.%'
), fact AS (
    SELECT k.request_id, k.position, k.key_space, k.tokens, k.stop, b.* EXCLUDE (request_id, position),
        r.* EXCLUDE (request_id), g.position IS NOT NULL AS is_gone,
        coalesce(k.stop <= r.loaded_to, false) AS is_loaded, p.key_space IS NOT NULL AS is_plane_seen
    FROM asked k JOIN asking r USING (request_id) LEFT JOIN best b USING (request_id, position)
    LEFT JOIN gone g ON g.request_id = k.request_id AND g.position = k.position
    LEFT JOIN plane p ON p.key_space IS NOT DISTINCT FROM k.key_space
), local_place AS (
    SELECT * REPLACE (
        CASE WHEN is_elsewhere THEN 'unknown' ELSE tier END AS tier,
        CASE WHEN is_loaded THEN 'local' ELSE locality END AS locality,
        CASE WHEN NOT is_elsewhere THEN exists_ns END AS exists_ns,
        CASE WHEN NOT is_elsewhere THEN visible_ns END AS visible_ns,
        CASE WHEN NOT is_elsewhere THEN visible_evidence END AS visible_evidence)
    FROM (
        SELECT *, is_loaded AND (tier IS NULL OR coalesce(locality = 'remote', false)) AS is_elsewhere
        FROM fact
    )
), happened AS (
    SELECT *,
        CASE WHEN is_loaded THEN coalesce(
            CASE tier WHEN 'gpu' THEN step_ns WHEN 'unknown' THEN NULL ELSE usable_ns END,
            first_token_ns, step_ns, decided_ns) END AS loaded_ns,
        CASE WHEN is_routed THEN CASE WHEN locality = 'local' THEN selected_ns END
            WHEN tier = 'gpu' AND stop <= gpu_hit_tokens THEN decided_ns
            WHEN locality = 'local' AND stop > gpu_hit_tokens AND stop <= gpu_hit_tokens + selected_tokens
                THEN coalesce(submit_ns, decided_ns) END AS chosen_ns
    FROM local_place
)
SELECT
    request_id, position, tokens, tier, locality, coalesce(exists_ns, loaded_ns) AS exists_ns, visible_ns,
    chosen_ns AS selected_ns, loaded_ns, predicted_tokens, reported_cached_tokens AS reported_tokens,
    CASE WHEN exists_ns IS NOT NULL THEN exists_evidence WHEN is_loaded THEN 'derived'
        WHEN is_gone THEN 'native' END AS exists_evidence,
    CASE WHEN visible_ns IS NOT NULL THEN visible_evidence
        WHEN is_counted AND (locality IS DISTINCT FROM 'remote' OR none_anywhere
            OR (tier = 'host' AND no_host) OR (tier = 'disk' AND no_disk)) THEN route_evidence
        WHEN found_tokens IS NOT NULL AND NOT is_routed AND locality IS DISTINCT FROM 'remote'
            THEN answer_evidence
        WHEN is_plane_seen AND exists_ns IS NOT NULL THEN 'derived'
        WHEN locality = 'remote' AND counted_none THEN 'derived' END AS visible_evidence,
    CASE WHEN is_routed AND locality IS NOT NULL THEN route_evidence
        WHEN is_routed THEN NULL
        WHEN chosen_ns IS NOT NULL OR selected_tokens IS NOT NULL THEN evidence END AS selected_evidence,
    CASE WHEN loaded_to IS NOT NULL AND stop IS NOT NULL THEN loaded_evidence END AS loaded_evidence
FROM happened
"""

PLACES = (_LATEST, _SEEN, _TOLD, _COMPUTED, _BEST, _JUDGED)
