"""Exact permutation of the studentised difference, one-sided, adjusted over many gates.

If nothing changed, which runs are called base and which head is a coin toss: the difference seen must stand
out among those of all C(n+m, n) ways to call n of these runs base. Every gate is asked over the same
relabelings, so that gates which move together are adjusted together: step-down maxT (Westfall and Young,
Resampling-Based Multiple Testing, 1993, algorithm 2.8). With n + m = 10 the smallest p is 1/252.

Studentised: the difference of means over its Welch standard error (with one run on a side, over the pooled
one), so that unequal spreads do not fake a difference. Zero variance: the standard error is never taken below
1e-4 of the gate's largest effect; runs that are all equal have the statistic 0. Ties: a relabeling counts as
at least as extreme when it is within 1e-6 of the statistic seen.
"""

from __future__ import annotations

from itertools import combinations, islice
from math import comb

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]

MOST = 200_000
"""Relabelings; beyond (more than 10+10 runs) a seeded draw of so many, the one seen with them, is asked."""
LEAST_ERROR = 1e-4
TIE = 1e-6


def relabelings(base: int, head: int) -> Labels:
    """Relabeling x run, true where it is called head; the first row is the one seen: base runs, then head."""
    runs = base + head
    total = comb(runs, base)
    labels = np.ones((min(total, MOST), runs), dtype=np.bool_)
    if total <= MOST:
        chosen = np.array(list(combinations(range(runs), base)), dtype=np.intp)
    else:
        order = np.random.default_rng(0).random((MOST, runs)).argsort(axis=1)
        chosen = order[:, :base]
        chosen[0] = range(base)
    np.put_along_axis(labels, chosen, values=False, axis=1)
    return labels


def studentised(effects: Array, labels: Labels) -> Array:
    """Gate x relabeling: mean of head less mean of base, over its standard error.

    Args:
        effects: gate x run; more means worse
        labels: relabeling x run
    """
    centred = effects - effects.mean(axis=1, keepdims=True)
    size = np.abs(centred).max(axis=1, keepdims=True)
    scaled = np.divide(centred, size, out=np.zeros_like(centred), where=size > 0)
    heads = labels.astype(np.float64).T
    m = int(labels[0].sum())
    n = labels.shape[1] - m
    head, head_squares = scaled @ heads, scaled**2 @ heads
    base = scaled.sum(axis=1, keepdims=True) - head
    base_squares = (scaled**2).sum(axis=1, keepdims=True) - head_squares
    spread_head = np.maximum(head_squares - head**2 / m, 0.0)
    spread_base = np.maximum(base_squares - base**2 / n, 0.0)
    if n > 1 and m > 1:
        variance = spread_head / (m * (m - 1)) + spread_base / (n * (n - 1))
    else:
        variance = (spread_head + spread_base) / max(n + m - 2, 1) * (1 / n + 1 / m)
    return (head / m - base / n) / np.maximum(np.sqrt(variance), LEAST_ERROR)


def p_values(statistics: Array) -> Array:
    """A gate: the share of relabelings with at least the statistic of the first."""
    share: Array = (statistics >= _bar(statistics)).mean(axis=1)
    return share


def step_down(statistics: Array) -> Array:
    """A gate: its p adjusted over all gates.

    The largest statistic seen is held against the largest of all gates in each relabeling, the second against
    the largest of all but the first, and so on; no p is below that of a larger statistic.
    """
    order = np.argsort(-statistics[:, 0], kind="stable")
    ranked = statistics[order]
    rivals = np.maximum.accumulate(ranked[::-1], axis=0)[::-1]
    adjusted = np.maximum.accumulate((rivals >= _bar(ranked)).mean(axis=1))
    out = np.empty_like(adjusted)
    out[order] = adjusted
    return out


def smallest_p(base: int, head: int) -> float:
    """The smallest p that so many runs can give."""
    return 1 / min(comb(base + head, base), MOST)


def runs_needed(alpha: float) -> int | None:
    """How many runs a side it takes before p can be at most alpha; null: no number that can be run."""
    return next(islice((n for n in range(1, 1000) if smallest_p(n, n) <= alpha), 1), None)


def _bar(statistics: Array) -> Array:
    """What a relabeling must reach to count."""
    seen = statistics[:, :1]
    bar: Array = seen - TIE * np.maximum(1.0, np.abs(seen))
    return bar
