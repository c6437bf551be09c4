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

TURNS = """
CREATE OR REPLACE TEMP TABLE turns AS
WITH inquiry AS (
    SELECT key_space, request_id, coalesce(attempt, 1) AS attempt, min(time_ns) AS time_ns
    FROM request_key WHERE request_id IS NOT NULL AND key IS NOT NULL AND position IS NOT NULL
    GROUP BY key_space, request_id, coalesce(attempt, 1)
    QUALIFY row_number() OVER (PARTITION BY key_space, request_id ORDER BY coalesce(attempt, 1)) = 1
), space AS (
    SELECT key_space, row_number() OVER () AS space FROM inquiry GROUP BY key_space
)
SELECT i.*, s.space, row_number() OVER (ORDER BY s.space, i.time_ns NULLS LAST, i.request_id) AS turn
FROM inquiry i JOIN space s ON s.key_space IS NOT DISTINCT FROM i.key_space
"""
"""The first inquiry of each request in each key space, numbered in time order: numbers join cheaply."""

ASKED = """
CREATE OR REPLACE TEMP TABLE asked AS
SELECT t.space, t.turn, k.position, any_value(k.key) AS key, max(k.tokens) AS tokens
FROM request_key k JOIN turns t ON t.request_id = k.request_id AND t.attempt = coalesce(k.attempt, 1)
    AND t.key_space IS NOT DISTINCT FROM k.key_space
WHERE k.key IS NOT NULL AND k.position IS NOT NULL GROUP BY t.space, t.turn, k.position
"""

_SERVED = """
CREATE OR REPLACE TEMP TABLE served AS
WITH early AS (
    SELECT space, key, min(turn) AS first_turn FROM asked GROUP BY space, key
), known AS (
    SELECT a.turn, a.position, a.tokens, a.turn > e.first_turn AS seen
    FROM asked a JOIN early e ON e.space = a.space AND e.key = a.key
), gapped AS (
    SELECT turn FROM asked GROUP BY turn HAVING count(*) <> max(position) + 1
), gap AS (
    SELECT turn, min(place) AS first_gap FROM (
        SELECT turn, position, row_number() OVER (PARTITION BY turn ORDER BY position) - 1 AS place
        FROM asked WHERE turn IN (SELECT turn FROM gapped))
    WHERE position <> place GROUP BY turn
), ended AS (
    SELECT turn, least(coalesce(min(position) FILTER (NOT seen), 9223372036854775807),
        coalesce(any_value(first_gap), 9223372036854775807)) AS first_miss
    FROM known LEFT JOIN gap USING (turn) GROUP BY turn
), reached AS (
    SELECT k.turn, k.tokens, k.position < e.first_miss AS hit FROM known k JOIN ended e USING (turn)
)
SELECT turn, count(*) AS keys, count(*) FILTER (hit) AS hit_keys,
    CASE WHEN count(tokens) FILTER (hit) = count(*) FILTER (hit)
        THEN coalesce(sum(tokens) FILTER (hit), 0) END AS hit_tokens
FROM reached GROUP BY turn
"""
"""A key is seen when an earlier request asked for it; a hit ends before the first that is not."""

_ROWS = """
WITH counted AS (
    SELECT t.space, t.key_space, s.keys, s.hit_keys, q.prompt_tokens,
        q.prompt_tokens IS NOT NULL AND s.hit_tokens IS NOT NULL AS is_counted,
        least(s.hit_tokens, q.prompt_tokens) AS used
    FROM served s JOIN turns t USING (turn) LEFT JOIN request q USING (request_id)
), apart AS (
    SELECT space, count(DISTINCT key) AS distinct_keys FROM asked GROUP BY space
), summed AS (
    SELECT space, any_value(key_space) AS key_space, count(*) AS requests, sum(keys)::BIGINT AS keys,
        sum(hit_keys)::BIGINT AS hit_keys, count(*) FILTER (is_counted) AS counted_requests,
        TRY_CAST(sum(prompt_tokens) FILTER (is_counted) AS BIGINT) AS prompt_tokens,
        TRY_CAST(sum(used) FILTER (is_counted) AS BIGINT) AS hit_tokens
    FROM counted GROUP BY space
)
SELECT s.*, a.distinct_keys, s.hit_keys / s.keys AS of_keys,
    s.hit_tokens / nullif(s.prompt_tokens, 0) AS of_prompt
FROM summed s JOIN apart a USING (space) ORDER BY s.key_space NULLS FIRST
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
    connection = spilling(run)
    for query in (TURNS, ASKED, _SERVED):
        connection.execute(query)
    found = connection.sql(_ROWS).to_arrow_table()
    return pl.DataFrame(found).select(list(COLUMNS)).cast(COLUMNS)
