"""The cached partition, summed up where it lies: a run of a million requests has 18 million rows in it.

Everything that comes back is small. A request has a row of a class only where the class took part, so
for requests whose bound is exact a row that is absent is a measured 0, and the quantiles count it.
Upper bounds and censored requests (unfinished ones) are in no quantile; they are counted beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from kvtrace.run import Run

WINDOWS: tuple[str, ...] = ("ttft", "decode", "e2e")

_SUMS = """
SELECT
    "window", bound, class, hop, count(*) AS rows,
    CASE WHEN count(exposed_ns) = count(*) THEN sum(exposed_ns) END::BIGINT AS exposed_ns,
    CASE WHEN count(total_ns) = count(*) THEN sum(total_ns) END::BIGINT AS total_ns,
    CASE WHEN count(hidden_by_compute_ns) = count(*) THEN sum(hidden_by_compute_ns) END::BIGINT AS hidden_by_compute_ns,
    CASE WHEN count(hidden_by_wait_ns) = count(*) THEN sum(hidden_by_wait_ns) END::BIGINT AS hidden_by_wait_ns,
    CASE WHEN count(hidden_by_queue_ns) = count(*) THEN sum(hidden_by_queue_ns) END::BIGINT AS hidden_by_queue_ns,
    CASE WHEN count(hidden_by_load_ns) = count(*) THEN sum(hidden_by_load_ns) END::BIGINT AS hidden_by_load_ns,
    CASE WHEN count(hidden_by_rest_ns) = count(*) THEN sum(hidden_by_rest_ns) END::BIGINT AS hidden_by_rest_ns,
    sum(open_ns)::BIGINT AS open_ns
FROM read_parquet($path)
GROUP BY ALL
ORDER BY "window", bound, class, hop
"""

_REQUESTS = """
SELECT
    "window", bound, count(DISTINCT request_id) AS requests,
    count(DISTINCT request_id) FILTER (WHERE censored) AS censored
FROM read_parquet($path)
GROUP BY ALL
ORDER BY "window", bound
"""

_QUANTILES = """
WITH value AS (
    SELECT "window", class, exposed_ns AS ns
    FROM read_parquet($path)
    WHERE bound = 'exact' AND NOT censored AND hop IS NULL AND exposed_ns > 0
    UNION ALL
    SELECT "window", class, sum(exposed_ns)::BIGINT
    FROM read_parquet($path)
    WHERE bound = 'exact' AND NOT censored AND hop IS NOT NULL AND exposed_ns > 0
    GROUP BY "window", class, request_id
), sorted AS (
    SELECT "window", class, list_sort(list(ns)) AS ns, count(*) AS present FROM value GROUP BY ALL
), measured AS (
    SELECT "window", count(DISTINCT request_id) AS requests
    FROM read_parquet($path)
    WHERE bound = 'exact' AND NOT censored
    GROUP BY ALL
)
SELECT
    "window", class, requests,
    coalesce(ns[greatest(0, ceil(0.50 * requests)::BIGINT - (requests - present))], 0) AS p50_ns,
    coalesce(ns[greatest(0, ceil(0.90 * requests)::BIGINT - (requests - present))], 0) AS p90_ns,
    coalesce(ns[greatest(0, ceil(0.99 * requests)::BIGINT - (requests - present))], 0) AS p99_ns
FROM sorted JOIN measured USING ("window")
ORDER BY "window", class
"""
"""The nth smallest exposed time, the requests without a row standing in front with 0 (list[0] is null)."""


def window_order() -> pl.Expr:
    """Sorts windows as a reader meets them: to first token, decode, end to end."""
    import polars as pl  # noqa: PLC0415 - the module is otherwise SQL

    return pl.col("window").replace_strict(dict(zip(WINDOWS, range(3), strict=True)), default=3)


def sums(run: Run, path: Path) -> pl.DataFrame:
    """One row a (window, bound, class, hop): sums over requests; null where any part was not observed."""
    return run.connection().sql(_SUMS, params={"path": str(path)}).pl()


def requests(run: Run, path: Path) -> pl.DataFrame:
    """One row a (window, bound): how many requests, and how many of them did not finish."""
    return run.connection().sql(_REQUESTS, params={"path": str(path)}).pl()


def quantiles(run: Run, path: Path) -> pl.DataFrame:
    """One row a (window, class): requests measured exactly, and p50, p90, p99 of the exposed time, ns."""
    return run.connection().sql(_QUANTILES, params={"path": str(path)}).pl()
