-- Loads and stores as the observer nearest the copy saw them. The worker's shim, LMCache's client, its
-- server's bus and its own spans all see the same transfer: transfer_id ties them together, and per
-- (request, hop, transfer_id) the first of worker, server, client, scheduler, api, router stays.
-- A row without transfer_id is a transfer of its own. Ranks are still apart here (see transfer).
CREATE VIEW copy AS
WITH moved AS (
    SELECT
        run_id, op, request_id, transfer_id, name, start_ns, end_ns, submit_ns, usable_ns, queued_ns,
        coalesce(tier_from, 'unknown') AS tier_from, coalesce(tier_to, 'unknown') AS tier_to,
        component, state_kind, purpose, tokens, bytes, blocks, attempt, outcome, reason, mode, identity_id, members,
        engine, process, observer, rank, device, stream, clock, evidence, attribution,
        trace_id, span_id, parent_span_id, attributes, bucket
    FROM span
    WHERE op IN ('load', 'store') AND (end_ns IS NULL OR end_ns >= start_ns)
), ranked AS (
    SELECT
        *,
        coalesce(list_position(['worker', 'server', 'client', 'scheduler', 'api', 'router'], observer), 7) AS distance
    FROM moved
    WHERE transfer_id IS NOT NULL
)
SELECT * FROM moved WHERE transfer_id IS NULL
UNION ALL
SELECT * EXCLUDE (distance)
FROM ranked
QUALIFY distance = min(distance) OVER (PARTITION BY op, request_id, tier_from, tier_to, transfer_id);

COMMENT ON VIEW copy IS 'one row a copy of state as its nearest observer saw it, ranks apart';
COMMENT ON COLUMN copy.tier_from IS 'physical medium the state leaves; unknown when nobody said';
COMMENT ON COLUMN copy.tier_to IS 'physical medium the state reaches; unknown when nobody said';
