-- Why a request waited is what the scheduler saw; a queue time that an engine only sums up has reason
-- unknown, and stands only for requests that nobody watched in the queue.
CREATE VIEW queue AS
WITH waited AS (
    SELECT *, bool_or(evidence IS DISTINCT FROM 'derived') OVER (PARTITION BY request_id) AS is_watched
    FROM span
    WHERE op = 'queue'
)
SELECT run_id, request_id, name, start_ns, end_ns, reason, blocks, free_blocks, attempt, outcome, engine, process, observer, rank, evidence, attribution, trace_id, span_id, parent_span_id, attributes, bucket
FROM waited
WHERE request_id IS NULL OR NOT is_watched OR evidence IS DISTINCT FROM 'derived';

COMMENT ON VIEW queue IS 'one row an interval in which a request was not scheduled, and why';
