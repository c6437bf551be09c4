"""All statistical gates together: effects of runs in, a finding a gate out.

Runs stand in the order base, head, noise. Two runs a side at least: exact permutation, adjusted over all
gates that were observed. One run on a side: with noise runs (A/A, two at least) a t test and Holm, since what
noise runs say has no relabelings; without them, no verdict but inconclusive. A gate whose alpha no p of so
many runs can reach is inconclusive whatever it shows, and names the runs it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.diff import permutation, verdicts
from kvtrace.diff.findings import Finding
from kvtrace.diff.noise import holm, noise_bounds
from kvtrace.diff.saying import because, too_few
from kvtrace.diff.welch import welch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.diff.gates import Gate
    from kvtrace.diff.pairing import Paired
    from kvtrace.diff.welch import Bounds


@dataclass(frozen=True)
class Sides:
    """How many runs stand on either side, and how many A/A runs beside them."""

    base: int
    head: int
    noise: int = 0

    @property
    def runs(self) -> str:
        """As it is printed: 5+5."""
        return f"{self.base}+{self.head}"

    @property
    def by_noise(self) -> bool:
        """Whether noise runs must say how runs differ, and can."""
        return min(self.base, self.head) == 1 and self.noise > 1


@dataclass(frozen=True)
class _Tested:
    bounds: Bounds
    p: float
    p_worse: float
    p_better: float


def judge_gates(gates: Sequence[tuple[Gate, Paired | None]], sides: Sides) -> list[Finding]:
    """A finding a gate, in the order given; what some run did not observe has no verdict."""
    seen = [(gate, paired) for gate, paired in gates if paired is not None]
    tested = iter(_test(seen, sides))
    return [
        Finding(gate.metric, unit=gate.unit, runs=sides.runs, because="not observed in every run")
        if paired is None
        else _finding(gate, paired, sides, next(tested))
        for gate, paired in gates
    ]


def _test(seen: Sequence[tuple[Gate, Paired]], sides: Sides) -> list[_Tested | None]:
    """A gate: its bounds and p; null where one run a side stands alone."""
    if not seen or (sides.base + sides.head < 3 and not sides.by_noise):
        return [None] * len(seen)
    n, both = sides.base, sides.base + sides.head
    signs = np.array([[1.0 if gate.direction == "lower" else -1.0] for gate, _ in seen])
    effects = np.array([paired.effects for _, paired in seen])
    found: list[Bounds | None]
    up: list[float]
    if sides.by_noise:
        found = [noise_bounds(row[:n], row[n:both], [row[both:]]) for row in effects]
        bounds = [each for each in found if each is not None]
        bad = [each if sign > 0 else each.turned() for each, sign in zip(bounds, signs[:, 0], strict=True)]
        up = [each.p_above() for each in bad]
        worse, better = holm(up), holm([each.turned().p_above() for each in bad])
    else:
        found = [welch(row[:n], row[n:both]) for row in effects]
        bounds = [each for each in found if each is not None]
        labels = permutation.relabelings(n, sides.head)
        statistics = permutation.studentised(signs * effects[:, :both], labels)
        up = permutation.p_values(statistics).tolist()
        worse, better = (permutation.step_down(side).tolist() for side in (statistics, -statistics))
    return [_Tested(*each) for each in zip(bounds, up, worse, better, strict=True)]


def _finding(gate: Gate, paired: Paired, sides: Sides, tested: _Tested | None) -> Finding:
    relative = paired.relative
    of_base, of_head = paired.levels[: sides.base], paired.levels[sides.base : sides.base + sides.head]
    levels = [float(side.mean()) for side in (of_base, of_head)]
    base, head = (exp(level) if relative else level for level in levels)
    effects = paired.effects
    moved = float(effects[sides.base : sides.base + sides.head].mean() - effects[: sides.base].mean())
    plain = Finding(
        gate.metric, base, head, verdicts.change(moved, relative=relative), gate.unit,
        runs=sides.runs, paired=paired.paired,
    )  # fmt: skip
    if tested is None:
        return replace(plain, verdict="inconclusive", because=too_few(gate, sides))
    low, high = (verdicts.change(bound, relative=relative) for bound in tested.bounds.interval())
    found = replace(plain, ci_low=low, ci_high=high, p_value=tested.p, p_adjusted=tested.p_worse)
    if not sides.by_noise and permutation.smallest_p(sides.base, sides.head) > gate.alpha:
        return replace(found, verdict="inconclusive", because=too_few(gate, sides))
    verdict = verdicts.judge(
        tested.bounds, p_worse=tested.p_worse, p_better=tested.p_better, direction=gate.direction,
        relative=relative, min_effect=gate.min_effect, alpha=gate.alpha,
    )  # fmt: skip
    found = replace(found, verdict=verdict)
    return replace(found, because=because(found, gate, keys=paired.keys))
