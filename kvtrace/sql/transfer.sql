-- One physical transfer, one row: over ranks the interval is the union's hull, tokens the most that any
-- rank moved (each moves its share of the same tokens), bytes the sum.
CREATE VIEW transfer AS
WITH copied AS (SELECT * FROM copy)
SELECT
    run_id, op, request_id, transfer_id, name, start_ns, end_ns, submit_ns, usable_ns, tier_from, tier_to,
    component, state_kind, purpose, tokens, bytes, blocks, attempt, outcome, reason, engine, process, observer,
    evidence, trace_id, span_id, 1 AS ranks, bucket, queued_ns, identity_id, clock, attribution, members, attributes
FROM copied
WHERE transfer_id IS NULL
UNION ALL
SELECT
    any_value(run_id), op, request_id, transfer_id, arg_min(name, began), min(start_ns),
    CASE WHEN count(end_ns) = count(*) THEN max(end_ns) END,
    min(submit_ns), CASE WHEN count(usable_ns) = count(*) THEN max(usable_ns) END, tier_from, tier_to,
    arg_min(component, began), arg_min(state_kind, began), arg_min(purpose, began),
    max(tokens), TRY_CAST(sum(bytes) AS BIGINT), max(blocks), max(attempt),
    CASE WHEN min(outcome) <> max(outcome) THEN 'partial' ELSE any_value(outcome) END,
    arg_min(reason, began), arg_min(engine, began), arg_min(process, began), any_value(observer),
    arg_min(evidence, began), arg_min(trace_id, began), arg_min(span_id, began),
    count(*), any_value(bucket), min(queued_ns), arg_min(identity_id, began), arg_min(clock, began),
    arg_min(attribution, began), arg_min(members, began), arg_min(attributes, began)
FROM (SELECT *, coalesce(start_ns, 0) AS began FROM copied)
WHERE transfer_id IS NOT NULL
GROUP BY op, request_id, tier_from, tier_to, transfer_id;

COMMENT ON VIEW transfer IS 'one row a physical transfer towards the GPU (op load) or away from it (op store)';
COMMENT ON COLUMN transfer.end_ns IS 'end of the last rank, unix ns; null while one of them is open';
COMMENT ON COLUMN transfer.tokens IS 'tokens moved; over ranks the maximum';
COMMENT ON COLUMN transfer.bytes IS 'bytes moved; over ranks the sum, null when it is beyond 64 bits';
COMMENT ON COLUMN transfer.ranks IS 'how many rows of ranks were merged';
COMMENT ON COLUMN transfer.outcome IS 'ok, failed ...; partial when ranks disagree';
