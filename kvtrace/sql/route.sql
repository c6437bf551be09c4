-- One row a choice of a router. Its log and its spans tell of the same choice: the one that counts what the
-- router saw comes first, what it does not know comes from the next. A log counts blocks: their size is that of
-- the router's own keys that the request asked for (a cache's chunks are of another size), null where several
-- sizes are named or the product exceeds 64 bits. What a simulation chose is a row of its own.
-- Whoever tells of several choices of a request under one number (Dynamo's spans: of a request that was routed
-- again, or to a prefill and a decode worker) does not count: its choices are attempts in the order of time.
CREATE VIEW route AS
WITH size AS (
    SELECT request_id, CASE WHEN count(DISTINCT tokens) = 1 THEN any_value(tokens) END AS block_tokens
    FROM request_key WHERE position = 0 AND coalesce(starts_with(key_space, 'dynamo:'), true)
    GROUP BY request_id
), said AS (
    SELECT
        s.*, k.block_tokens,
        TRY(TRY_CAST(attributes['device_blocks'] AS BIGINT) * k.block_tokens) AS gpu_tokens,
        TRY(coalesce(TRY_CAST(attributes['host_pinned_blocks'] AS BIGINT), 0) * k.block_tokens) AS host_tokens,
        TRY(coalesce(TRY_CAST(attributes['disk_blocks'] AS BIGINT), 0) * k.block_tokens) AS disk_tokens,
        TRY_CAST(attributes['effective_blocks'] AS DOUBLE) * k.block_tokens AS effective_tokens
    FROM span s LEFT JOIN size k USING (request_id)
    WHERE op = 'route'
), counted AS (
    SELECT * REPLACE (
        coalesce(found_tokens, TRY(gpu_tokens + host_tokens + disk_tokens)) AS found_tokens,
        coalesce(found_by_tier, CASE WHEN gpu_tokens IS NOT NULL THEN MAP {
            'gpu': gpu_tokens, 'host': host_tokens, 'disk': disk_tokens} END) AS found_by_tier,
        coalesce(TRY_CAST(effective_tokens AS BIGINT), predicted_tokens) AS predicted_tokens,
        coalesce(attempt, 1) AS attempt
    ), coalesce(request_id, concat_ws('/', process, span_id, start_ns)) AS choice,
        evidence IS NOT DISTINCT FROM 'predicted' AS is_forecast
    FROM said
), placed AS (
    SELECT *,
        name IS NOT NULL AND count(*) OVER teller > count(DISTINCT attempt) OVER teller AS is_uncounted,
        row_number() OVER (teller ORDER BY start_ns, attempt, span_id) AS place
    FROM counted
    WINDOW teller AS (PARTITION BY choice, is_forecast, name)
), numbered AS (
    SELECT * REPLACE (CASE WHEN is_uncounted THEN place ELSE attempt END AS attempt) FROM placed
), ranked AS (
    SELECT *, row_number() OVER (
        PARTITION BY choice, attempt, is_forecast ORDER BY (found_tokens IS NULL)::INT, (effective_tokens IS NULL)::INT,
            start_ns, span_id
    ) AS preference
    FROM numbered
)
SELECT
    any_value(run_id) AS run_id, any_value(request_id) AS request_id, arg_min(name, preference) AS name,
    min(start_ns) AS start_ns, max(end_ns) AS end_ns, arg_min(engine, preference) AS engine,
    arg_min(process, preference) AS process, arg_min(observer, preference) AS observer,
    arg_min(rank, preference) AS rank, attempt, arg_min(outcome, preference) AS outcome,
    arg_min(requested_tokens, preference) AS requested_tokens, arg_min(found_tokens, preference) AS found_tokens,
    arg_min(found_by_tier, preference) AS found_by_tier, arg_min(predicted_tokens, preference) AS predicted_tokens,
    arg_min(evidence, preference) AS evidence, arg_min(attribution, preference) AS attribution,
    arg_min(trace_id, preference) AS trace_id, arg_min(span_id, preference) AS span_id,
    arg_min(parent_span_id, preference) AS parent_span_id, arg_min(attributes, preference) AS attributes,
    count(*) AS observers, any_value(bucket) AS bucket
FROM ranked
GROUP BY choice, attempt, is_forecast;

COMMENT ON VIEW route IS 'one row a choice of a router: which engine, what it saw there, what it forecast';
COMMENT ON COLUMN route.start_ns IS 'when the first observer saw it begin, unix ns';
COMMENT ON COLUMN route.end_ns IS 'when the last one saw it end, unix ns';
COMMENT ON COLUMN route.attempt IS 'which choice for this request, from 1; in the order of time where nobody counted';
COMMENT ON COLUMN route.engine IS 'the engine it chose';
COMMENT ON COLUMN route.found_tokens IS 'tokens that the router saw on that engine, all tiers, unweighted';
COMMENT ON COLUMN route.found_by_tier IS 'the same by tier; each tier as it goes on beyond the nearer ones';
COMMENT ON COLUMN route.predicted_tokens IS 'its forecast of cached tokens, weighted by tier as it weighs them';
COMMENT ON COLUMN route.observers IS 'how many rows tell of this choice';
