"""Which class of time grew? A request's mean of each class of the partition, base against head."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._text import CLASS_WORDS
from kvtrace.analyses.exposure import partition
from kvtrace.diff.measuring import has_exact, held, keys
from kvtrace.schema.vocabulary import EXPOSED_TRANSFER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.run import Run

WINDOWS = {"ttft_ns": "ttft", "ledger.ttft_ns": "ttft", "exposed_transfer_ns": "e2e"}
"""Metric -> the window of the partition that it is the length of, or a part of."""

LEAST_SHARE = 0.5
"""A class that explains less than so much of the change is no cause of it."""
_HELD, _HELD_WORDS = "held", "queue: held GPU blocks"
"""The part of queue_capacity that holds are to blame for, where exposed transfer is what changed."""


@dataclass(frozen=True)
class Grown:
    """The class that grew most.

    words: the class and its hop
    mean_ns: head less base of a request's mean, ns
    requests: over how many, of head's runs together where unpaired
    whole: whether these are all that were compared
    """

    words: str
    mean_ns: float
    requests: int
    whole: bool


def grown(window: str, base: Sequence[Run], head: Sequence[Run], paired: pl.DataFrame | None) -> Grown | None:
    """The class of time that grew most; null where it explains less than half of the change.

    The change is that of all classes of the metric together. Null as well where none grew, or no request's
    partition is exact in every run.

    Of the mean over requests of each run, the mean over the runs of a side. Upper bounds and windows whose
    end nobody saw are no measures: such requests are left out.

    Args:
        window: ttft or e2e; of e2e only what is exposed transfer, held blocks among it
        base: one side
        head: the other
        paired: `key`: only these requests; null: each run's own
    """
    if not all(has_exact(run) for run in (*base, *head)):
        return None
    frames = [_exact(run, window) for run in (*base, *head)]
    if paired is not None:
        there = reduce(lambda one, other: one.join(other, on="key", how="semi"), [paired, *frames])
        frames = [frame.join(there, on="key", how="semi") for frame in frames]
    counts = [frame["request_id"].n_unique() for frame in frames]
    if not min(counts):
        return None
    means = pl.concat(
        frame.group_by("class", "hop").agg(mean_ns=pl.col("exposed_ns").sum() / number / weight)
        for frame, number, weight in zip(frames, counts, _weights(base, head), strict=True)
    )
    first = means.group_by("class", "hop").agg(pl.col("mean_ns").sum())
    change = float(first["mean_ns"].sum())
    first = first.sort("mean_ns", "class", "hop", descending=[True, False, False], nulls_last=True).head(1)
    if first.is_empty() or change <= 0 or first["mean_ns"][0] < LEAST_SHARE * change:
        return None
    name, hop, mean_ns = first.row(0)
    words = f"{hop} load exposed" if hop else _HELD_WORDS if name == _HELD else CLASS_WORDS.get(name, name)
    if paired is None:
        return Grown(words, mean_ns, sum(counts[len(base) :]), whole=True)
    return Grown(words, mean_ns, there.height, there.height == paired.height)


def _weights(base: Sequence[Run], head: Sequence[Run]) -> list[float]:
    """What the sum over all runs is to be divided by, run by run, so that it is head's mean less base's."""
    return [-float(len(base))] * len(base) + [float(len(head))] * len(head)


def _exact(run: Run, window: str) -> pl.DataFrame:
    """Rows of the requests whose partition of this window is a measure, with what pairs them."""
    measured = (pl.col("window") == window) & (pl.col("bound") == "exact") & ~pl.col("censored")
    rows = pl.scan_parquet(partition(run)).filter(measured)
    kept = rows.select(
        pl.col("request_id", "class", "hop").cast(pl.String), pl.col("exposed_ns").cast(pl.Float64)
    ).collect()
    if window == "e2e":
        kept = _exposed(kept, held(run))
    return kept.join(keys(run), on="request_id", how="inner")


def _exposed(rows: pl.DataFrame, held: pl.DataFrame) -> pl.DataFrame:
    """What of these rows is exposed transfer, held blocks with it; without requests that lack a part.

    Every request keeps a row, if only with 0 ns: whoever has no exposed transfer counts in the mean.
    """
    unknown = held.filter("unknown").select("request_id")
    rows = rows.join(unknown, on="request_id", how="anti")
    blamed = rows.select("request_id").unique().join(held, on="request_id", how="left").select(
        "request_id", pl.lit(_HELD).alias("class"), pl.lit(None, pl.String).alias("hop"),
        exposed_ns=pl.col("ns").cast(pl.Float64).fill_null(0.0),
    )  # fmt: skip
    return pl.concat([rows.filter(pl.col("class").is_in(EXPOSED_TRANSFER)), blamed])
