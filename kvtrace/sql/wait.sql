-- A wait names its members, else its request_id; one that names nobody concerns every request outside its step.
CREATE VIEW wait AS
SELECT run_id, request_id, name, start_ns, end_ns, reason, members, component, device, stream, engine, process, observer, rank, evidence, attribution, trace_id, span_id, parent_span_id, attributes, bucket
FROM span
WHERE op = 'wait';

COMMENT ON VIEW wait IS 'one row an interval in which the engine itself was blocked';
