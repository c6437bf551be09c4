-- Who it served is in members; the noun member has a row for each.
CREATE VIEW step AS
SELECT run_id, name, start_ns, end_ns, tokens, members, len(members) AS requests, outcome, engine, process, observer, rank, device, stream, clock, evidence, trace_id, span_id, parent_span_id, attributes
FROM span
WHERE op = 'step';

COMMENT ON VIEW step IS 'one row an engine iteration';
COMMENT ON COLUMN step.requests IS 'how many requests the step served';
