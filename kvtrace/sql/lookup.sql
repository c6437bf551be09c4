-- One row an actual inquiry, however often the scheduler asked meanwhile (attributes count the calls).
CREATE VIEW lookup AS
SELECT run_id, request_id, name, start_ns, end_ns, requested_tokens, found_tokens, found_by_tier, predicted_tokens, identity_id, attempt, outcome, reason, component, engine, process, observer, rank, evidence, attribution, trace_id, span_id, parent_span_id, attributes, bucket
FROM span
WHERE op = 'lookup';

COMMENT ON VIEW lookup IS 'one row an inquiry: does a prefix of this request exist outside the GPU';
