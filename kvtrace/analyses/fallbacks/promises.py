"""What a cache's lower tier had promised a request, and did not deliver, as SQL over what its server says.

    L2 has    |== k0 ==|== k1 ==|== k2 ==|      prefix_hit_count 3, fixed before the load
    loaded    |== k0 ==|   x                    k1 failed: the lookup reports 1, and nothing says why
    no room   |                                 k0 was refused: nothing is loaded, L1's part is reported

The engine sees only a shorter find: its own numbers add up, and the tail is computed without a word. That a
part failed is said of the search (failed_count), that there was no room of keys: the search that asked for
them, and lasted then, is the one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    import duckdb

_PROMISES = """
WITH asked AS (
    SELECT request_id, process, start_ns, end_ns, coalesce(found_tokens, 0) AS found,
        found_by_tier['host'] AS in_l1
    FROM span WHERE op = 'lookup' AND observer = 'server' AND request_id IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY request_id ORDER BY coalesce(attempt, 1), start_ns) = 1
), size AS (
    SELECT request_id, CASE WHEN count(DISTINCT tokens) = 1 THEN any_value(tokens) END AS chunk
    FROM request_key GROUP BY request_id
), search AS (
    SELECT s.request_id, s.name, s.start_ns, s.end_ns, s.process, a.found, a.in_l1,
        TRY_CAST(s.attributes['prefix_hit_count'] AS BIGINT) AS hits,
        TRY_CAST(s.attributes['failed_count'] AS BIGINT) AS failed,
        coalesce(s.attributes['submitted'] = '0', false) AS refused
    FROM span s JOIN asked a ON a.request_id = s.request_id AND a.process IS NOT DISTINCT FROM s.process
        AND s.start_ns >= a.start_ns AND (a.end_ns IS NULL OR s.start_ns <= a.end_ns)
    WHERE s.op IS NULL AND s.name IN ('l2.prefetch.lookup', 'l2.prefetch.load')
), without_room AS (
    SELECT DISTINCT s.request_id
    FROM block b JOIN search s ON s.process IS NOT DISTINCT FROM b.process AND s.name = 'l2.prefetch.lookup'
        AND b.time_ns >= s.start_ns AND (s.end_ns IS NULL OR b.time_ns <= s.end_ns)
    JOIN request_key k ON k.request_id = s.request_id AND k.key_space = b.key_space AND k.key = b.key
    WHERE b.event = 'failed' AND starts_with(b.component, 'lmcache.l2')
        AND b.reason IN ('l1_oom', 'l1_contended')
), reason AS (
    SELECT request_id, arg_min(reason, start_ns) AS reason FROM span
    WHERE op = 'load' AND name = 'l2.load_task' AND reason IS NOT NULL GROUP BY request_id
)
SELECT s.request_id, coalesce(bool_or(failed > 0 AND NOT refused), false) AS undelivered,
    bool_or(w.request_id IS NOT NULL) AS unplaced, any_value(r.reason) AS undelivered_reason,
    any_value(in_l1) + max(hits) * any_value(z.chunk) AS promised_tokens
FROM search s LEFT JOIN without_room w USING (request_id) LEFT JOIN reason r USING (request_id)
LEFT JOIN size z USING (request_id)
GROUP BY s.request_id HAVING undelivered OR unplaced
"""

_SCHEMA = pl.Schema(
    {
        "request_id": pl.String,
        "undelivered": pl.Boolean,
        "unplaced": pl.Boolean,
        "undelivered_reason": pl.String,
        "promised_tokens": pl.Int64,
    }
)


def promised(connection: duckdb.DuckDBPyConnection, rows: pl.DataFrame) -> pl.DataFrame:
    """The facts with what the lower tier had promised; false and null where nothing of it is said.

    undelivered: a part that it had did not arrive, for undelivered_reason. unplaced: there was no room for
    it. promised_tokens: from the first prompt token.
    """
    found = pl.DataFrame(connection.sql(_PROMISES).to_arrow_table()).cast(_SCHEMA)
    known = rows.join(found, on="request_id", how="left", maintain_order="left")
    return known.with_columns(pl.col("undelivered", "unplaced").fill_null(value=False))
