"""Which class of time moved? The partition of exposure, a request's mean of each class, base against head."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses._text import CLASS_WORDS, many
from kvtrace.analyses.exposure import partition
from kvtrace.diff.saying import amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.run import Run

WINDOWS = {"ttft_ns": "ttft", "exposed_transfer_ns": "e2e"}
"""Metric -> the window of the partition that it is the length of, or a part of."""

_MEANS = """
    WITH kept AS (
        SELECT request_id, class, hop, exposed_ns FROM read_parquet($path)
        WHERE "window" = $window AND bound = 'exact' AND NOT censored
    )
    SELECT class, hop, sum(exposed_ns)::DOUBLE / (SELECT count(DISTINCT request_id) FROM kept) AS mean_ns,
        (SELECT count(DISTINCT request_id) FROM kept) AS requests
    FROM kept GROUP BY class, hop
"""


def moved(metric: str, base: Sequence[Run], head: Sequence[Run]) -> str | None:
    """The class of time that grew most, as half a sentence; null where no partition is exact on both sides.

    The mean over the requests whose partition is exact, of each run, then over the runs of a side.
    """
    window = WINDOWS.get(metric)
    if window is None:
        return None
    sides = [[_means(run, window) for run in side] for side in (base, head)]
    if any(frame.is_empty() for side in sides for frame in side):
        return None
    before, after = (_mean(side) for side in sides)
    both = before.join(after, on=["class", "hop"], how="full", coalesce=True, nulls_equal=True).fill_null(0.0)
    grown = both.with_columns(moved=pl.col("mean_ns_right") - pl.col("mean_ns"))
    if metric == "exposed_transfer_ns":
        grown = grown.filter(~pl.col("class").is_in(["compute", "queue", "queue_capacity", "other"]))
    first = grown.sort("moved", "class", "hop", descending=[True, False, False]).head(1).to_dicts()
    if not first or first[0]["moved"] <= 0:
        return None
    words = CLASS_WORDS.get(first[0]["class"], first[0]["class"])
    hop = f" {first[0]['hop']}" if first[0]["hop"] else ""
    requests = sum(int(frame["requests"][0]) for frame in sides[1])
    whole = amount(float(grown["moved"].sum()), "ns")
    return (
        f"a request of head takes {whole} on average, {amount(first[0]['moved'], 'ns')} of it {words}{hop} "
        f"({many(requests, 'request')} in all runs of head)"
    )


def _means(run: Run, window: str) -> pl.DataFrame:
    parameters = {"path": str(partition(run)), "window": window}
    return run.connection().sql(_MEANS, params=parameters).pl()


def _mean(side: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """A class of time and hop: the mean of the runs' means; a run without any of it counts with 0."""
    return (
        pl.concat(side).group_by("class", "hop").agg(mean_ns=pl.col("mean_ns").sum() / len(side))
    )  # fmt: skip
