"""What did its loads cost each request until its first token? Measured where the partition is exact.

exact   exposed load + load_wait + lookup + lock, and the engine's waits for those: the cost, to the ns
upper   the slowest hop at its path's speed + the lookups: an estimate, as wide as that and the exposed parts
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.break_even.loads import MOST_NS

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

WAITED = ("load", "lookup", "lock_wait", "wait")
"""Operations that a request waits for: where one of them was lost, it may have cost more."""
COUNTED = ("load", "load_wait", "lookup", "lock", "wait_load", "wait_lookup", "wait_lock")
"""Classes of the partition that a load costs: what is exposed of a store, or of others' waits, is not."""

_EXPOSED = """
SELECT request_id, any_value(bound) = 'exact' AS exact, any_value(censored) AS censored,
    coalesce(sum(exposed_ns) FILTER (list_contains($counted, class)), 0)::BIGINT AS exposed_ns,
    coalesce(sum(total_ns) FILTER (class = 'lookup'), 0)::BIGINT AS looked_ns,
    coalesce(sum(open_ns) FILTER (list_contains($counted, class)), 0) > 0 AS is_open
FROM read_parquet($partition) WHERE "window" = 'ttft' GROUP BY request_id
"""
UNTOLD = pl.lit(None, pl.Float64)


def exposed(connection: duckdb.DuckDBPyConnection, partition: Path) -> pl.DataFrame:
    """(request_id, exact, censored, exposed_ns, looked_ns, is_open) of every request's ttft window."""
    params = {"counted": list(COUNTED), "partition": str(partition)}
    return pl.DataFrame(connection.sql(_EXPOSED, params=params).to_arrow_table())


def costed(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows with cost_ns, cost_low, cost_high (null: no end known) and `cost_said`, what they rest on."""
    measured = pl.col("exact")
    paid, looked = pl.col("exposed_ns"), pl.col("looked_ns").cast(pl.Float64)
    asked = pl.col("lookup_wait_ns").is_not_null()
    # what is still going on, or nobody saw, or was lost can only have cost more
    ended = ~pl.col("censored") & ~pl.col("is_open") & asked & pl.col("lost").is_null()
    # loads after a preemption are in the same window, and not what was used at the first admission
    other = pl.col("preempted").fill_null(value=False)
    whole = measured & ended & ~other
    guess = pl.when(asked).then(pl.col("pipelined_ns") + looked)
    guess_low, guess_high = pl.col("pipelined_low") + looked, pl.col("pipelined_high") + looked
    timed = pl.col("timed")
    return rows.with_columns(
        cost_ns=pl.when(measured).then(pl.when(timed).then(paid)).otherwise(guess.round().cast(pl.Int64)),
        cost_low=pl.when(other)
        .then(UNTOLD)
        .when(measured)
        .then(paid.cast(pl.Float64))
        .otherwise(pl.min_horizontal(guess_low, paid.cast(pl.Float64))),
        cost_high=pl.when(whole & timed)
        .then(paid.cast(pl.Float64))
        .when(~measured & ended & (guess_high < MOST_NS))
        .then(pl.max_horizontal(guess_high, paid.cast(pl.Float64))),
    ).with_columns(cost_said=_said(measured, asked, other))


def _said(measured: pl.Expr, asked: pl.Expr, other: pl.Expr) -> pl.Expr:
    """What the cost rests on, in words."""
    bound = pl.concat_str(pl.lit("no copy "), pl.col("unmeasured"), pl.lit(" was measured"))
    said = (
        pl.when(measured.is_null()).then(pl.lit("no window to a first token was seen"))
        .when(~pl.col("timed") & measured).then(pl.lit("a load has no times"))
        .when(measured & other).then(pl.lit("cost exposed, with loads after a preemption"))
        .when(measured & pl.col("censored")).then(pl.lit("cost exposed so far: no first token"))
        .when(measured & pl.col("is_open")).then(pl.lit("cost exposed so far: an open interval"))
        .when(measured & asked).then(pl.lit("cost exposed"))
        .when(measured).then(pl.lit("cost exposed, lookups not observed"))
        .when(pl.col("pipelined_ns").is_null())
        .then(pl.coalesce(bound, pl.lit("no load that arrived says its bytes")))
        .when(~asked).then(pl.lit("lookups not observed"))
        .when(pl.col("cost_high").is_not_null()).then(pl.lit("cost from measured bandwidth and lookups"))
        .otherwise(pl.lit("cost from measured bandwidth, its interval not known"))
    )  # fmt: skip
    missing = pl.concat_str(pl.lit(", "), pl.col("lost")).fill_null("")
    return pl.concat_str(said, missing)
