"""Several transfers at a time: what does the path move while it moves anything?

    a  |--------|
    b      |--------|        overlap = (8 + 8) / 12, bandwidth = (bytes of a + of b) / 12
       |---- 12 ----|

A slice of busy time is one observation for the interval. A transfer's bytes are spread evenly over its own
time: bytes(t) is then a line of segments, read off at the ends of the slices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from kvtrace.analyses.bandwidth.fitting import FEWEST, Speed

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers = npt.NDArray[np.int64]

SLICES = 100
A_SLICE = 4
"""Transfers a slice, at least: slices that share every transfer would be one observation told twice."""
RESAMPLES = 2000


def overlap_of(start: Integers, end: Integers) -> float:
    """Sum of durations / their union; 1 where none overlap."""
    begin, stop = busy(start, end)
    return float((end - start).sum(dtype=np.float64) / (stop - begin).sum(dtype=np.float64))


def busy(start: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Starts and ends of the times in which anything moves, in order."""
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    fresh = np.flatnonzero(start[1:] > reach[:-1]) + 1
    return start[np.r_[0, fresh]], reach[np.r_[fresh - 1, len(start) - 1]]


def shared(start: Integers, end: Integers, size: Integers, confidence: float) -> Speed:
    """Bytes of all / union of their times; the interval is a bootstrap over slices of equal busy time."""
    begin, stop = busy(start, end)
    union_ns = float((stop - begin).sum(dtype=np.float64))
    per_s = float(size.sum(dtype=np.float64)) / union_ns * 1e9
    slices = min(SLICES, len(size) // A_SLICE)
    if slices < FEWEST:
        return Speed(per_s)
    zero = start.min()
    times, moved = _moved(start - zero, end - zero, size)
    before = np.r_[0, np.cumsum((stop - begin).astype(np.float64))]  # busy time before each busy period
    cuts = np.linspace(0, union_ns, slices + 1)
    period = np.clip(np.searchsorted(before, cuts, side="right") - 1, 0, len(begin) - 1)
    at = (begin[period] - zero) + (cuts - before[period])
    rates = np.diff(np.interp(at, times, moved)) / (union_ns / slices) * 1e9
    if rates.min() == rates.max():
        return Speed(per_s, per_s, per_s)
    found = stats.bootstrap(
        (rates,), np.mean, confidence_level=confidence, n_resamples=RESAMPLES, method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return Speed(per_s, min(per_s, float(found.low)), max(per_s, float(found.high)))


def _moved(
    start: Integers, end: Integers, size: Integers
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Times, and the bytes moved up to each."""
    rate = size / (end - start)
    times, steps = np.r_[start, end], np.r_[rate, -rate]
    order = np.argsort(times, kind="stable")
    times = times[order].astype(np.float64)
    now = np.cumsum(steps[order])
    return times, np.r_[0.0, np.cumsum(now[:-1] * np.diff(times))]
