"""How far did each request move, and which of them carry the change?

    growth of a request      ----0----|----mean/2----|--------->
    what noise shrinks by    <---|q99 of the shrinks mirrored----|   carriers lie beyond both bars

If nothing but noise moved a request it may as well shrink as grow: the 99th percentile of what others shrank
by is how far noise reaches. Carriers are named only when their growth, less what others shrank by beyond the
same bars, is at least half of the change: the two ends of noise cancel, however small the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

NOISE_SHARE = 0.99
LEAST_CARRIED = 0.5


def paired(base: Sequence[pl.DataFrame], head: Sequence[pl.DataFrame]) -> pl.DataFrame | None:
    """(key, base, head): each side's mean, of requests with one value in every run; null: there are none."""
    runs = [*base, *head]
    if any(frame["key"].drop_nulls().is_duplicated().any() for frame in runs):
        return None
    rows = pl.concat(
        frame.select("key", value=pl.col("value").cast(pl.Float64), of_base=pl.lit(number < len(base)))
        for number, frame in enumerate(runs)
    ).drop_nulls()
    means = rows.group_by("key").agg(
        base=pl.col("value").filter("of_base").mean(), head=pl.col("value").filter(~pl.col("of_base")).mean(),
        runs=pl.len(),
    )  # fmt: skip
    kept = means.filter(pl.col("runs") == len(runs)).drop("runs").sort("key")
    return kept if kept.height else None


def moves(means: pl.DataFrame) -> pl.DataFrame:
    """(key, moved): head less base, in the metric's unit."""
    return means.select("key", moved=pl.col("head") - pl.col("base"))


def shifts(
    base: Sequence[pl.DataFrame], head: Sequence[pl.DataFrame], both: pl.DataFrame | None
) -> tuple[float, float]:
    """Head less base of the mean and of the 90th percentile; a side's is the mean of its runs'.

    Args:
        base: one side's values
        head: the other's
        both: `key`: over these requests; null: over each run's own
    """
    told = [
        [_values(frame if both is None else frame.join(both, on="key", how="semi")) for frame in side]
        for side in (base, head)
    ]
    means, tenths = (
        [float(np.mean([measure(values) for values in side])) for side in told]
        for measure in (np.mean, lambda values: np.quantile(values, 0.9))
    )
    return means[1] - means[0], tenths[1] - tenths[0]


def _values(frame: pl.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return frame["value"].drop_nulls().cast(pl.Float64).to_numpy()


def carriers(moved: pl.Series) -> pl.Series | None:
    """Which of these requests carry the growth; null where no set of them does."""
    total = float(moved.sum())
    if total <= 0:
        return None
    shrunk = (-moved).filter(moved < 0)
    noise = float(np.quantile(shrunk.to_numpy(), NOISE_SHARE)) if shrunk.len() else 0.0
    bar = max(total / moved.len() / 2, noise)
    found = moved > bar
    carried = float(moved.filter(found | (moved < -bar)).sum())
    return found if carried >= LEAST_CARRIED * total else None
