"""What is known of each request that asked for keys, and of the keys themselves.

routed    the router's first choice: which engine, when, what it saw there in each tier
used      which tokens were there when the request was computed, since when, and who says so
asking    one row a request: its engine, the moment of the decision, its answers
asked     one row a (request, position): the key, and the tokens up to its end
"""

from __future__ import annotations

_ROUTED = """
CREATE OR REPLACE TEMP TABLE routed AS
WITH said AS (
    SELECT request_id, start_ns, coalesce(end_ns, start_ns) AS selected_ns, predicted_tokens, evidence,
        found_by_tier, coalesce(attempt, 1) AS attempt, attributes,
        CASE WHEN attributes['worker_id'] IS NULL THEN engine
            WHEN coalesce(attributes['dp_rank'], '0') IN ('', '0') THEN attributes['worker_id']
            ELSE attributes['worker_id'] || '/' || attributes['dp_rank'] END AS engine,
        TRY_CAST(attributes['device_blocks'] AS BIGINT) AS gpu_blocks,
        TRY_CAST(attributes['host_pinned_blocks'] AS BIGINT) AS host_blocks,
        TRY_CAST(attributes['disk_blocks'] AS BIGINT) AS disk_blocks,
        attributes['device_blocks_basis'] IS NOT NULL AS is_gpu_derived,
        coalesce(attributes['router_mode'], '') = 'kv' AS is_by_keys,
        coalesce(TRY_CAST(attributes['best_available_blocks'] AS DOUBLE) = 0, false) AS none_anywhere,
        coalesce(TRY_CAST(attributes['lower_tier.HostPinned.matched_workers'] AS BIGINT) = 0, false)
            AS no_host,
        coalesce(TRY_CAST(attributes['lower_tier.Disk.matched_workers'] AS BIGINT) = 0, false) AS no_disk
    FROM span
    WHERE op = 'route' AND request_id IS NOT NULL AND evidence IS DISTINCT FROM 'predicted'
)
SELECT *, coalesce(found_by_tier['gpu'], gpu_blocks) IS NOT NULL AS is_counted FROM said
QUALIFY row_number() OVER (PARTITION BY request_id
    ORDER BY attempt, (found_by_tier IS NULL AND gpu_blocks IS NULL)::INT, start_ns, engine) = 1
"""
"""Several observers may say the same choice: the one that counts what it saw is taken."""

_USED = """
CREATE OR REPLACE TEMP TABLE used AS
WITH stepped AS (
    SELECT m.request_id, min(m.start_ns) AS start_ns, arg_min(m.computed_before, m.start_ns) AS before,
        arg_min(m.evidence, m.start_ns) AS evidence, arg_min(m.engine, m.start_ns) AS engine
    FROM (
        SELECT x.request_id, x.computed_before, start_ns, evidence, engine
        FROM (SELECT unnest(members) AS x, start_ns, evidence, engine FROM span WHERE op = 'step')
    ) m
    WHERE m.request_id IS NOT NULL GROUP BY m.request_id
), loaded AS (
    SELECT request_id, min(coalesce(submit_ns, start_ns)) AS submit_ns,
        max(greatest(usable_ns, end_ns)) FILTER (coalesce(outcome, 'ok') IN ('ok', 'partial')) AS usable_ns
    FROM transfer WHERE op = 'load' AND request_id IS NOT NULL GROUP BY request_id
)
SELECT request_id, s.start_ns AS step_ns, s.before, s.evidence AS step_evidence, s.engine, l.submit_ns,
    l.usable_ns
FROM stepped s FULL JOIN loaded l USING (request_id)
"""

_ASKING = """
CREATE OR REPLACE TEMP TABLE asking AS
WITH inquiry AS (
    SELECT request_id, start_ns, coalesce(end_ns, start_ns) AS end_ns, found_tokens, found_by_tier, evidence,
        engine, observer
    FROM lookup WHERE request_id IS NOT NULL
), answered AS (
    SELECT request_id, min(start_ns) AS asked_ns,
        arg_min(engine, start_ns) FILTER (observer = 'scheduler') AS engine,
        arg_min(end_ns, start_ns) FILTER (found_tokens IS NOT NULL) AS answered_ns,
        arg_min(found_tokens, start_ns) FILTER (found_tokens IS NOT NULL) AS found_tokens,
        arg_min(found_by_tier, start_ns) FILTER (found_tokens IS NOT NULL) AS found_by_tier,
        arg_min(evidence, start_ns) FILTER (found_tokens IS NOT NULL) AS evidence
    FROM inquiry GROUP BY request_id
), named AS (
    SELECT DISTINCT request_id FROM request_key WHERE request_id IS NOT NULL
)
SELECT
    n.request_id, coalesce(o.engine, u.engine, a.engine, r.engine) AS engine,
    coalesce(o.start_ns, a.asked_ns, r.start_ns) AS decided_ns, r.gpu_hit_tokens, r.selected_tokens,
    coalesce(r.predicted_tokens, o.predicted_tokens) AS predicted_tokens, r.reported_cached_tokens,
    coalesce(r.reported_cached_tokens, u.before) AS loaded_to,
    CASE WHEN r.reported_cached_tokens IS NOT NULL THEN r.evidence
        ELSE u.step_evidence END AS loaded_evidence,
    r.evidence, r.first_token_ns, u.step_ns, u.submit_ns, u.usable_ns, a.answered_ns, a.found_tokens,
    a.found_by_tier, a.evidence AS answer_evidence, o.selected_ns, o.start_ns AS routed_ns,
    o.evidence AS route_evidence, o.request_id IS NOT NULL AS is_routed,
    coalesce(o.is_counted, false) AS is_counted,
    o.found_by_tier AS seen_by_tier, o.gpu_blocks, o.host_blocks, o.disk_blocks,
    coalesce(o.is_by_keys AND CASE WHEN o.found_by_tier IS NULL
        THEN coalesce(o.gpu_blocks = 0 AND o.host_blocks = 0 AND o.disk_blocks = 0, false)
        ELSE list_sum(map_values(o.found_by_tier)) = 0 END, false) AS counted_none,
    coalesce(o.is_gpu_derived, false) AS is_gpu_derived, coalesce(o.none_anywhere, false) AS none_anywhere,
    coalesce(o.no_host, false) AS no_host, coalesce(o.no_disk, false) AS no_disk
FROM named n LEFT JOIN request r USING (request_id) LEFT JOIN routed o USING (request_id)
LEFT JOIN used u USING (request_id) LEFT JOIN answered a USING (request_id)
"""

_STAYS = """
CREATE OR REPLACE TEMP TABLE stay AS
SELECT key_space, key, tier, component, engine, locality, object_group, start_ns, end_ns, published_ns,
    evidence, coalesce(component LIKE 'dynamo.%', false) AS is_plane
FROM residency WHERE key IN (SELECT key FROM request_key)
QUALIFY row_number() OVER (
    PARTITION BY key_space, key, tier, component, engine, locality, object_group, start_ns
    ORDER BY end_ns DESC NULLS FIRST) = 1
"""

_ASKED = """
CREATE OR REPLACE TEMP TABLE asked AS
WITH first AS (
    SELECT request_id, position, key_space, key, any_value(tokens) AS tokens FROM request_key
    WHERE coalesce(attempt, 1) = 1 AND position IS NOT NULL AND key IS NOT NULL AND request_id IS NOT NULL
    GROUP BY request_id, position, key_space, key
    QUALIFY row_number() OVER (PARTITION BY request_id, position, key_space ORDER BY key) = 1
), known AS (
    SELECT DISTINCT key_space, key, 1 AS one FROM stay
), space AS (
    SELECT request_id, key_space FROM first f LEFT JOIN known k USING (key_space, key)
    GROUP BY request_id, key_space
    QUALIFY row_number() OVER (
        PARTITION BY request_id ORDER BY count(k.one) DESC, count(*) DESC, key_space) = 1
)
SELECT f.*, TRY_CAST(CASE
    WHEN count(tokens) OVER so_far = count(*) OVER so_far AND position = row_number() OVER so_far - 1
    THEN sum(tokens) OVER so_far END AS BIGINT) AS stop
FROM first f JOIN space s ON s.request_id = f.request_id AND s.key_space IS NOT DISTINCT FROM f.key_space
WINDOW so_far AS (PARTITION BY f.request_id ORDER BY position ROWS UNBOUNDED PRECEDING)
"""
"""A request's keys may be named in several spaces: the one of which most is known, as they do not compare."""

REQUESTS = (_ROUTED, _USED, _ASKING, _STAYS, _ASKED)
