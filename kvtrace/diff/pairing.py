"""Values a request -> one effect a run, over the requests that every run has.

A frame a run with the columns `key` (the workload key, else the id the client sent; null: nobody can pair it)
and `value` (null: not observed). The effect of run r is the mean, over the keys that have a value in every
run, of log x_rk - mean_r log x_rk; a key's own size drops out, so that what is left is the run. Of a metric
that can be 0 it is the difference in the metric's unit, x_rk - mean_r x_rk. No key in every run, or one key
twice within a run (retries): unpaired, and the effect is the run's mean of log x (of x), less that of all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

NOISE = 1e-12
"""Effects below this share of the values are what rounding left, and count as 0."""


@dataclass(frozen=True)
class Paired:
    """The effects of some runs.

    effects: a run, its effect, in logarithms or the metric's unit
    levels: a run, its mean over the same requests, as logarithm or in the metric's unit
    values: a key and run, its value likewise, where paired; else null
    keys: how many requests were compared; where unpaired, of the run that has fewest
    left_out: requests with a value that were not compared, all runs together
    relative: whether these are logarithms
    names: the keys, in the order of `values`; none where unpaired
    """

    effects: NDArray[np.float64]
    levels: NDArray[np.float64]
    values: NDArray[np.float64] | None
    keys: int
    left_out: int
    relative: bool
    names: pl.Series = field(default_factory=lambda: pl.Series(dtype=pl.String))

    @property
    def paired(self) -> bool:
        """Whether the same requests stand on both sides."""
        return self.values is not None


def pair(runs: Sequence[pl.DataFrame], *, relative: bool) -> Paired | None:
    """The effects of these runs; null when one of them observed nothing.

    Relative: a value of 0 has no logarithm, such a request is left out and counted.

    Raises:
        InputError: a value is not a number, or negative where only more than 0 can be.
    """
    frames = [_measured(number, frame, relative=relative) for number, frame in enumerate(runs)]
    if not frames or any(frame.is_empty() for frame in frames):
        return None
    rows = pl.concat(frames)
    keyed = _common(rows, runs) if not any(_repeated(frame) for frame in runs) else rows.clear()
    values = keyed["x"].to_numpy().reshape(-1, len(runs)) if keyed.height else None
    if values is None:
        levels = np.array([frame["x"].to_numpy().mean() for frame in frames])
        keys, left_out = min(frame.height for frame in frames), 0
    else:
        levels = values.mean(axis=0)
        keys, left_out = len(values), rows.height - values.size
    effects = levels - levels.mean() if values is None else _mean_effects(values)
    size = max(1.0 if relative else 0.0, float(np.abs(levels).max()))
    effects = np.where(np.abs(effects) <= NOISE * size, 0.0, effects)
    names = keyed["key"].gather_every(len(runs))
    return Paired(effects, levels, values, keys, left_out, relative, names)


def _mean_effects(values: NDArray[np.float64]) -> NDArray[np.float64]:
    effects: NDArray[np.float64] = (values - values.mean(axis=1, keepdims=True)).mean(axis=0)
    return effects


def _measured(number: int, frame: pl.DataFrame, *, relative: bool) -> pl.DataFrame:
    """One run's values, in logarithms where relative."""
    told = frame.select("key", run=pl.lit(number), x=pl.col("value").cast(pl.Float64)).drop_nulls("x")
    wrong = told.filter(~pl.col("x").is_finite() | (pl.lit(relative) & (pl.col("x") < 0)))
    if wrong.height:
        raise InputError(
            f"run {number + 1}: {wrong['x'][0]} (request {wrong['key'][0]}) cannot be compared; "
            "only finite values can, and none below 0 where a ratio is asked for."
        )
    return told.filter(pl.col("x") > 0).with_columns(pl.col("x").log()) if relative else told


def _repeated(frame: pl.DataFrame) -> bool:
    return bool(frame["key"].drop_nulls().is_duplicated().any())


def _common(rows: pl.DataFrame, runs: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The rows of the keys that every run has, key by key, run by run."""
    return rows.drop_nulls("key").filter(pl.len().over("key") == len(runs)).sort("key", "run")
