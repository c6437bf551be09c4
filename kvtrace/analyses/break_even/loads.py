"""Which loads did each request have at its first admission, and how quick could they have been?

    disk ->host   1.5 MiB  at   1 GiB/s    1.5 ms     pipelined: the slowest hop, 1.5 ms
    host ->gpu    2.5 MiB  at  25 GiB/s    0.1 ms     serial:    their sum, 1.6 ms

The speed of a hop is that of its path in this run (`bandwidth`), never one on paper. Times that include a
queue are no speed of a path: a hop that was seen in no other way has no bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.bandwidth import speeds

if TYPE_CHECKING:
    import duckdb

_HOPS = """
WITH own AS (
    SELECT * EXCLUDE (request_id, members), unnest(who) AS request_id, len(who) > 1 AS shared
    FROM (
        SELECT request_id, members, tier_from, tier_to, component, start_ns, end_ns, outcome, tokens, bytes,
            list_distinct(list_append(list_transform(coalesce(members, []), lambda m: m.request_id),
                request_id)) AS who
        FROM transfer
        WHERE op = 'load' AND purpose IS DISTINCT FROM 'handoff' AND evidence IS DISTINCT FROM 'predicted'
            AND outcome IS DISTINCT FROM 'skipped'
    )
), first AS (
    SELECT o.*, o.tier_to IN ('gpu', 'unknown') AS lands, o.start_ns IS NOT NULL AS timed,
        coalesce(outcome IN ('failed', 'timeout', 'cancelled'), false) AS wrong,
        coalesce(o.end_ns IS NOT NULL OR (o.start_ns IS NULL AND outcome = 'ok'), false) AS over,
        CASE WHEN NOT shared AND bytes >= 0 THEN bytes END AS own_bytes,
        CASE WHEN NOT shared AND tokens >= 0 THEN tokens END AS own_tokens
    FROM own o JOIN read_parquet($served) s USING (request_id)
    WHERE s.again_ns IS NULL OR o.start_ns IS NULL OR o.start_ns < s.again_ns
)
SELECT request_id, tier_from, tier_to, component, bool_and(timed) AS timed, bool_or(lands) AS lands,
    bool_and(wrong) AS wrong,
    -- what a load that failed had moved nobody can use
    TRY_CAST(CASE WHEN count(*) FILTER (NOT wrong AND (own_bytes IS NULL OR NOT over)) = 0
        THEN coalesce(sum(own_bytes) FILTER (NOT wrong), 0) END AS BIGINT) AS bytes,
    TRY_CAST(CASE WHEN count(*) FILTER (NOT wrong AND (own_tokens IS NULL OR NOT over)) = 0
        THEN coalesce(sum(own_tokens) FILTER (NOT wrong), 0) END AS BIGINT) AS tokens
FROM first GROUP BY ALL
"""
_PATH = ["tier_from", "tier_to", "component"]
MOST_NS = 2.0**62
"""A time beyond this is no time."""


def hops(connection: duckdb.DuckDBPyConnection, served: str) -> pl.DataFrame:
    """A row a request and path of its loads: bytes and tokens that arrived, null where one does not say."""
    return pl.DataFrame(connection.sql(_HOPS, params={"served": served}).to_arrow_table())


def moved(rows: pl.DataFrame) -> pl.DataFrame:
    """(request_id, moved_bytes, moved_tokens, timed) of each request: what reached the GPU, whole chunks.

    Null where no hop into the GPU was recorded, or one does not say. `timed`: all of its loads have times.
    """

    def landed(name: str) -> pl.Expr:
        mine = pl.col(name).filter(pl.col("lands"))
        whole = (mine.null_count() == 0) & (mine.len() > 0)
        return pl.when(whole).then(mine.cast(pl.Int128).sum()).cast(pl.Int64, strict=False)

    return rows.group_by("request_id").agg(
        moved_bytes=landed("bytes"), moved_tokens=landed("tokens"), timed=pl.col("timed").all()
    )


def paths(transfers: pl.DataFrame, confidence: float) -> pl.DataFrame:
    """Each path's speed among `bandwidth`'s measured transfers, without those whose time includes a queue.

    Where times do not grow with bytes there is a time instead: the median `took_ns`, with least and most.
    """
    copies = transfers.filter(~pl.col("includes_queue"))
    took = (pl.col("end_ns") - pl.col("start_ns")).cast(pl.Float64)
    steady = copies.group_by(_PATH).agg(took_ns=took.median(), took_least=took.min(), took_most=took.max())
    told = speeds(copies, confidence=confidence)
    return told.join(steady, on=_PATH, how="left", nulls_equal=True)


def bounds(rows: pl.DataFrame, told: pl.DataFrame) -> pl.DataFrame:
    """(request_id, pipelined_ns, its _low and _high, serial_ns, unmeasured): what its loads take at least.

    A hop takes latency + bytes / bandwidth, or its path's time where that does not grow with bytes.
    `pipelined_high` is null where no end is known. Null, all of them, where a hop has no bytes or no copy of
    its path was measured: `unmeasured` names it.
    """
    size = pl.col("bytes").cast(pl.Float64)
    latency = pl.col("latency_ns").fill_null(0).clip(0)
    steady = pl.col("bandwidth_bytes_per_s").is_null()

    def at(speed: str) -> pl.Expr:
        return size / pl.col(speed) * 1e9

    def by(time: str, otherwise: pl.Expr) -> pl.Expr:
        return pl.when(size == 0).then(0.0).when(steady).then(time).otherwise(otherwise)

    each = (
        rows.filter(~pl.col("wrong"))
        .join(told, on=_PATH, how="left", nulls_equal=True)
        .with_columns(
            middle=by("took_ns", latency + at("bandwidth_bytes_per_s")),
            low=by("took_least", pl.coalesce(at("bandwidth_high"), size * 0)),
            high=by("took_most", latency + at("bandwidth_low")),
        )
        .with_columns(pl.when(pl.col("bytes").is_not_null()).then(pl.col("middle", "low", "high")))
        .group_by("request_id", "tier_from", "tier_to")
        .agg(*(_known(pl.col(name), pl.col(name).sum()) for name in ("middle", "low", "high")))
    )
    where = pl.concat_str(pl.col("tier_from"), pl.lit("->"), pl.col("tier_to"))
    return each.group_by("request_id").agg(
        pipelined_ns=_known(pl.col("middle"), pl.col("middle").max()),
        pipelined_low=_known(pl.col("low"), pl.col("low").max()),
        pipelined_high=_known(pl.col("high"), pl.col("high").max()),
        serial_ns=_known(pl.col("middle"), pl.col("middle").sum()),
        unmeasured=where.filter(pl.col("middle").is_null()).sort().first(),
    )


def _known(column: pl.Expr, total: pl.Expr) -> pl.Expr:
    """The total; null where a part of it is null, or beyond any time."""
    return (
        pl.when((column.null_count() == 0) & (total < MOST_NS)).then(total).alias(column.meta.output_name())
    )
