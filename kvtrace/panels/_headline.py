"""Exposed transfer, the headline: all time that requests waited for the cache, theirs or another's.

wait_* + load + load_wait + lock + lookup + store + interference + the part of queue_capacity that `blockers`
gives to holds of GPU blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.schema.vocabulary import EXPOSED_TRANSFER

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from kvtrace.run import Run

_HELD = """
WITH lacking AS (
    SELECT DISTINCT request_id, "window", bound, censored FROM read_parquet($path)
    WHERE class = 'queue_capacity'
)
SELECT "window", bound, sum(exposed_ns)::DOUBLE AS held_ns, count(*) FILTER (exposed_ns IS NULL) AS unknown
FROM read_parquet($held) JOIN lacking USING (request_id, "window")
WHERE class = 'queue_capacity' GROUP BY ALL ORDER BY ALL
"""
_QUANTILES = """
WITH lacking AS (
    SELECT DISTINCT request_id, "window" FROM read_parquet($path)
    WHERE class = 'queue_capacity' AND bound = 'exact' AND NOT censored
), part AS (
    SELECT request_id, "window", exposed_ns FROM read_parquet($path)
    WHERE bound = 'exact' AND NOT censored AND exposed_ns > 0 AND list_contains($classes, class)
    UNION ALL
    SELECT request_id, "window", exposed_ns FROM read_parquet($held) JOIN lacking USING (request_id, "window")
    WHERE class = 'queue_capacity' AND exposed_ns > 0
), value AS (
    SELECT "window", sum(exposed_ns)::BIGINT AS ns FROM part GROUP BY request_id, "window"
), sorted AS (
    SELECT "window", list_sort(list(ns)) AS ns, count(*) AS present FROM value GROUP BY ALL
), measured AS (
    SELECT unnest($measured, recursive := true)
)
SELECT
    "window",
    coalesce(ns[greatest(0, ceil(0.50 * requests)::BIGINT - (requests - coalesce(present, 0)))], 0) AS p50_ns,
    coalesce(ns[greatest(0, ceil(0.90 * requests)::BIGINT - (requests - coalesce(present, 0)))], 0) AS p90_ns,
    coalesce(ns[greatest(0, ceil(0.99 * requests)::BIGINT - (requests - coalesce(present, 0)))], 0) AS p99_ns
FROM measured LEFT JOIN sorted USING ("window") WHERE requests > 0
"""
"""Requests without any of it stand in front with 0."""


def headline(run: Run, path: Path, sums: pl.DataFrame, requests: pl.DataFrame) -> pl.DataFrame:
    """One row a (window, bound): exposed transfer, what of it is held blocks, and quantiles where exact.

    `holds` says whether held blocks were recorded at all; `unknown` counts blockers whose part nobody knows.
    """
    import polars as pl

    from kvtrace.analyses.blockers import shares

    held_path = str(shares(run))
    connection = run.connection()
    own = (
        sums.filter(pl.col("class").is_in(EXPOSED_TRANSFER))
        .group_by("window", "bound").agg(pl.col("exposed_ns").sum().alias("own_ns"))
    )  # fmt: skip
    held = connection.sql(_HELD, params={"path": str(path), "held": held_path}).pl()
    measured = [
        {"window": row["window"], "requests": row["requests"] - row["censored"]}
        for row in requests.iter_rows(named=True)
        if row["bound"] == "exact"
    ] or [{"window": "", "requests": 0}]
    params = {"path": str(path), "held": held_path, "classes": list(EXPOSED_TRANSFER), "measured": measured}
    quantiles = connection.sql(_QUANTILES, params=params).pl().with_columns(bound=pl.lit("exact"))
    holds = connection.sql("SELECT count(*) > 0 AS any FROM hold").pl()["any"][0]
    whole = requests.select("window", "bound").join(own, on=["window", "bound"], how="left")
    whole = whole.join(held, on=["window", "bound"], how="left", maintain_order="left")
    whole = whole.with_columns(pl.col("own_ns", "held_ns", "unknown").fill_null(0), holds=pl.lit(holds))
    whole = whole.with_columns(exposed_ns=pl.col("own_ns") + pl.col("held_ns"))
    return whole.join(quantiles, on=["window", "bound"], how="left", maintain_order="left")
