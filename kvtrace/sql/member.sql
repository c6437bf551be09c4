-- Who an operation served: steps, merged loads, blocking waits, lazy batches.
CREATE VIEW member AS
SELECT
    run_id, op, span_id, start_ns, end_ns, reason, engine, process, observer, rank,
    unnest(members, recursive := true)
FROM span
WHERE len(members) > 0;

COMMENT ON VIEW member IS 'one row a (operation, request it served)';
COMMENT ON COLUMN member.request_id IS 'the request served';
COMMENT ON COLUMN member.phase IS 'prefill or decode, as the engine says';
COMMENT ON COLUMN member.scheduled_tokens IS 'tokens of this request that the operation computes';
COMMENT ON COLUMN member.output_tokens IS 'tokens this request puts out in it';
COMMENT ON COLUMN member.computed_before IS 'tokens of this request that were there before it';
