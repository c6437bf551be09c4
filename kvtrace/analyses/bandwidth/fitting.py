"""One transfer at a time: how does the time grow with the bytes?

time |          .  x        slope = 1 / bandwidth: the median over all pairs of different size
     |     .  x             x = wild times, which a median does not follow
     |  .  latency = median of time - slope * bytes
     +------------ bytes
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from typing import Any

    import numpy.typing as npt

MOST = 1200
"""So many transfers are compared pair by pair (720,000 slopes); of more an even choice."""
A_LINE = 3
"""Through two points there is always a line, and nothing that could contradict it."""
FEWEST = 6
"""Fewer give no interval at 95%: of five, all lie on one side of the median 6% of the time."""


@dataclass(frozen=True)
class Speed:
    """A bandwidth with the ends of its interval, bytes/s, and a latency, ns; None or inf: not known."""

    bytes_per_s: float | None = None
    low: float | None = None
    high: float | None = None
    latency_ns: float | None = None


def alone(took_ns: npt.NDArray[np.int64], size: npt.NDArray[np.int64], confidence: float) -> Speed:
    """Theil and Sen's line through (bytes, ns); where no line can be seen, the median of bytes / time."""
    if size.min() == size.max() or len(size) < A_LINE:
        return ratio(took_ns, size, confidence)
    chosen = even_choice(took_ns, size)
    some_ns, some = took_ns[chosen].astype(np.float64), size[chosen].astype(np.float64)
    with np.errstate(invalid="ignore"):  # few sizes and equal times: scipy's variance is then below 0
        line = stats.theilslopes(some_ns, some, alpha=confidence)
    is_told = len(took_ns) >= FEWEST and np.isfinite([line.low_slope, line.high_slope]).all()
    if line.slope <= 0:
        known = is_told and line.high_slope > 0
        return Speed(None, 1e9 / line.high_slope if known else None)
    low = high = None
    if is_told:
        low = 1e9 / line.high_slope
        high = 1e9 / line.low_slope if line.low_slope > 0 else None
    return Speed(1e9 / line.slope, low, high, float(np.median(some_ns - line.slope * some)))


def ratio(took_ns: npt.NDArray[np.int64], size: npt.NDArray[np.int64], confidence: float) -> Speed:
    """The median of bytes / time and its distribution-free interval (order statistics)."""
    speeds = size.astype(np.float64) / took_ns * 1e9
    middle = float(np.median(speeds))
    if len(speeds) < FEWEST:
        return Speed(middle)
    interval: Any = stats.quantile_test(speeds, q=middle, p=0.5).confidence_interval(confidence)
    return Speed(middle, float(interval.low), float(interval.high))


def even_choice(
    took_ns: npt.NDArray[np.int64], size: npt.NDArray[np.int64], most: int = MOST
) -> npt.NDArray[np.intp]:
    """At most so many transfers: of each size as many as there is room for, evenly by their time.

    Sizes that few transfers have all stay, or the line would lose the ends it stands on; of more sizes than
    `most`, evenly many of them. A choice by rank keeps the spread of the times and is the same in any order.
    """
    order = np.lexsort((took_ns, size))
    if len(order) <= most:
        return order
    _, first, many = np.unique(size[order], return_index=True, return_counts=True)
    if len(many) > most:
        picked = _even(np.array([len(many)]), np.array([most]))
        first, many = first[picked], many[picked]
    room = np.minimum(many, _cap(many, most))
    return np.asarray(order[_even(many, room) + np.repeat(first, room)])


def _cap(many: npt.NDArray[np.intp], most: int) -> int:
    """The largest number a size such that all of them together are at most `most`."""
    low, high = 1, int(many.max())
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if np.minimum(many, middle).sum() <= most else (low, middle - 1)
    return low


def _even(many: npt.NDArray[np.intp], room: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
    """For every group `room` places of `many`, one in the middle of each of `room` equal parts."""
    turn = np.arange(room.sum()) - np.repeat(np.cumsum(room) - room, room)
    places: npt.NDArray[np.intp] = (2 * turn + 1) * np.repeat(many, room) // (2 * np.repeat(room, room))
    return places
