"""The tail gate: did a few requests become much slower, which no mean and no quantile of a run shows?

A request's ratio head / base, centred on the median of all ratios (a shift of all requests is the other
gates' business), is counted beyond 1.8x on either side:

    faster <--- 1/1.8 ------ median ------ 1.8 ---> slower

If nothing changed both sides are equally likely: a sign test on the counts (scipy.stats.binomtest). The
ratios are taken twice, and the smaller p is doubled: by request, between the medians over the runs of either
side, which finds the same requests slow in most head runs; and by pair, between each head run and its base
run in the order given, which finds other requests slow in every run.

Requests of one run are not independent (one stall slows many of them), so the level is strict (0.002), the
excess of the slower ones must be at least 0.5% of the ratios, and by pair most pairs must show one; with a
single pair, more than every pair of A/A runs shows. Only paired requests have ratios: an unpaired tail is
never judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log, sqrt
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvtrace.diff.verdicts import Verdict

BEYOND = 1.8
LEAST_SHARE = 0.005
ALPHA = 0.002
_Z = 1.959964
"""Two-sided 95% of the normal distribution."""


@dataclass(frozen=True)
class Counted:
    """Requests beyond 1.8x of the median ratio, an entry a set of ratios (a pair of runs, or one)."""

    slower: tuple[int, ...]
    faster: tuple[int, ...]
    keys: int

    @property
    def requests(self) -> int:
        """All ratios."""
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


@dataclass(frozen=True)
class Tails:
    """The two counts of two sets of runs."""

    by_pair: Counted
    by_request: Counted

    def turned(self) -> Tails:
        """The same with base and head exchanged."""
        return Tails(self.by_pair.turned(), self.by_request.turned())

    def p_slower(self) -> float:
        """The smaller p of both, doubled; of one pair both are one."""
        single = len(self.by_pair.slower) == 1
        return self.plainer().p_slower() if single else min(1.0, 2 * self.plainer().p_slower())

    def plainer(self) -> Counted:
        """The count that shows slower ones more plainly."""
        return min(self.by_pair, self.by_request, key=Counted.p_slower)


def count(base: NDArray[np.float64], head: NDArray[np.float64]) -> Tails:
    """Count the ratios, by pair and by request.

    Args:
        base: request x run, logarithms
        head: the same requests; runs beyond the fewer of both have no partner and are left out: the median
            of more runs strays less, and would count fewer
    """
    pairs = min(base.shape[1], head.shape[1])
    base, head = base[:, :pairs], head[:, :pairs]
    by_request = np.median(head, axis=1, keepdims=True) - np.median(base, axis=1, keepdims=True)
    return Tails(_counted(head - base), _counted(by_request))


def requests_needed(least_share: float) -> int:
    """The fewest requests a run of which, where none is slower or faster, it can be said: the same."""
    return max(ceil(_Z / least_share) - 2, 1) if least_share > 0 else 1


def slow(base: NDArray[np.float64], head: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which requests the plainer count calls slower: between the medians over runs, or in any pair."""
    pairs = min(base.shape[1], head.shape[1])
    base, head = base[:, :pairs], head[:, :pairs]
    tails, ratios = count(base, head), head - base
    if tails.plainer() is tails.by_request:
        ratios = np.median(head, axis=1, keepdims=True) - np.median(base, axis=1, keepdims=True)
    return np.asarray((ratios - np.median(ratios, axis=0) > log(BEYOND)).any(axis=1))


def _counted(ratios: NDArray[np.float64]) -> Counted:
    centred = ratios - np.median(ratios, axis=0)
    slower, faster = (centred > log(BEYOND)).sum(axis=0), (centred < -log(BEYOND)).sum(axis=0)
    return Counted(tuple(slower.tolist()), tuple(faster.tolist()), len(ratios))


def judge(tails: Tails, noise: Counted | None, *, alpha: float, least_share: float) -> Verdict:
    """Worse, better, same or inconclusive.

    `noise` counts pairs of A/A runs. With a single pair and no noise nothing says what one run alone can do:
    inconclusive. same: the whole intervals of both shares are inside +-least_share.
    """
    if len(tails.by_pair.slower) == 1 and noise is None:
        return "inconclusive"
    if _worse(tails, noise, alpha, least_share):
        return "worse"
    if _worse(tails.turned(), noise, alpha, least_share):
        return "better"
    bounds = (*tails.by_pair.interval(), *tails.by_request.interval())
    return "same" if max(map(abs, bounds)) <= least_share else "inconclusive"


def _worse(tails: Tails, noise: Counted | None, alpha: float, least_share: float) -> bool:
    both = [tails.by_request] if len(tails.by_pair.slower) > 1 else []
    doubled = len(both) + 1
    if _stands_out(tails.by_pair, noise):
        both.append(tails.by_pair)
    return any(doubled * each.p_slower() <= alpha and each.share >= least_share for each in both)


def _stands_out(counted: Counted, noise: Counted | None) -> bool:
    shares = counted.shares()
    if len(shares) > 1:
        return sum(share > 0 for share in shares) * 2 > len(shares)
    return noise is not None and shares[0] > max(abs(share) for share in noise.shares())
