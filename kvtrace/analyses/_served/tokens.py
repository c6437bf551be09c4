"""The tokens that verdicts and funnel share: what was usable, what was loaded, what was computed again."""

from __future__ import annotations

from typing import TypeVar

import polars as pl

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)


def measured(facts: Frame) -> Frame:
    """The facts, with the tokens that the verdicts and the funnel stand on.

    usable: what could be used of what was selected. Of a prompt that is found whole the last token is
    computed all the same.
    """
    beyond = pl.col("prompt_tokens") - pl.col("gpu_hit") - 1
    usable = pl.min_horizontal("selected", pl.when(beyond < 0).then(0).otherwise(beyond))
    usable = pl.when(pl.col("selected").is_not_null()).then(usable)
    lost = (pl.col("usable") - pl.col("loaded")).clip(0)
    known = facts.with_columns(usable=usable, loaded=pl.col("loaded").clip(0))
    return known.with_columns(
        expected_tokens=pl.coalesce("selected", "found"), recomputed_tokens=lost + pl.col("later")
    )
