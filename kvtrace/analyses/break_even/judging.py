"""Cost and estimate side by side.

cost      |==|                       |==|                  |=====|
estimate        |======|     |====|                    |======|
          worth              not_worth               unclear
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.analyses._text import count, duration, many

if TYPE_CHECKING:
    from kvtrace.analyses.break_even.recompute import Recompute

_TO_NS = 1000
"""An estimate is told to the microsecond: further digits would be those of the solver."""
MOST_NS = 2.0**62
_TOLD = [
    "cost_said", "engine", "used", "handoffs", "recompute_low", "recompute_high", "unmeasured", "exact",
]  # fmt: skip


def estimated(
    rows: pl.DataFrame, lines: dict[str, Recompute], most_tokens: dict[str, int], confidence: float
) -> pl.DataFrame:
    """The rows with recompute_ns, recompute_low and recompute_high, ns; null where not known."""
    used = pl.when(pl.col("handoffs") == 0).then("loaded_tokens")
    rows = rows.with_columns(used=used)
    wanted = rows.filter(pl.col("used") > 0, pl.col("gpu_hit_tokens") >= 0)
    key = ["engine", "gpu_hit_tokens", "used", "computed_tokens"]
    asked = wanted.select(key).filter(pl.col("engine").is_in(list(lines))).unique().sort(key)
    parts = [
        _estimate(mine, lines[str(engine)], most_tokens.get(str(engine)), confidence)
        for (engine,), mine in asked.group_by("engine", maintain_order=True)
    ]
    nobody = asked.clear().with_columns(
        pl.lit(None, pl.Float64).alias(name) for name in ("guess", "guess_low", "guess_high")
    )
    found = pl.concat([nobody, *parts])
    none = pl.col("used") == 0
    known = rows.join(found, on=key, how="left", nulls_equal=True, maintain_order="left")
    return known.with_columns(
        pl.when(none).then(0.0).otherwise(_a_time(guess)).alias(name)
        for name, guess in (
            ("recompute_ns", "guess"), ("recompute_low", "guess_low"), ("recompute_high", "guess_high")
        )
    )  # fmt: skip


def _a_time(name: str) -> pl.Expr:
    return pl.when(pl.col(name) < MOST_NS).then((pl.col(name) / _TO_NS).round() * _TO_NS)


def _estimate(mine: pl.DataFrame, line: Recompute, most: int | None, confidence: float) -> pl.DataFrame:
    """Estimates for (gpu hit, used, computed) of one engine.

    Steps more = those that its tokens would have filled beyond the ones that the rest of the prompt needs;
    not counted where the limit of a step is not known.
    """
    hit, used = (mine[name].to_numpy().astype(np.float64) for name in ("gpu_hit_tokens", "used"))
    rest = mine["computed_tokens"].fill_null(1).clip(1).to_numpy().astype(np.float64)
    more = np.zeros(len(used)) if most is None else np.ceil((used + rest) / most) - np.ceil(rest / most)
    told = np.c_[more, used, used * (hit + used / 2)]
    ends = line.interval(told, confidence)
    guess = line.estimate(told)
    low, high = (guess * np.nan, guess * np.nan) if ends is None else ends
    return mine.with_columns(
        pl.Series("guess", guess), pl.Series("guess_low", low).fill_nan(None),
        pl.Series("guess_high", high).fill_nan(None),
    )  # fmt: skip


def judged(
    rows: pl.DataFrame, lines: dict[str, Recompute], most_tokens: dict[str, int], confidence: float
) -> pl.DataFrame:
    """The rows with the columns of the question."""
    moved, tokens, used = (pl.col(name).cast(pl.Int128) for name in ("moved_bytes", "moved_tokens", "used"))
    useful = (
        pl.when(pl.col("used") == 0).then(0)
        .when((pl.col("moved_tokens") > 0) & (pl.col("used") > 0))
        .then(pl.min_horizontal(moved, used * moved // tokens))
    )  # fmt: skip
    worth = pl.col("cost_high") < pl.col("recompute_low")
    not_worth = pl.col("cost_low") > pl.col("recompute_high")
    estimate = pl.col("recompute_ns").cast(pl.Int64)
    told = rows.with_columns(
        useful_bytes=useful.cast(pl.Int64, strict=False),
        load_lower_bound_pipelined_ns=pl.col("pipelined_ns").round().cast(pl.Int64, strict=False),
        load_lower_bound_serial_ns=pl.col("serial_ns").round().cast(pl.Int64, strict=False),
        recompute_estimate_ns=estimate,
        used_tokens="used",
        saved_ns=estimate - pl.col("cost_ns"),
        verdict=pl.when(worth).then(pl.lit("worth")).when(not_worth).then(pl.lit("not_worth"))
        .otherwise(pl.lit("unclear")),
    )  # fmt: skip
    return told.join(
        _said(told, lines, most_tokens, confidence), on=_TOLD, how="left", nulls_equal=True,
        maintain_order="left",
    )  # fmt: skip


def _said(
    rows: pl.DataFrame, lines: dict[str, Recompute], most_tokens: dict[str, int], confidence: float
) -> pl.DataFrame:
    """`basis` of every combination of what it tells: far fewer than requests."""
    kinds = rows.select(_TOLD).unique()
    said = []
    for row in kinds.iter_rows(named=True):
        estimate_said = _estimate_said(row, lines, most_tokens.get(row["engine"], math.inf), confidence)
        said.append(f"{row['cost_said']}; {estimate_said}{_bound_said(row)}")
    return kinds.with_columns(basis=pl.Series(said, dtype=pl.String))


def _estimate_said(
    row: dict[str, object], lines: dict[str, Recompute], most_tokens: float, confidence: float
) -> str:
    """What the estimate rests on, or why there is none; a step computes at most `most_tokens`."""
    used, line = row["used"], lines.get(str(row["engine"]))
    if used is None:
        return "a handoff came with it" if row["handoffs"] else "how much of it was used is not known"
    if used == 0:
        return "nothing of it was used"
    if line is None:
        return "no estimate: too few prefill steps of different sizes"
    low, high = row["recompute_low"], row["recompute_high"]
    if not isinstance(low, float) or not isinstance(high, float):
        told = f"estimate without error from {many(line.steps, 'prefill step')}"
    else:
        told = (
            f"computing takes {duration(low)} to {duration(high)} ({100 * confidence:.4g} %), "
            f"by {many(line.steps, 'prefill step')}"
        )
    if isinstance(used, int) and used > line.largest and not most_tokens <= line.largest:
        told += f", extrapolated from at most {count(line.largest)} tokens a step"
    return told


def _bound_said(row: dict[str, object]) -> str:
    """Why its loads have no lower bound."""
    path = row["unmeasured"]
    return "" if path is None or not row["exact"] else f"; no bound: no copy {path} was measured"
