"""Why did a request find nothing outside the GPU? As far as the records allow, by its first missing key.

an earlier request asks key K        this one asks K and misses
------|-----------------------------------------|------------->   never_stored   (nobody stores K)
      |           [store====)                   |                 evicted        (and K was removed)
      |                               [store=======)              not_yet_stored (or begins later)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    import duckdb

MISSES = (
    "below_chunk", "not_asked", "evicted", "key_mismatch", "not_yet_stored", "never_stored", "unknown",
)  # fmt: skip

_KEYS = """
CREATE OR REPLACE TEMP TABLE missing_key AS
SELECT m.request_id, any_value(m.asked_ns) AS asked_ns, arg_min(k.key_space, k.position) AS key_space,
    arg_min(k.key, k.position) AS key
FROM missed m JOIN request_key k USING (request_id)
WHERE coalesce(k.attempt, 1) = 1
GROUP BY m.request_id
"""

_STORES = """
CREATE OR REPLACE TEMP TABLE storing AS
SELECT request_id, count(*) AS stores, min(coalesce(usable_ns, end_ns)) AS first_stored_ns
FROM transfer
WHERE op = 'store' AND tier_from IN ('gpu', 'unknown')
    AND coalesce(outcome, 'ok') NOT IN ('failed', 'timeout', 'cancelled', 'skipped')
    AND request_id IN (SELECT k.request_id FROM request_key k JOIN missing_key USING (key_space, key))
GROUP BY request_id
"""

_EVENTS = """
CREATE OR REPLACE TEMP TABLE key_event AS
SELECT b.time_ns, b.event, b.key_space, b.key, b.component, b.token_digest
FROM block b
WHERE b.tier IS DISTINCT FROM 'gpu' AND b.event IN ('stored', 'written', 'removed', 'expired', 'cleared')
"""

_ANSWERS = """
WITH there AS (
    SELECT m.request_id, m.asked_ns, max(e.time_ns) AS stored_ns, any_value(e.component) AS component
    FROM missing_key m JOIN key_event e USING (key_space, key)
    WHERE e.event IN ('stored', 'written') AND e.time_ns <= m.asked_ns
    GROUP BY m.request_id, m.asked_ns
), evicted AS (
    SELECT DISTINCT t.request_id
    FROM there t JOIN missing_key m USING (request_id) JOIN key_event e
        ON e.time_ns BETWEEN t.stored_ns AND t.asked_ns
    WHERE (e.event IN ('removed', 'expired') AND e.key_space = m.key_space AND e.key = m.key)
        OR (e.event = 'cleared' AND e.component IS NOT DISTINCT FROM t.component)
), content AS (
    SELECT DISTINCT key_space, key, token_digest FROM key_event
    WHERE token_digest IS NOT NULL AND event IN ('stored', 'written')
), mismatched AS (
    SELECT DISTINCT m.request_id
    FROM missing_key m JOIN content c USING (key_space, key)
    JOIN key_event o ON o.token_digest = c.token_digest
    WHERE (o.key <> m.key OR o.key_space <> m.key_space) AND o.event IN ('stored', 'written')
        AND o.time_ns <= m.asked_ns
), earlier AS (
    SELECT m.request_id, m.asked_ns, k.request_id AS producer
    FROM missing_key m JOIN request_key k USING (key_space, key)
    WHERE k.request_id <> m.request_id AND k.time_ns < m.asked_ns
), stores AS (
    SELECT e.request_id, bool_or(s.first_stored_ns <= e.asked_ns) AS over, count(*) AS stored
    FROM earlier e JOIN storing s ON s.request_id = e.producer
    WHERE s.stores > 0 GROUP BY e.request_id
), seen AS (
    SELECT EXISTS (SELECT 1 FROM span WHERE op IN ('store', 'drop')) AS stores,
        EXISTS (SELECT 1 FROM key_event) AS events
)
SELECT m.request_id,
    CASE
        WHEN m.request_id IN (SELECT request_id FROM evicted) THEN 'evicted'
        WHEN t.request_id IS NOT NULL THEN 'unknown'
        WHEN m.request_id IN (SELECT request_id FROM mismatched) THEN 'key_mismatch'
        WHEN s.stored > 0 AND s.over IS NOT TRUE THEN 'not_yet_stored'
        WHEN seen.events OR (seen.stores AND s.stored IS NULL) THEN 'never_stored'
        ELSE 'unknown'
    END AS cause
FROM missing_key m CROSS JOIN seen LEFT JOIN there t USING (request_id) LEFT JOIN stores s USING (request_id)
"""


def explained(
    connection: duckdb.DuckDBPyConnection, rows: pl.DataFrame, stores: pl.DataFrame | None = None
) -> pl.DataFrame:
    """The rows of `verdicts.judged` with the reason of every miss.

    `stores` has (request_id, stores, first_stored_ns) of every request; without it the transfers are asked.
    """
    is_miss = pl.col("verdict") == "miss"
    missed = rows.filter(is_miss, pl.col("inquiries") > 0).select("request_id", "asked_ns").to_arrow()
    connection.register("missed", missed)
    try:
        for statement in (_KEYS, _EVENTS):
            connection.execute(statement)
        if stores is None:
            connection.execute(_STORES)
        else:
            connection.register("storing", stores.to_arrow())
        found = pl.DataFrame(connection.sql(_ANSWERS).to_arrow_table())
    finally:
        connection.unregister("missed")
        if stores is not None:
            connection.unregister("storing")
    known = rows.join(found, on="request_id", how="left", maintain_order="left")
    reason = (
        pl.when(pl.col("below_chunk")).then(pl.lit("below_chunk"))
        .when(pl.col("inquiries") == 0).then(pl.lit("not_asked"))
        .otherwise(pl.coalesce("cause", pl.lit("unknown")))
    )  # fmt: skip
    return known.with_columns(reason=pl.when(is_miss).then(reason).otherwise("reason"))
