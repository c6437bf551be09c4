"""The question `bandwidth`: how fast is each path, as it was measured?

rows.py     transfers whose copy was seen -> times and bytes; which times include waiting
fitting.py  one transfer at a time: time = latency + bytes / bandwidth, robust, with an interval
sharing.py  several at a time: overlap, and the bytes of the path / the time in which it moved any
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.bandwidth.fitting import alone, ratio
from kvtrace.analyses.bandwidth.rows import PATH, measured, seen
from kvtrace.analyses.bandwidth.sharing import overlap_of, shared
from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    import numpy.typing as npt

    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "tier_from": pl.String,
        "tier_to": pl.String,
        "component": pl.String,
        "transfers": pl.Int64,
        "bytes": pl.Int64,
        "bandwidth_bytes_per_s": pl.Float64,
        "bandwidth_low": pl.Float64,
        "bandwidth_high": pl.Float64,
        "latency_ns": pl.Float64,
        "overlap": pl.Float64,
        "includes_queue": pl.Boolean,
    }
)
OVERLAPPING = 1.1
"""Above this overlap a transfer's own time says what it got of a path that it shared, not what the path can.

Below it at most a fifth of the time has two transfers in it, which the fit, whose breakdown point is 29%,
can bear.
"""
MOST_BYTES = 2**63 - 1


def bandwidth(run: Run, *, confidence: float = 0.95, engine: str | None = None) -> pl.DataFrame:
    """How fast is each path between tiers, as measured and never as on paper?

    A row a path and component; one more, includes_queue, where there are transfers of which only the whole
    was seen, from the asking to the report of the end: what a scheduler or a client sees, an LMCache L2
    (submit to complete), a worker that says so itself (times = submit_to_...), and LMCache's mp.retrieve,
    which begins before it waits for the engine's stream.
    Such times never enter the fit of copies: their row is what the asker got, a lower bound of the path's
    bandwidth, and has no latency.

    Where transfers come one at a time, time = latency + bytes / bandwidth is fitted by Theil and Sen: the
    median of the slopes between all pairs of transfers of different size, which a third of wild times does
    not move and which needs no assumption on how times are spread; latency is the median of what is left.
    Of more than 1,200 transfers so many are taken, evenly by size and time: no drawing by lot. With one
    size only, or fewer than three transfers, bandwidth is the median of bytes / time. Where transfers
    overlap (overlap > 1.1) it is the path's bytes / the union of their times, and no latency is told.

    Counted are transfers of the noun `transfer`, ranks merged. Left out: those that failed, timed out, were
    cancelled or skipped, are open or partial, whose bytes are unknown or 0, whose time is 0, and forecasts;
    the panel says how many. Several engines or devices on one path are one row: ask for one by `engine`.

    Args:
        run: the run
        confidence: of the intervals, between 0.5 and 1
        engine: only transfers of this one

    Columns:
        tier_from: physical medium the state leaves
        tier_to: physical medium the state reaches
        component: the product's own name of the part; null when nobody said
        transfers: how many were measured
        bytes: their bytes; null beyond 64 bits
        bandwidth_bytes_per_s: bytes per second; 1 GiB/s is 2^30. Null when times do not grow with bytes
        bandwidth_low: lower end of its interval, bytes per second: Sen's of the slope, of one size the
            distribution-free one of the median, of overlapping ones a bootstrap over slices of time; null
            where there are too few transfers for one (6)
        bandwidth_high: upper end, bytes per second; null also where the times set no upper bound
        latency_ns: what a transfer of 0 bytes would take, ns; may come out below 0 by noise. Null with one
            size only, with fewer than three transfers, where they overlap and where the time includes a queue
        overlap: sum of durations / their union: 1 = one at a time
        includes_queue: the times are from submit to complete, waiting included

    Raises:
        UsageError: `confidence` is not between 0.5 and 1.
    """
    if not 0.5 <= confidence < 1:
        raise UsageError(f"bandwidth: confidence must be at least 0.5 and below 1, not {confidence}.")
    return speeds(measured(seen(run, engine)), confidence=confidence)


def speeds(transfers: pl.DataFrame, *, confidence: float = 0.95) -> pl.DataFrame:
    """The answer for transfers that were asked for already (rows.py)."""
    rows = []
    for path, mine in transfers.group_by([*PATH, "includes_queue"], maintain_order=True):
        start, end, size = (mine[name].to_numpy() for name in ("start_ns", "end_ns", "bytes"))
        rows.append(_row(path, start, end, size, confidence))
    found = pl.DataFrame(rows, schema=COLUMNS, orient="row")
    return found.sort(*PATH, "includes_queue", nulls_last=True)


def _row(
    path: tuple[Any, ...],
    start: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    size: npt.NDArray[np.int64],
    confidence: float,
) -> tuple[Any, ...]:
    overlap = overlap_of(start, end)
    queued = bool(path[-1])
    if overlap > OVERLAPPING:
        speed = shared(start, end, size, confidence)
    else:
        speed = (ratio if queued else alone)(end - start, size, confidence)
    total = sum(size.tolist())
    told = (speed.bytes_per_s, speed.low, speed.high, speed.latency_ns)
    return (
        *path[:3], len(size), total if total <= MOST_BYTES else None,
        *(value if value is not None and math.isfinite(value) else None for value in told), overlap, queued,
    )  # fmt: skip
