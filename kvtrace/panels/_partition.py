"""The cached partition, summed up where it lies: a run of a million requests has 18 million rows in it.

Everything that comes back is small. A request has a row of a class only where the class took part, so
for requests whose bound is exact a row that is absent is a measured 0, and the quantiles count it.
Upper bounds and censored requests (unfinished ones) are in no quantile; they are counted beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

    from kvtrace.run import Run

WINDOWS: tuple[str, ...] = ("ttft", "decode", "e2e")

_SUMS = """
SELECT
    "window", bound, class, hop, count(*) AS rows, sum(open_ns)::DOUBLE AS open_ns,
    CASE WHEN count(exposed_ns) = count(*) THEN sum(exposed_ns) END::DOUBLE
        AS exposed_ns,
    CASE WHEN count(total_ns) = count(*) THEN sum(total_ns) END::DOUBLE
        AS total_ns,
    CASE WHEN count(hidden_by_compute_ns) = count(*) THEN sum(hidden_by_compute_ns) END::DOUBLE
        AS hidden_by_compute_ns,
    CASE WHEN count(hidden_by_wait_ns) = count(*) THEN sum(hidden_by_wait_ns) END::DOUBLE
        AS hidden_by_wait_ns,
    CASE WHEN count(hidden_by_queue_ns) = count(*) THEN sum(hidden_by_queue_ns) END::DOUBLE
        AS hidden_by_queue_ns,
    CASE WHEN count(hidden_by_load_ns) = count(*) THEN sum(hidden_by_load_ns) END::DOUBLE
        AS hidden_by_load_ns,
    CASE WHEN count(hidden_by_rest_ns) = count(*) THEN sum(hidden_by_rest_ns) END::DOUBLE
        AS hidden_by_rest_ns
FROM read_parquet($path)
GROUP BY ALL
ORDER BY "window", bound, class, hop
"""

_REQUESTS = """
WITH marked AS (
    SELECT bit_or(
        CASE "window" WHEN 'ttft' THEN 1 WHEN 'decode' THEN 16 ELSE 256 END
        * CASE bound WHEN 'exact' THEN 1 ELSE 4 END * CASE WHEN censored THEN 2 ELSE 1 END
    ) AS mark
    FROM read_parquet($path) GROUP BY request_id
), counted AS (
    SELECT mark, count(*) AS requests FROM marked GROUP BY mark
)
SELECT
    w.name AS "window", b.name AS bound,
    sum(requests) FILTER (WHERE mark & (w.bit * b.bit * 3) > 0)::BIGINT AS requests,
    coalesce(sum(requests) FILTER (WHERE mark & (w.bit * b.bit * 2) > 0), 0)::BIGINT AS censored
FROM counted,
    (VALUES ('ttft', 1), ('decode', 16), ('e2e', 256)) w(name, bit),
    (VALUES ('exact', 1), ('upper', 4)) b(name, bit)
GROUP BY ALL
HAVING sum(requests) FILTER (WHERE mark & (w.bit * b.bit * 3) > 0) > 0
ORDER BY "window", bound
"""
"""A request is one row of marks, four bits a window: exact, exact and censored, upper, upper and censored."""

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
    SELECT unnest($measured, recursive := true)
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

_BOUNDS = """
SELECT request_id, any_value(bound) AS bound FROM read_parquet($path)
WHERE "window" = $window AND list_contains($requests, request_id)
GROUP BY request_id
ORDER BY request_id
"""
"""A request has one bound a window."""


def window_order() -> pl.Expr:
    """Sorts windows as a reader meets them: to first token, decode, end to end."""
    import polars as pl

    return pl.col("window").replace_strict(dict(zip(WINDOWS, range(3), strict=True)), default=3)


def sums(run: Run, path: Path) -> pl.DataFrame:
    """One row a (window, bound, class, hop): sums over requests; null where any part was not observed."""
    return _answer(run, _SUMS, path=str(path))


def requests(run: Run, path: Path) -> pl.DataFrame:
    """One row a (window, bound): how many requests, and how many of them did not finish."""
    return _answer(run, _REQUESTS, path=str(path))


def quantiles(run: Run, path: Path, counted: pl.DataFrame) -> pl.DataFrame:
    """One row a (window, class): requests measured exactly, and p50, p90, p99 of the exposed time, ns."""
    measured = [
        {"window": row["window"], "requests": row["requests"] - row["censored"]}
        for row in counted.iter_rows(named=True)
        if row["bound"] == "exact"
    ] or [{"window": "", "requests": 0}]
    return _answer(run, _QUANTILES, path=str(path), measured=measured)


def bounds(run: Run, path: Path, window: str, requests: Sequence[str]) -> pl.DataFrame:
    """One row a request that has this window: whether its parts are exact or upper bounds."""
    return _answer(run, _BOUNDS, path=str(path), window=window, requests=list(requests))


def _answer(run: Run, query: str, **params: object) -> pl.DataFrame:
    frame: pl.DataFrame = run.connection().sql(query, params=params).pl()
    return frame
