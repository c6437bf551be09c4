"""Quantiles of a prediction, and how far a repeat of the run may lie from them by its own spread.

A quantile is a request's own value: the smallest that at least this share of the requests does not exceed
(nearest rank). Of n requests it is the k-th smallest, k = ceil(share * n); that of a repeat, drawn from the
same requests with replacement, is the ceil(n * U)-th with U ~ Beta(k, n - k + 1) (order statistics of a
bootstrap, without drawing). Two repeats differ by at most w in `confidence` of all pairs:

    low  = quantile of the lowest replays  - w          w of the predicted values
    high = quantile of the highest replays + w
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from kvtrace.analyses.bandwidth.fitting import FEWEST

if TYPE_CHECKING:
    from kvtrace.analyses.exposure.layers import Ints

SHARES = (0.5, 0.9, 0.99)
POINTS = 400
"""So many equally likely repeats stand for all: 160,000 pairs."""


def quantile(ordered: Ints, share: float) -> int:
    """The value at nearest rank of values in order."""
    return int(ordered[_rank(ordered.size, share) - 1])


def spread(ordered: Ints, share: float, confidence: float) -> int | None:
    """By how much the quantile of two repeats differs at most, in `confidence` of them, ns.

    None of fewer than six values, which say nothing of their spread, and of a quantile beyond which none
    lies: the largest that was seen does not say how large the next one gets.
    """
    size = ordered.size
    if size < FEWEST or size * (1 - share) < 1 - 1e-9:
        return None
    rank = _rank(size, share)
    turn = (np.arange(POINTS) + 0.5) / POINTS
    place = np.ceil(size * stats.beta.ppf(turn, rank, size - rank + 1)).astype(np.int64)
    found = ordered[np.clip(place, 1, size) - 1]
    apart = np.abs(found[:, None] - found[None, :])
    return int(np.quantile(apart, confidence, method="inverted_cdf"))


def interval(
    low: Ints, predicted: Ints, high: Ints, share: float, confidence: float
) -> tuple[int, int] | None:
    """Both ends for the quantile of a repeat, ns, the lower at least 0; values need not be in order."""
    width = spread(np.sort(predicted), share, confidence)
    if width is None:
        return None
    return max(0, quantile(np.sort(low), share) - width), quantile(np.sort(high), share) + width


def _rank(size: int, share: float) -> int:
    return max(1, math.ceil(share * size - 1e-9))
