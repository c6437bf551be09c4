-- One row a request. Several observers may have seen it: our own eyes in the API process win over those in
-- the scheduler, both over the engine's own span, and the earlier of two; what the winner does not know comes
-- from the next. A simulated request tells nothing but its forecast where somebody saw it, and one of a clock
-- without a date (before 1971, schema.vocabulary.FIRST_DATE_NS: it counts from its own start) tells its times where
-- nobody else did: what then ends before it begins took nobody knows how long.
CREATE VIEW request AS
WITH seen AS (
    SELECT * REPLACE (first_value(predicted_tokens IGNORE NULLS) OVER every AS predicted_tokens),
        row_number() OVER every AS preference
    FROM span
    WHERE op = 'request' AND request_id IS NOT NULL
    WINDOW every AS (
        PARTITION BY request_id
        ORDER BY evidence IS NOT DISTINCT FROM 'predicted', start_ns < 31536000000000000,
                 CASE WHEN observer = 'api' AND evidence IS DISTINCT FROM 'native' THEN 0
                      WHEN observer = 'scheduler' THEN 1
                      WHEN observer = 'api' THEN 2 ELSE 3 END, start_ns, span_id
        ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING
    )
    QUALIFY evidence IS DISTINCT FROM 'predicted' OR first_value(evidence) OVER every = 'predicted'
)
SELECT
    request_id,
    arg_min(run_id, preference) AS run_id,
    arg_min(name, preference) AS name,
    arg_min(start_ns, preference) AS start_ns,
    arg_min(end_ns, preference) AS end_ns,
    arg_min(first_token_ns, preference) AS first_token_ns,
    CASE WHEN arg_min(first_token_ns, preference) >= arg_min(start_ns, preference)
        THEN TRY_CAST(arg_min(first_token_ns, preference)::HUGEINT - arg_min(start_ns, preference) AS BIGINT) END AS ttft_ns,
    CASE WHEN arg_min(end_ns, preference) >= arg_min(start_ns, preference)
        THEN TRY_CAST(arg_min(end_ns, preference)::HUGEINT - arg_min(start_ns, preference) AS BIGINT) END AS duration_ns,
    arg_min(prompt_tokens, preference) AS prompt_tokens,
    arg_min(output_tokens, preference) AS output_tokens,
    arg_min(gpu_hit_tokens, preference) AS gpu_hit_tokens,
    arg_min(selected_tokens, preference) AS selected_tokens,
    arg_min(reported_cached_tokens, preference) AS reported_cached_tokens,
    arg_min(predicted_tokens, preference) AS predicted_tokens,
    arg_min(status, preference) AS status,
    arg_min(outcome, preference) AS outcome,
    arg_min(reason, preference) AS reason,
    arg_min(attempt, preference) AS attempt,
    arg_min(identity_id, preference) AS identity_id,
    arg_min(user_request_id, preference) AS user_request_id,
    arg_min(parent_request_id, preference) AS parent_request_id,
    arg_min(workload_key, preference) AS workload_key,
    arg_min(engine, preference) AS engine,
    arg_min(process, preference) AS process,
    arg_min(observer, preference) AS observer,
    arg_min(evidence, preference) AS evidence,
    arg_min(trace_id, preference) AS trace_id,
    arg_min(span_id, preference) AS span_id,
    arg_min(attributes, preference) AS attributes,
    count(*) AS observers,
    any_value(bucket) AS bucket
FROM seen
GROUP BY request_id;

COMMENT ON VIEW request IS 'one row a request, from arrival to finish; several observers of it are merged';
COMMENT ON COLUMN request.start_ns IS 'arrival, unix ns';
COMMENT ON COLUMN request.end_ns IS 'finish, unix ns; null while open';
COMMENT ON COLUMN request.ttft_ns IS 'first_token_ns - start_ns, ns; null when the front end gave no first token, when it is before the arrival (two clocks), or beyond 64 bits';
COMMENT ON COLUMN request.duration_ns IS 'end_ns - start_ns, ns; null while open, when it is before the arrival (two clocks), or beyond 64 bits';
COMMENT ON COLUMN request.observers IS 'how many spans say something about this request';
