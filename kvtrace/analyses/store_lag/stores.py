"""Stores as rows a request, for everything that asks what a request stored and when it was complete.

moving   one row a (request, store that leaves the GPU): when decided, when complete, which tokens
waiting  one row a part of a request that waited in a queue to be stored, and when it left it
offered  one row a request: the tokens of the keys it asked for, and what its first answered inquiry found
"""

from __future__ import annotations

MOVING = """
CREATE OR REPLACE TEMP TABLE moving AS
WITH row AS (
    SELECT op, request_id, members, tokens, tier_from, queued_ns, submit_ns, start_ns, end_ns, usable_ns,
        outcome, reason, attributes
    FROM transfer WHERE op = 'store' AND evidence IS DISTINCT FROM 'predicted'
    UNION ALL
    SELECT op, request_id, members, tokens, tier_from, queued_ns, submit_ns, start_ns, end_ns, usable_ns,
        outcome, reason, attributes
    FROM store  -- the noun: ranks, client and server tell of the same drop
    WHERE op = 'drop' AND (end_ns IS NULL OR end_ns >= start_ns) AND evidence IS DISTINCT FROM 'predicted'
), served AS (
    SELECT * EXCLUDE (members, request_id), unnest(members).request_id AS request_id,
        unnest(members).scheduled_tokens AS own_tokens
    FROM row WHERE len(members) > 0
    UNION ALL BY NAME
    SELECT * EXCLUDE (members), tokens AS own_tokens FROM row WHERE coalesce(len(members), 0) = 0
), hop AS (
    SELECT *, op = 'drop' OR coalesce(tier_from, 'unknown') IN ('gpu', 'unknown') AS leaves_gpu
    FROM served WHERE request_id IS NOT NULL
), first_hop AS (
    SELECT * FROM hop
    QUALIFY leaves_gpu OR NOT bool_or(leaves_gpu AND op = 'store') OVER (PARTITION BY request_id)
)
SELECT request_id, op, own_tokens AS tokens, queued_ns, coalesce(submit_ns, start_ns) AS submit_ns, start_ns,
    least(queued_ns, submit_ns, start_ns) AS decided_ns, reason,
    op = 'store' AND coalesce(outcome, 'ok') NOT IN ('failed', 'timeout', 'cancelled', 'skipped') AS good,
    CASE WHEN end_ns IS NOT NULL THEN greatest(end_ns, usable_ns) END AS complete_ns,
    op = 'drop' AND attributes['log_line'] IS NOT NULL AS only_drops
FROM first_hop
"""
"""A store that goes further down (host to disk) moves what left the GPU before: it counts only alone.
What a simulation stores is no store.

only_drops: a line of a log tells it; a log that tells of drops need not tell of stores.
"""

WAITING = """
CREATE OR REPLACE TEMP TABLE waiting AS
SELECT request_id, start_ns AS queued_ns, end_ns AS left_ns, tokens,
    TRY_CAST(split_part(attributes['range'], '-', 1) AS BIGINT) AS begin,
    TRY_CAST(split_part(attributes['range'], '-', 2) AS BIGINT) AS stop
FROM span WHERE op IS NULL AND name = 'lmcache_lazy_queue' AND request_id IS NOT NULL AND start_ns IS NOT NULL
"""
"""LMCache's lazy offload: what never left the queue was never stored, the queue ends with its engine."""

OFFERED = """
CREATE OR REPLACE TEMP TABLE offered AS
WITH keyed AS (
    SELECT request_id,
        TRY_CAST(CASE WHEN count(tokens) = count(*) THEN sum(tokens) END AS BIGINT) AS keyed_tokens
    -- A lookup's keys may have been told twice: by the server's hash log and by the server itself.
    FROM (SELECT DISTINCT request_id, position, key_space, key, tokens
        FROM request_key WHERE coalesce(attempt, 1) = 1) GROUP BY request_id
), asked AS (
    SELECT request_id, arg_min(found_tokens, start_ns) FILTER (found_tokens IS NOT NULL) AS found_tokens,
        bool_or(coalesce(reason = 'below_chunk', false)) AS below_chunk
    FROM lookup WHERE request_id IS NOT NULL AND evidence IS DISTINCT FROM 'predicted' GROUP BY request_id
)
SELECT request_id, keyed_tokens, found_tokens, coalesce(below_chunk, false) AS below_chunk
FROM keyed FULL JOIN asked USING (request_id)
"""
