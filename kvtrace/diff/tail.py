"""The tail gate: did a few requests become much slower, which no mean and no quantile of a run shows?

Base and head runs are taken in pairs, in the order given. A request's ratio head / base, centred on the
median ratio of its pair (a shift of all requests is the other gates' business), is counted beyond 1.8x on
either side:

    faster <--- 1/1.8 ------ median ------ 1.8 ---> slower

If nothing changed both sides are equally likely: a sign test on the counts (scipy.stats.binomtest). Requests
of one run are not independent (one stall slows many of them), so the level is strict (0.001), the excess of
the slower ones must be at least 0.5% of the requests, and most pairs must show one; with a single pair, more
than every pair of A/A runs shows. Only paired requests have ratios: an unpaired tail is never judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BEYOND = 1.8
LEAST_SHARE = 0.005
ALPHA = 0.001
_Z = 1.959964
"""Two-sided 95% of the normal distribution."""


@dataclass(frozen=True)
class Counted:
    """Requests beyond 1.8x of the median ratio, a pair of runs each."""

    slower: tuple[int, ...]
    faster: tuple[int, ...]
    keys: int

    @property
    def requests(self) -> int:
        """Ratios counted: requests times pairs."""
        return self.keys * len(self.slower)

    @property
    def share(self) -> float:
        """Slower less faster ones, of all."""
        return (sum(self.slower) - sum(self.faster)) / self.requests

    def shares(self) -> tuple[float, ...]:
        """The same, a pair."""
        return tuple((up - down) / self.keys for up, down in zip(self.slower, self.faster, strict=True))

    def turned(self) -> Counted:
        """The same with base and head exchanged."""
        return Counted(self.faster, self.slower, self.keys)

    def p_slower(self) -> float:
        """One-sided sign test: are there more slower than faster ones?"""
        from scipy.stats import binomtest

        up, down = sum(self.slower), sum(self.faster)
        return float(binomtest(up, up + down, 0.5, alternative="greater").pvalue) if up + down else 1.0

    def interval(self) -> tuple[float, float]:
        """95% of the share: half a request added to either count (Agresti and Min 2005)."""
        up, down, all_of = sum(self.slower) + 0.5, sum(self.faster) + 0.5, self.requests + 2
        middle = (up - down) / all_of
        reach = _Z * sqrt(max(up + down - (up - down) ** 2 / all_of, 0.0)) / all_of
        return middle - reach, middle + reach


def count(base: NDArray[np.float64], head: NDArray[np.float64]) -> Counted:
    """Count the ratios of pairs of runs.

    Args:
        base: request x run, logarithms
        head: the same requests; runs beyond the fewer of both have no partner and are left out
    """
    pairs = min(base.shape[1], head.shape[1])
    ratios = head[:, :pairs] - base[:, :pairs]
    ratios = ratios - np.median(ratios, axis=0)
    slower, faster = (ratios > log(BEYOND)).sum(axis=0), (ratios < -log(BEYOND)).sum(axis=0)
    return Counted(tuple(slower.tolist()), tuple(faster.tolist()), len(base))


def judge(counted: Counted, noise: Counted | None, *, alpha: float, least_share: float) -> str:
    """Worse, better, same or inconclusive.

    `noise` counts pairs of A/A runs. With a single pair and no noise nothing says what one run alone can do:
    inconclusive. same: the whole interval of the share is inside +-least_share.
    """
    if len(counted.slower) == 1 and noise is None:
        return "inconclusive"
    for word, side in (("worse", counted), ("better", counted.turned())):
        if side.p_slower() <= alpha and side.share >= least_share and _stands_out(side, noise):
            return word
    low, high = counted.interval()
    return "same" if -least_share <= low and high <= least_share else "inconclusive"


def _stands_out(counted: Counted, noise: Counted | None) -> bool:
    shares = counted.shares()
    if len(shares) > 1:
        return sum(share > 0 for share in shares) * 2 > len(shares)
    return noise is not None and shares[0] > max(abs(share) for share in noise.shares())
