-- What moved away from the GPU, and what was meant to: a store that stored nothing is a drop.
CREATE VIEW store AS
SELECT
    run_id, op, request_id, transfer_id, name, start_ns, end_ns, submit_ns, usable_ns, tier_from, tier_to,
    component, state_kind, tokens, bytes, blocks, attempt, queued_ns, identity_id,
    outcome, reason, engine, process, observer, evidence, trace_id, span_id, bucket, clock, attribution, attributes
FROM transfer
WHERE op = 'store'
UNION ALL
SELECT
    run_id, op, request_id, transfer_id, name, start_ns, end_ns, submit_ns, usable_ns, tier_from, tier_to,
    component, state_kind, tokens, bytes, blocks, attempt, queued_ns, identity_id,
    outcome, reason, engine, process, observer, evidence, trace_id, span_id, bucket, clock, attribution, attributes
FROM span
WHERE op = 'drop';

COMMENT ON VIEW store IS 'one row a store; op is drop for one that stored nothing';
COMMENT ON COLUMN store.op IS 'store, or drop when nothing was stored';
COMMENT ON COLUMN store.tokens IS 'tokens stored; for a drop the tokens that were not';
