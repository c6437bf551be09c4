-- Why a request waited is what the scheduler saw; a queue time that an engine only sums up has reason unknown.
CREATE VIEW queue AS
SELECT run_id, request_id, name, start_ns, end_ns, reason, blocks, free_blocks, attempt, outcome, engine, process, observer, rank, evidence, attribution, trace_id, span_id, parent_span_id, attributes, bucket
FROM span
WHERE op = 'queue';

COMMENT ON VIEW queue IS 'one row an interval in which a request was not scheduled, and why';
