"""How far a blended answer is from the full one: arithmetic over a few rows of logits at a time.

Logits mean the same whatever is added to a whole row, so that both are compared as log-probabilities:
    lp = x - log(sum(exp(x))),   KL = sum(p (lp - lq)) in nats,   difference = |lp - lq|
All in float64, by torch where it is installed and by numpy elsewhere: the same numbers but for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvtrace.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvtrace.analyses._logits.matrices import Logits, Rows

    Part = Callable[[Rows, Rows], "Sums"]

CHUNK_VALUES = 1 << 21


@dataclass(frozen=True)
class Distance:
    """What a pair shows; null where nothing could be compared. kl and differences only of logits."""

    compared: str | None = None
    positions: int | None = None
    left_out: int | None = None
    top1_agreement: float | None = None
    kl_mean: float | None = None
    kl_max: float | None = None
    logit_diff_mean: float | None = None
    logit_diff_max: float | None = None


class Sums(NamedTuple):
    """Of some rows: how many were compared, and sums and maxima over them."""

    rows: int
    agreeing: int
    kl: float
    kl_max: float
    diff: float
    diffs: int
    diff_max: float


def of_tokens(full: Sequence[int], blended: Sequence[int]) -> Distance:
    """Position by position; what only the longer of the two has disagrees."""
    longest, common = max(len(full), len(blended)), min(len(full), len(blended))
    if not longest:
        return Distance("tokens", 0, 0)
    equal = np.asarray(full[:common], np.int64) == np.asarray(blended[:common], np.int64)
    return Distance("tokens", longest, 0, int(equal.sum()) / longest)


def of_logits(full: Logits, blended: Logits, request_id: str, torch: Any | None) -> Distance:
    """Position by position; what cannot be compared is left out and counted.

    Raises:
        InputError: the vocabularies differ.
    """
    common, longest = min(full.positions, blended.positions), max(full.positions, blended.positions)
    if common and full.vocabulary != blended.vocabulary:
        raise InputError(
            f"{request_id}: its logits have vocabularies of {full.vocabulary} and {blended.vocabulary}."
        )
    if not common or not full.vocabulary:
        return Distance("logits", 0, longest)
    part: Part = _by_numpy if torch is None else lambda a, b: _by_torch(torch, a, b)
    step = max(CHUNK_VALUES // full.vocabulary, 1)
    found = [
        part(full.rows(at, min(at + step, common)), blended.rows(at, min(at + step, common)))
        for at in range(0, common, step)
    ]
    rows, agreeing, diffs = (
        sum(getattr(each, name) for each in found) for name in ("rows", "agreeing", "diffs")
    )
    if not rows:
        return Distance("logits", 0, longest)
    return Distance(
        "logits", rows, longest - rows, agreeing / rows,
        sum(each.kl for each in found) / rows, max(each.kl_max for each in found),
        sum(each.diff for each in found) / diffs, max(each.diff_max for each in found),
    )  # fmt: skip


def _by_numpy(full: Rows, blended: Rows) -> Sums:
    kept = _comparable(full, blended)
    x, y = full[kept], blended[kept]
    if not len(x):
        return Sums(0, 0, 0.0, 0.0, 0.0, 0, 0.0)
    lp, lq = (each - each.max(axis=1, keepdims=True) for each in (x, y))
    lp, lq = (each - np.log(np.exp(each).sum(axis=1, keepdims=True)) for each in (lp, lq))
    allowed = np.isfinite(lp)
    gap = np.where(allowed, np.subtract(lp, lq, where=allowed, out=np.zeros_like(lp)), 0.0)
    kl = np.maximum((np.exp(lp) * gap).sum(axis=1), 0.0)
    gap = np.abs(gap)
    agreeing = int((x.argmax(axis=1) == y.argmax(axis=1)).sum())
    return _summed(len(x), agreeing, kl, gap, allowed)


def _by_torch(torch: Any, full: Rows, blended: Rows) -> Sums:
    kept = _comparable(full, blended)
    x, y = (torch.from_numpy(np.ascontiguousarray(each[kept])) for each in (full, blended))
    if not len(x):
        return Sums(0, 0, 0.0, 0.0, 0.0, 0, 0.0)
    lp, lq = (torch.log_softmax(each, dim=1) for each in (x, y))
    allowed = torch.isfinite(lp)
    gap = torch.where(allowed, lp - lq, torch.zeros_like(lp))
    kl = (lp.exp() * gap).sum(dim=1).clamp(min=0.0)
    gap = gap.abs()
    agreeing = int((x.argmax(dim=1) == y.argmax(dim=1)).sum())
    return _summed(len(x), agreeing, kl, gap, allowed)


def _summed(positions: int, agreeing: int, kl: Any, gap: Any, allowed: Any) -> Sums:
    """Numpy's arrays and torch's tensors have the same words for it."""
    return Sums(
        positions, agreeing, float(kl.sum()), float(kl.max()), float(gap.sum()), int(allowed.sum()),
        float(gap.max()),
    )  # fmt: skip


def _comparable(full: Rows, blended: Rows) -> Any:
    """Rows without NaN or +inf in which both rule out (-inf) the same tokens, and not all."""
    usable = ~(np.isnan(full) | np.isposinf(full) | np.isnan(blended) | np.isposinf(blended)).any(axis=1)
    ruled_out = np.isneginf(full)
    same = (ruled_out == np.isneginf(blended)).all(axis=1)
    return usable & same & ~ruled_out.all(axis=1)
