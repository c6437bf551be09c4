-- One row an actual inquiry, however often the scheduler asked meanwhile (attributes count the calls).
-- The cache that answers sees the same inquiry: its row, begun or ended inside the scheduler's (an eager
-- prefetch asks before the scheduler does), is not a second one, but what only the cache knows (the tiers) is
-- taken from it.
CREATE VIEW lookup AS
WITH inquiry AS (
    SELECT *, coalesce(end_ns, 9223372036854775807) AS stop_ns FROM span WHERE op = 'lookup'
), asked AS (
    SELECT process, span_id, request_id, start_ns, stop_ns FROM inquiry
    WHERE observer = 'scheduler' AND request_id IS NOT NULL
), answered AS (
    SELECT
        a.process AS asker, a.span_id AS asked_span, i.process, i.span_id, i.start_ns, i.requested_tokens,
        i.found_tokens, i.found_by_tier, i.component, i.identity_id
    FROM inquiry i JOIN asked a ON i.request_id = a.request_id
    WHERE i.observer IN ('worker', 'server', 'client') AND i.start_ns < a.stop_ns
        AND (i.start_ns >= a.start_ns OR i.end_ns > a.start_ns AND i.end_ns <= a.stop_ns)
), told AS (
    SELECT
        asker AS process, asked_span AS span_id, arg_max(requested_tokens, start_ns) AS requested_tokens,
        arg_max(found_tokens, start_ns) AS found_tokens, arg_max(found_by_tier, start_ns) AS found_by_tier,
        arg_max(component, start_ns) AS component, arg_max(identity_id, start_ns) AS identity_id
    FROM answered GROUP BY ALL
)
SELECT
    i.run_id, i.request_id, i.name, i.start_ns, i.end_ns,
    coalesce(i.requested_tokens, t.requested_tokens) AS requested_tokens,
    coalesce(i.found_tokens, t.found_tokens) AS found_tokens,
    coalesce(i.found_by_tier, t.found_by_tier) AS found_by_tier,
    i.predicted_tokens, coalesce(i.identity_id, t.identity_id) AS identity_id, i.attempt, i.outcome, i.reason,
    coalesce(i.component, t.component) AS component, i.engine, i.process, i.observer, i.rank, i.evidence,
    i.attribution, i.trace_id, i.span_id, i.parent_span_id, i.attributes, i.bucket, i.members
FROM inquiry i LEFT JOIN told t ON t.span_id = i.span_id AND t.process IS NOT DISTINCT FROM i.process
WHERE NOT EXISTS (
    SELECT 1 FROM answered x WHERE x.span_id = i.span_id AND x.process IS NOT DISTINCT FROM i.process);

COMMENT ON VIEW lookup IS 'one row an inquiry: does a prefix of this request exist outside the GPU';
COMMENT ON COLUMN lookup.found_by_tier IS 'tokens found by tier; null when nobody said, never empty for 0';
