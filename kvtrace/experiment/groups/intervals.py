"""How far may a number be off: over the runs of a group, or for a quantile inside its only run.

The bootstrap of a quantile needs no resampling. Of n values sorted, the k-th smallest of a resample is at
most the j-th value when k or more of its n draws are: that is binomial, summed by the incomplete beta
function (Efron 1979, section 3; Hutson and Ernst 2000). What resampling would give after infinitely many
draws comes out at once, the same every time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

LEVEL = 0.95


def over_runs(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Student's interval of the mean; of one run there is none."""
    from scipy.special import stdtrit

    count = len(values)
    if count < 2:
        return None, None
    mean = sum(values) / count
    variance = sum((value - mean) ** 2 for value in values) / (count - 1)
    reach = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * math.sqrt(variance / count)
    return mean - reach, mean + reach


def possible(
    low: float | None, high: float | None, unit: str, *, change: bool = False
) -> tuple[float | None, float | None]:
    """What of an interval can be: nothing is below 0, no share above 1; a share changes by 1 at most.

    Of another change no bound is known: the other group's true value is not.
    """
    most = 1.0 if unit == "share" else math.inf
    least = -most if change else 0.0
    return None if low is None else max(low, least), None if high is None else min(high, most)


def of_quantile(
    ordered: NDArray[np.float64], share: float
) -> tuple[float | None, tuple[float | None, float | None]]:
    """A quantile (the smallest value that `share` of all are not above) and its bootstrap interval.

    An end is null where the true quantile may well lie beyond all values seen: of 50 requests nobody knows
    how large the 99th percentile can be.
    """
    from scipy.special import betainc  # scipy.stats takes seconds to import

    count = len(ordered)
    if not count:
        return None, (None, None)
    place = min(count, max(1, math.ceil(count * share - 1e-9)))
    beyond = (1 - LEVEL) / 2
    at_most = betainc(place, count - place + 1, np.arange(1, count + 1) / count)
    low = float(ordered[int(np.searchsorted(at_most, beyond))])
    high = float(ordered[min(count - 1, int(np.searchsorted(at_most, 1 - beyond)))])
    return float(ordered[place - 1]), (
        low if (1 - share) ** count <= beyond else None,
        high if share**count <= beyond else None,
    )
