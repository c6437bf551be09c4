-- What moved away from the GPU, and what was meant to: a store that stored nothing is a drop.
-- Of a drop the observer nearest the copy counts, and its ranks are one row, as those of a transfer are.
CREATE VIEW store AS
WITH dropped AS (
    SELECT s.* REPLACE (coalesce(t.transfer_id, s.transfer_id) AS transfer_id),
        coalesce(list_position(['worker', 'server', 'client', 'scheduler', 'api', 'router'], observer), 7) AS distance
    FROM span s LEFT JOIN tie t ON t.span_id = s.span_id AND t.process IS NOT DISTINCT FROM s.process
    WHERE op = 'drop'
), nearest AS (
    SELECT * FROM dropped WHERE transfer_id IS NOT NULL
    QUALIFY distance = min(distance) OVER (PARTITION BY request_id, tier_from, tier_to, transfer_id)
)
SELECT
    run_id, op, request_id, transfer_id, name, start_ns, end_ns, submit_ns, usable_ns, tier_from, tier_to,
    component, state_kind, tokens, bytes, blocks, attempt, queued_ns, identity_id,
    outcome, reason, engine, process, observer, evidence, trace_id, span_id, bucket, clock, attribution, members,
    attributes
FROM transfer
WHERE op = 'store'
UNION ALL
SELECT
    run_id, op, request_id, transfer_id, name, start_ns, end_ns, submit_ns, usable_ns, tier_from, tier_to,
    component, state_kind, tokens, bytes, blocks, attempt, queued_ns, identity_id,
    outcome, reason, engine, process, observer, evidence, trace_id, span_id, bucket, clock, attribution, members,
    attributes
FROM dropped
WHERE transfer_id IS NULL
UNION ALL
SELECT
    any_value(run_id), 'drop', request_id, transfer_id, arg_min(name, began), min(start_ns),
    CASE WHEN count(end_ns) = count(*) THEN max(end_ns) END, min(submit_ns), max(usable_ns), tier_from, tier_to,
    arg_min(component, began), arg_min(state_kind, began), max(tokens), TRY_CAST(sum(bytes) AS BIGINT),
    max(blocks), max(attempt), min(queued_ns), arg_min(identity_id, began),
    CASE WHEN count(DISTINCT outcome) > 1 THEN 'partial' ELSE any_value(outcome) END,
    CASE WHEN count(DISTINCT reason) > 1 THEN 'unknown' ELSE any_value(reason) END,
    arg_min(engine, began), arg_min(process, began), any_value(observer), arg_min(evidence, began),
    arg_min(trace_id, began), arg_min(span_id, began), any_value(bucket), arg_min(clock, began),
    arg_min(attribution, began), arg_min(members, began),
    arg_min(attributes, began)
FROM (SELECT *, coalesce(start_ns, 0) AS began FROM nearest)
GROUP BY request_id, transfer_id, tier_from, tier_to;

COMMENT ON VIEW store IS 'one row a store; op is drop for one that stored nothing';
COMMENT ON COLUMN store.op IS 'store, or drop when nothing was stored';
COMMENT ON COLUMN store.tokens IS 'tokens stored; for a drop the tokens that were not; over ranks the maximum';
COMMENT ON COLUMN store.reason IS 'why; unknown where ranks of a drop give several';
