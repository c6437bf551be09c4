"""worse | better | same | inconclusive, and the exit code of many of them."""

from __future__ import annotations

from math import expm1
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvtrace.diff.welch import Bounds

Verdict = Literal["worse", "better", "same", "inconclusive"]
Direction = Literal["lower", "higher"]

PASS, REGRESSION, BAD_INPUT, NOT_COMPARABLE, INCONCLUSIVE = 0, 1, 2, 3, 4
PRECEDENCE = (BAD_INPUT, NOT_COMPARABLE, REGRESSION, INCONCLUSIVE, PASS)
"""Of several codes the first of these is the process's."""


def change(difference: float, *, relative: bool) -> float:
    """A difference as what is reported: of logarithms a relative change (0.05 = +5%), else itself."""
    return expm1(difference) if relative else difference


def judge(
    bounds: Bounds, *, p_worse: float, p_better: float, direction: Direction,
    relative: bool, min_effect: float, alpha: float,
) -> Verdict:  # fmt: skip
    """The verdict of one gate.

    worse: adjusted p <= alpha, and the 95% bound nearer to no change is beyond min_effect, to the bad side.
    better: the same to the good side. same: the whole two-sided interval is inside +-min_effect.

    Args:
        bounds: of head less base, in logarithms where relative
        p_worse: adjusted p against "it did not move to the bad side"
        p_better: adjusted p against "it did not move to the good side"
        direction: which way is good
        relative: whether the bounds are logarithms, and min_effect a relative change
        min_effect: a change that does not matter
        alpha: how often a gate file may fail where nothing changed
    """
    rose = change(bounds.lower(), relative=relative) > min_effect
    fell = change(bounds.upper(), relative=relative) < -min_effect
    bad, good = (rose, fell) if direction == "lower" else (fell, rose)
    if bad and p_worse <= alpha:
        return "worse"
    if good and p_better <= alpha:
        return "better"
    low, high = (change(bound, relative=relative) for bound in bounds.interval())
    return "same" if -min_effect <= low and high <= min_effect else "inconclusive"


def exact(base: Sequence[int | None], head: Sequence[int | None], *, lossy: bool) -> Verdict | None:
    """The verdict of a count that must not move, a number a run; null: some run did not observe it.

    worse: more a run in head than in base; better: fewer. A run with losses never passes: what it lost might
    be among what is counted, so of `lossy` runs only worse is said.
    """
    if not base or not head or None in (*base, *head):
        return None
    before, after = (sum(filter(None, side)) for side in (base, head))
    moved = after * len(base) - before * len(head)
    if moved > 0:
        return "worse"
    if lossy:
        return "inconclusive"
    return "better" if moved < 0 else "same"


def code(verdict: Verdict | None, *, named: bool) -> int:
    """The exit code of one verdict; null (not observed) is neutral unless somebody named the gate."""
    if verdict is None:
        return INCONCLUSIVE if named else PASS
    return {"worse": REGRESSION, "inconclusive": INCONCLUSIVE}.get(verdict, PASS)


def exit_code(codes: Iterable[int]) -> int:
    """The one code of many: 2 > 3 > 1 > 4 > 0; nothing at all is a pass of nothing: 4."""
    found = set(codes)
    return next((each for each in PRECEDENCE if each in found), INCONCLUSIVE)
