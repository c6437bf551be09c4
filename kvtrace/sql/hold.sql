-- An open hold has a null end: it is counted to the last record of its process, never to an invented end.
CREATE VIEW hold AS
SELECT run_id, request_id, name, start_ns, end_ns, blocks, reason, transfer_id, mode, component, engine, process, observer, rank, evidence, attribution, trace_id, span_id, parent_span_id, attributes, bucket
FROM span
WHERE op = 'hold';

COMMENT ON VIEW hold IS 'one row an interval in which GPU blocks could not be reused because a transfer still needed them';
