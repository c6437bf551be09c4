"""Where the tokens of a request were lost, chain by chain; a part that is not known is null.

|--------------------------- found ---------------------------|
|---- gpu_hit ----|------------ selected ------------|declined|rounding
|    shadowed     |---- loaded ----|vanished|lock|failed|last token
"""

from __future__ import annotations

import polars as pl

LOST = (
    "lost_invisible", "lost_unreported", "lost_shadowed", "lost_rounding", "lost_last_token", "lost_declined",
    "lost_vanished", "lost_lock", "lost_failed", "lost_unexplained",
)  # fmt: skip

_LIMIT = 2**62


def parted(facts: pl.LazyFrame) -> pl.LazyFrame:
    """The facts under the funnel's names, with every lost_* part."""
    named = facts.with_columns(
        gpu_hit_tokens="gpu_hit", visible_tokens="visible", found_tokens="found", selected_tokens="selected",
        loaded_tokens="loaded", moved_tokens="moved", computed_tokens=_computed(),
        beyond_tokens=(pl.col("found") - pl.col("gpu_hit")).clip(0),
    )  # fmt: skip
    return _closed(_unloaded(_unselected(_unseen(named))))


def _computed() -> pl.Expr:
    """Null where the three do not make up the prompt: the admission was cut short, or steps are missing."""
    whole = pl.col("gpu_hit") + pl.col("loaded") + pl.col("computed") == pl.col("prompt_tokens")
    return pl.when(whole.fill_null(value=True)).then("computed")


def _unseen(rows: pl.LazyFrame) -> pl.LazyFrame:
    visible, found = pl.col("visible_tokens"), pl.col("found_tokens")
    covered = pl.when(found.is_not_null() & pl.col("gpu_hit").is_not_null()).then(
        pl.min_horizontal(found, "gpu_hit")
    )
    return rows.with_columns(
        lost_invisible=pl.col("exists_tokens") - visible,
        lost_unreported=visible - found,
        lost_shadowed=pl.when(~pl.col("beyond")).then(covered),
    )


def _unselected(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Beyond - selected: the last token, what fills no block, and what the scheduler would not have."""
    block, gap, rest = pl.col("block"), pl.col("gap"), pl.col("rest")
    is_whole = pl.col("found_tokens") >= pl.col("prompt_tokens")
    last = pl.when(gap < 1).then(0).otherwise(is_whole.cast(pl.Int64))
    tail = pl.when(rest <= 0).then(0).otherwise(rest % block)
    none_selected = pl.col("selected_tokens") == 0
    declined = (
        pl.when(rest <= 0)
        .then(0)
        .otherwise(pl.coalesce(rest - rest % block, pl.when(none_selected).then(rest)))
    )
    return (
        rows.with_columns(gap=pl.col("beyond_tokens") - pl.col("selected_tokens"))
        .with_columns(last_found=pl.when(gap.is_not_null()).then(last))
        .with_columns(rest=gap - pl.col("last_found").fill_null(0))
        .with_columns(
            lost_rounding=pl.when(rest.is_not_null()).then(tail),
            lost_declined=pl.when(rest.is_not_null()).then(declined),
        )
        .with_columns(
            left_unselected=rest - pl.col("lost_rounding").fill_null(0) - pl.col("lost_declined").fill_null(0)
        )
    )  # fmt: skip


def _unloaded(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Selected - loaded: the last token if it was selected, then what loads that went wrong account for."""
    gap, rest = pl.col("short"), pl.col("missing")
    is_whole = pl.col("gpu_hit") + pl.col("selected_tokens") >= pl.col("prompt_tokens")
    untaken = pl.col("last_found").fill_null(0) == 0
    last = pl.when(gap < 1).then(0).otherwise((is_whole & untaken).cast(pl.Int64))
    locked = pl.when(pl.col("refused")).then(_LIMIT).otherwise("unlocked")
    parted = rows.with_columns(short=pl.col("selected_tokens") - pl.col("loaded_tokens")).with_columns(
        last_selected=pl.when(gap.is_not_null()).then(last)
    )
    parted = parted.with_columns(missing=gap - pl.col("last_selected").fill_null(0))
    left = rest
    for name, most in (
        ("lost_vanished", pl.col("vanished")),
        ("lost_lock", locked),
        ("lost_failed", pl.col("broken")),
    ):
        taken = pl.when(rest.is_not_null()).then(pl.min_horizontal(left.clip(0), most))
        parted = parted.with_columns(taken.alias(name))
        left = left - pl.col(name)
    return parted.with_columns(left_unloaded=left)


def _closed(rows: pl.LazyFrame) -> pl.LazyFrame:
    lasts, lefts = ("last_found", "last_selected"), ("left_unselected", "left_unloaded")
    unselected = pl.col("beyond_tokens") - pl.col("loaded_tokens")
    return rows.with_columns(
        lost_last_token=pl.when(pl.any_horizontal(pl.col(lasts).is_not_null())).then(
            pl.sum_horizontal(lasts)
        ),
        lost_unexplained=pl.when(pl.col("selected_tokens").is_null())
        .then(unselected)
        .when(pl.any_horizontal(pl.col(lefts).is_not_null()))
        .then(pl.sum_horizontal(lefts)),
    )
