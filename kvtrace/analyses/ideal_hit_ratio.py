"""The question `ideal_hit_ratio`: what share of the prompts could a cache without limit serve?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "key_space": pl.String,
        "requests": pl.Int64,
        "keys": pl.Int64,
        "distinct_keys": pl.Int64,
        "hit_keys": pl.Int64,
        "of_keys": pl.Float64,
        "counted_requests": pl.Int64,
        "prompt_tokens": pl.Int64,
        "hit_tokens": pl.Int64,
        "of_prompt": pl.Float64,
    }
)

_ROWS = """
WITH asked AS (
    SELECT DISTINCT key_space, request_id, position, key, tokens, time_ns FROM request_key
    WHERE request_id IS NOT NULL AND key IS NOT NULL AND position IS NOT NULL
    QUALIFY coalesce(attempt, 1) = min(coalesce(attempt, 1)) OVER (PARTITION BY key_space, request_id)
), once AS (
    SELECT key_space, request_id, position, any_value(key) AS key, max(tokens) AS tokens,
        min(time_ns) AS time_ns
    FROM asked GROUP BY key_space, request_id, position
), arrived AS (
    SELECT key_space, request_id, row_number() OVER (
        PARTITION BY key_space ORDER BY min(time_ns) NULLS LAST, request_id) AS turn
    FROM once GROUP BY key_space, request_id
), placed AS (
    SELECT o.*, a.turn, row_number() OVER (
        PARTITION BY o.key_space, o.request_id ORDER BY position) - 1 AS place
    FROM once o JOIN arrived a ON a.key_space IS NOT DISTINCT FROM o.key_space
        AND a.request_id = o.request_id
), known AS (
    SELECT *, position = place AND turn > min(turn) OVER (PARTITION BY key_space, key) AS seen FROM placed
), reached AS (
    SELECT *, coalesce(bool_and(seen) OVER (PARTITION BY key_space, request_id ORDER BY position
        ROWS UNBOUNDED PRECEDING), false) AS hit
    FROM known
), served AS (
    SELECT r.key_space, r.request_id, count(*) AS keys, count(*) FILTER (hit) AS hit_keys,
        CASE WHEN count(r.tokens) FILTER (hit) = count(*) FILTER (hit)
            THEN coalesce(sum(r.tokens) FILTER (hit), 0) END AS hit_tokens
    FROM reached r GROUP BY r.key_space, r.request_id
), counted AS (
    SELECT s.*, q.prompt_tokens IS NOT NULL AND s.hit_tokens IS NOT NULL AS is_counted,
        q.prompt_tokens, least(s.hit_tokens, q.prompt_tokens) AS used
    FROM served s LEFT JOIN request q USING (request_id)
), apart AS (
    SELECT key_space, count(DISTINCT key) AS distinct_keys FROM once GROUP BY key_space
), summed AS (
    SELECT key_space, count(*) AS requests, sum(keys)::BIGINT AS keys, sum(hit_keys)::BIGINT AS hit_keys,
        count(*) FILTER (is_counted) AS counted_requests,
        TRY_CAST(sum(prompt_tokens) FILTER (is_counted) AS BIGINT) AS prompt_tokens,
        TRY_CAST(sum(used) FILTER (is_counted) AS BIGINT) AS hit_tokens
    FROM counted GROUP BY key_space
)
SELECT s.*, a.distinct_keys, s.hit_keys / s.keys AS of_keys,
    s.hit_tokens / nullif(s.prompt_tokens, 0) AS of_prompt
FROM summed s JOIN apart a ON a.key_space IS NOT DISTINCT FROM s.key_space
ORDER BY s.key_space NULLS FIRST
"""


def ideal_hit_ratio(run: Run) -> pl.DataFrame:
    """Which share of the prompts could a prefix cache without any limit have served?

    The upper bound of `hit_ratio` from the same keys: of workload traces before anything ran, of hash logs
    and routers' traces of what did. A request's hit is its longest beginning of keys that earlier requests
    asked for: nothing is ever evicted, and state is there as soon as somebody has asked for it, even where
    requests overlap in time. Nothing counts behind a key that is missing, the last token of a prompt counts
    though an engine computes it always, and only a request's first inquiry counts.

    Keys compare inside one key space only, and a row is one of them: files whose ids were counted anew do not
    meet. Requests without any key are in no row: of them nothing is known.

    Columns:
        key_space: what the keys are: producer:algorithm:model
        requests: requests that asked for keys
        keys: keys that they asked for
        distinct_keys: different ones among them: blocks that a cache without limit holds in the end
        hit_keys: keys of hits
        of_keys: hit_keys / keys
        counted_requests: requests whose prompt's length and hit keys' tokens are known; the sums are theirs
        prompt_tokens: their prompt tokens; null when there are none
        hit_tokens: tokens of their hit keys, at most the prompt's
        of_prompt: hit_tokens / prompt_tokens: the ideal hit ratio
    """
    found = spilling(run).sql(_ROWS).to_arrow_table()
    return pl.DataFrame(found).select(list(COLUMNS)).cast(COLUMNS)
