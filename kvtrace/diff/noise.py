"""One run a side says nothing about how runs differ: A/A runs, runs of the same thing, say it for them."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

from kvtrace.diff.welch import Bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


def noise_bounds(
    base: NDArray[np.float64], head: NDArray[np.float64], groups: Sequence[NDArray[np.float64]]
) -> Bounds | None:
    """Head less base, with the pooled between-run variance of groups of A/A runs: a t interval.

    The variance is that of each group around its own mean, so that groups may lie at different levels; its
    degrees of freedom are the runs less the groups. Null when no group has two runs.
    """
    degrees = sum(len(group) - 1 for group in groups if len(group) > 0)
    if degrees < 1:
        return None
    spread = sum(float(((group - group.mean()) ** 2).sum()) for group in groups if len(group) > 0)
    error = sqrt(spread / degrees * (1 / len(base) + 1 / len(head)))
    return Bounds(float(head.mean() - base.mean()), error, degrees)


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p of tests whose joint distribution nobody knows (Holm 1979)."""
    adjusted = [1.0] * len(p)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        least = max(least, min(1.0, (len(p) - rank) * p[place]))
        adjusted[place] = least
    return adjusted
