"""How far did the mean move? Welch's bounds: two groups of runs, each with a spread of its own."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LEVEL = 0.95


@dataclass(frozen=True)
class Bounds:
    """A difference, its standard error and the degrees of freedom of that."""

    difference: float
    error: float
    degrees: float

    def lower(self) -> float:
        """One-sided: the difference is larger than this, 95%."""
        return self.difference - self._reach(LEVEL)

    def upper(self) -> float:
        """One-sided: the difference is smaller than this, 95%."""
        return self.difference + self._reach(LEVEL)

    def interval(self) -> tuple[float, float]:
        """Two-sided, 95%."""
        reach = self._reach((1 + LEVEL) / 2)
        return self.difference - reach, self.difference + reach

    def turned(self) -> Bounds:
        """Base less head instead."""
        return Bounds(-self.difference, self.error, self.degrees)

    def p_above(self) -> float:
        """One-sided p against "it did not rise"; 1 where nothing moved and nothing varies."""
        from scipy.special import stdtr

        if self.error == 0:
            return 0.0 if self.difference > 0 else 1.0
        return float(stdtr(self.degrees, -self.difference / self.error))

    def _reach(self, level: float) -> float:
        from scipy.special import stdtrit

        return self.error * float(stdtrit(self.degrees, level)) if self.error > 0 else 0.0


def welch(base: NDArray[np.float64], head: NDArray[np.float64]) -> Bounds | None:
    """Head less base with Welch and Satterthwaite's degrees of freedom.

    With one run on a side its spread is taken from the other side (Student's pooled error); null when neither
    side has two.
    """
    n, m = len(base), len(head)
    difference = float(head.mean() - base.mean())
    if n + m < 3:
        return None
    if min(n, m) == 1:
        spread = float(((base - base.mean()) ** 2).sum() + ((head - head.mean()) ** 2).sum())
        return Bounds(difference, sqrt(spread / (n + m - 2) * (1 / n + 1 / m)), n + m - 2)
    of_base, of_head = float(base.var(ddof=1)) / n, float(head.var(ddof=1)) / m
    both = of_base + of_head
    if both == 0:
        return Bounds(difference, 0.0, n + m - 2)
    share_base, share_head = of_base / both, of_head / both  # squares of tiny variances would be lost
    degrees = 1 / (share_base**2 / (n - 1) + share_head**2 / (m - 1))
    return Bounds(difference, sqrt(both), degrees)
