"""Was what had been found still there when it was read?

found and selected |== k0 ==|== k1 ==|== k2 ==|
read               |== k0 ==|== k1 ==|== k2 ==|     all of it: yes
                   |== k0 ==|   not found           gone, protected or not: vanished
                   |== k0 ==|   its lock ran out    the time to live: expired
                   |== k0 ==|   an error of the tier, a timeout: nobody knows, unchecked

All of it: what was computed says that the rest was used, or each of its loads ended well and no record of one
can be missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._lost import lost
from kvtrace.analyses.lock_contract import lock_contract

if TYPE_CHECKING:
    from kvtrace.run import Run

_REASONS = """
SELECT request_id, bool_or(reason = 'not_found') AS was_gone, bool_or(reason = 'expired') AS ran_out
FROM span WHERE op = 'load' AND request_id IS NOT NULL AND evidence IS DISTINCT FROM 'predicted'
    AND outcome IN ('failed', 'partial', 'timeout', 'cancelled') GROUP BY request_id
"""
_LOADED = r"(^|, )loaded(,|$)"


def still_there(run: Run, rows: pl.DataFrame, served: str) -> pl.DataFrame:
    """The rows (of `_served` with the verdict of `fallbacks`) with still_there and still_there_basis."""
    connection = run.connection()
    for other in (
        pl.DataFrame(connection.sql(_REASONS).to_arrow_table()),
        _broken(run),
        lost(connection, served, ("load",)).rename({"lost": "lost_load"}),
        lost(connection, served, ("step",), tellers=True).rename({"lost": "lost_step"}),
    ):
        rows = rows.join(other, on="request_id", how="left", maintain_order="left")
    expired = pl.col("broken_lock").str.starts_with("ttl_expired") | pl.col("ran_out")
    gone = pl.col("broken_lock").is_not_null() | pl.col("was_gone") | (pl.col("vanished") > 0)
    both = pl.concat_str(pl.col("verdict"), pl.lit(", "), pl.col("also").fill_null(""))
    told = both.str.contains(_LOADED).fill_null(value=True)
    whole = told & (_used() | _ended_well()).fill_null(value=False)
    answer = (
        pl.when(expired.fill_null(value=False)).then(pl.lit("expired"))
        .when(gone.fill_null(value=False)).then(pl.lit("vanished"))
        .when(whole).then(pl.lit("yes")).otherwise(pl.lit("unchecked"))
    )  # fmt: skip
    return rows.with_columns(still_there=answer).with_columns(still_there_basis=_basis())


def _used() -> pl.Expr:
    """The engine computed nothing of what was selected: whatever became of its loads, all of it was used."""
    by_tokens = (pl.col("loaded_tokens") > 0) & (pl.col("loaded_tokens") >= pl.col("usable"))
    return by_tokens.fill_null(value=False) & pl.col("lost_step").is_null()


def _ended_well(*, seen: bool = False) -> pl.Expr:
    """Every load ended well, and none can be missing; `seen`: of those that were seen."""
    well = (pl.col("good") > 0) & (pl.col("undone") == 0)
    return well if seen else well & pl.col("lost_load").is_null()


def _broken(run: Run) -> pl.DataFrame:
    """(request_id, broken_lock): what the contract says of the first read that failed."""
    found = lock_contract(run, only=("read_within_ttl",)).filter(
        pl.col("status") == "violated", pl.col("request_id").is_not_null()
    )
    return found.sort("time_ns").group_by("request_id", maintain_order=True).agg(
        broken_lock=pl.col("detail").first()
    )  # fmt: skip


def _basis() -> pl.Expr:
    answer, loaded = pl.col("still_there"), pl.col("loaded_tokens")
    reason = pl.concat_str(pl.lit("a load failed: "), pl.col("load_reason").fill_null("no reason given"))
    return (
        pl.when(answer == "expired")
        .then(pl.coalesce("broken_lock", pl.lit("a load failed: its protection had run out")))
        .when(answer == "vanished").then(pl.coalesce("broken_lock", pl.lit("a load failed: not found")))
        .when(answer == "yes").then(
            pl.when(loaded > 0).then(pl.concat_str(loaded.cast(pl.String), pl.lit(" tokens read and used")))
            .otherwise(pl.lit("all loads ended well; how much of them was used is not known")))
        .when(pl.col("loads") == 0).then(
            pl.when(pl.col("lookup_timed_out")).then(pl.lit("the lookup timed out: nothing was read"))
            .otherwise(pl.lit("nothing was read")))
        .when(_ended_well(seen=True) & pl.col("lost_load").is_not_null()).then(
            pl.concat_str(pl.lit("all loads that were seen ended well; "), "lost_load"))
        .when((pl.col("bad") > 0) | (pl.col("partly") > 0)).then(reason)
        .when(pl.col("no_room") > 0).then(
            pl.when(pl.col("good") > 0).then(pl.lit("no room to land for all of it"))
            .otherwise(pl.lit("no room to land: nothing was read")))
        .otherwise(pl.lit("its loads have no end, or do not say what arrived"))
    )  # fmt: skip
