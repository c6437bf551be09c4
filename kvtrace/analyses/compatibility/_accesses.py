"""Who wrote which key outside the GPU, who asked for it and who read it, as SQL.

    engine a   request r0 asks k | misses | ...... store of r0 [=========]
    server                                           written k |
    engine b                                                       request r1 asks k | found | load [====]
                                                                                                   read k

A server's events name no writer: a key written inside the store of a request that had asked for it is that
request's, hence its engine's; where stores of several engines fit, nobody's. A request's engine is the one
that looked it up, loaded or served it, of several the one whose identity is known.

server      engines that keep state for others
owner       a request's engine, its server, and the tenant (identity of the salt) as which it asked
asked       every key that a request asked for: whether it was found, whether it was read; maybe_found, _read:
            how many tokens it and those before it are nobody said, and some were found
written     every key that came to lie outside the GPU: writer, who told it, and when first
content     the digest of the tokens of a key, where events carried one
wanted      what was asked for in vain: not found, or computed anew by an engine that says its digest
"""

from __future__ import annotations

_SERVER = """
CREATE OR REPLACE TEMP TABLE server AS
SELECT engine FROM process WHERE role = 'server' AND engine IS NOT NULL
UNION SELECT engine FROM block WHERE engine IS NOT NULL
    AND process IN (SELECT process FROM process WHERE role = 'server')
UNION SELECT engine FROM span WHERE observer = 'server' AND engine IS NOT NULL
"""

_OWNER = """
CREATE OR REPLACE TEMP TABLE owner AS
WITH own AS (
    SELECT DISTINCT identity_id FROM identity
), salted AS (
    SELECT DISTINCT identity_id FROM identity WHERE field = 'cache_salt'
), seen AS (
    SELECT request_id, identity_id, CASE WHEN engine NOT IN (FROM server) THEN engine END AS engine,
        CASE WHEN engine IN (FROM server) THEN engine END AS answered_by,
        (engine IN (FROM own))::INT * 8 + (op IN ('lookup', 'load', 'store'))::INT * 4
            + (observer = 'scheduler')::INT AS rank
    FROM span
    WHERE request_id IS NOT NULL AND observer IS DISTINCT FROM 'router'
        AND evidence IS DISTINCT FROM 'predicted'
)
SELECT request_id, arg_max(engine, (coalesce(rank, 0), engine)) AS engine, min(answered_by) AS answered_by,
    min(identity_id) FILTER (identity_id IN (FROM salted)) AS tenant
FROM seen GROUP BY request_id
"""

_ASKED = """
CREATE OR REPLACE TEMP TABLE asked AS
WITH answer AS (
    SELECT request_id, coalesce(attempt, 1) AS attempt, max(found_tokens) AS found_tokens
    FROM lookup WHERE request_id IS NOT NULL AND evidence IS DISTINCT FROM 'predicted' GROUP BY ALL
), load AS (
    SELECT request_id, max(tokens) AS moved, min(start_ns) AS load_ns FROM span
    WHERE op = 'load' AND request_id IS NOT NULL AND tier_from IS DISTINCT FROM 'gpu'
        AND coalesce(outcome, 'ok') IN ('ok', 'partial') AND evidence IS DISTINCT FROM 'predicted'
    GROUP BY request_id
), told AS (
    SELECT request_id, coalesce(attempt, 1) AS attempt, key_space, position, key, max(tokens) AS tokens,
        min(time_ns) AS time_ns
    FROM request_key WHERE key IS NOT NULL GROUP BY ALL
), placed AS (
    SELECT *, CASE WHEN count(tokens) OVER before = count(*) OVER before
        THEN sum(tokens::HUGEINT) OVER before END AS until
    FROM told
    WINDOW before AS (
        PARTITION BY request_id, attempt, key_space ORDER BY position, key ROWS UNBOUNDED PRECEDING)
), judged AS (
    SELECT p.*, a.found_tokens, coalesce(p.until IS NULL AND a.found_tokens > 0, false) AS maybe_found,
        CASE WHEN a.found_tokens = 0 THEN false ELSE p.until <= a.found_tokens END AS found
    FROM placed p LEFT JOIN answer a USING (request_id, attempt)
)
SELECT p.request_id, p.key_space, p.key, p.tokens, p.time_ns, o.engine, o.tenant, o.answered_by, p.found,
    p.maybe_found, p.maybe_found AND l.load_ns IS NOT NULL AS maybe_read,
    coalesce(p.found AND l.load_ns IS NOT NULL
        AND p.until > p.found_tokens - coalesce(l.moved, p.found_tokens), false) AS read,
    coalesce(l.load_ns, p.time_ns) AS read_ns
FROM judged p LEFT JOIN owner o USING (request_id) LEFT JOIN load l USING (request_id)
"""
"""A key that several tell is one. Another maker's keys name the same tokens again: a space counts alone."""

_WRITTEN = """
CREATE OR REPLACE TEMP TABLE written AS
WITH salted AS (
    SELECT DISTINCT identity_id FROM identity WHERE field = 'cache_salt'
), event AS (
    SELECT key_space, key, component, tier, engine AS teller, time_ns, tokens,
        CASE WHEN identity_id IN (FROM salted) THEN identity_id END AS tenant,
        CASE WHEN request_id IS NULL AND engine NOT IN (FROM server) THEN engine END AS own, request_id
    FROM block
    WHERE event IN ('stored', 'written') AND key IS NOT NULL AND time_ns IS NOT NULL
        AND tier IS DISTINCT FROM 'gpu' AND evidence IS DISTINCT FROM 'predicted'
), storing AS (
    SELECT DISTINCT s.request_id, o.engine, coalesce(s.submit_ns, s.start_ns) AS from_ns,
        coalesce(greatest(s.end_ns, s.usable_ns), 9223372036854775807) AS to_ns
    FROM span s JOIN owner o USING (request_id)
    WHERE s.op = 'store' AND coalesce(s.submit_ns, s.start_ns) IS NOT NULL AND o.engine IS NOT NULL
), wanting AS (
    SELECT DISTINCT request_id, key_space, key FROM asked
), fitting AS (
    SELECT e.key_space, e.key, e.time_ns,
        CASE WHEN count(DISTINCT s.engine) = 1 THEN any_value(s.engine) END AS engine
    FROM event e JOIN wanting a USING (key_space, key) JOIN storing s ON s.request_id = a.request_id
        AND e.time_ns BETWEEN s.from_ns AND s.to_ns
    WHERE e.own IS NULL GROUP BY ALL
)
SELECT e.key_space, e.key, e.tenant, e.component, e.tier, e.teller,
    coalesce(e.own, o.engine, f.engine) AS writer, e.time_ns, e.tokens
FROM event e LEFT JOIN owner o ON o.request_id = e.request_id
LEFT JOIN fitting f ON f.key_space IS NOT DISTINCT FROM e.key_space AND f.key = e.key
    AND f.time_ns = e.time_ns
"""

_CONTENT = """
CREATE OR REPLACE TEMP TABLE content AS
SELECT DISTINCT split_part(key_space, ':', 1) AS producer, key_space, key, token_digest FROM block
WHERE token_digest IS NOT NULL AND key IS NOT NULL AND event IN ('stored', 'written')
    AND evidence IS DISTINCT FROM 'predicted'
"""

_WANTED = """
CREATE OR REPLACE TEMP TABLE wanted AS
SELECT request_id, key_space, key, tokens, time_ns, engine, tenant, answered_by FROM asked
WHERE NOT coalesce(found, true)
UNION ALL
SELECT request_id, key_space, key, tokens, time_ns, engine, NULL, engine FROM block
WHERE event = 'stored' AND tier = 'gpu' AND token_digest IS NOT NULL AND key IS NOT NULL
    AND time_ns IS NOT NULL AND evidence IS DISTINCT FROM 'predicted'
"""

ACCESSES = (_SERVER, _OWNER, _ASKED, _WRITTEN, _CONTENT, _WANTED)
