"""What would computing the loaded tokens have taken? Fitted from the prefill steps of the same engine.

    time of a step = fixed + per token * tokens + per pair * work          all three at least 0

by the median regression (least absolute deviations) of Koenker and Bassett, solved as the linear program of
its dual by scipy (HiGHS): half of the steps take longer than the line says, and wild ones do not move it.
Tokens that were loaded behind a GPU hit would have been computed with the rest of the prompt: they add
their tokens and their work to its steps, and `fixed` only for the steps that there would have been more.

The error is that of a single prediction: the line is fitted to resampled steps again and again (bootstrap
over pairs), and each line is told together with how far a step was from it (the ratio of both).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import eye_array, kron

from kvtrace.analyses.bandwidth.fitting import FEWEST, even_choice

if TYPE_CHECKING:
    import numpy.typing as npt
    import polars as pl

    Floats = npt.NDArray[np.float64]

MOST = 300
"""So many steps are fitted; of more an even choice by tokens and time."""
RESAMPLES = 200
A_LINE = 3
"""Through two steps there is always a line."""
_FIXED_AND_TOKENS = [0, 1]
_ALL = [0, 1, 2]
_BLOCK = 10_000
_VARIABLES = 2000


@dataclass(frozen=True)
class Recompute:
    """Lines through an engine's prefill steps: columns are fixed ns, ns a token, ns a pair.

    `lines` and `ratios` are those of the resamples; without them there is no error. `largest`: the
    most tokens that a step computed.
    """

    line: Floats
    lines: Floats
    ratios: Floats
    steps: int
    largest: float

    def estimate(self, asked: Floats) -> Floats:
        """Times of rows (steps, tokens, work), ns."""
        return np.asarray(asked @ self.line)

    def interval(self, asked: Floats, confidence: float) -> tuple[Floats, Floats] | None:
        """The ends of its interval for each row, ns; None where too few steps were seen for one."""
        if not len(self.lines):
            return None
        ends = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
        parts = [
            np.quantile((asked[at : at + _BLOCK] @ self.lines.T) * self.ratios, ends, axis=1)
            for at in range(0, max(1, len(asked)), _BLOCK)
        ]
        low, high = np.concatenate(parts, axis=1)
        return low, high


def fitted(steps: pl.DataFrame) -> Recompute | None:
    """The lines through these steps; None where they cannot tell a time that grows with tokens."""
    took, tokens = steps["took_ns"].to_numpy(), steps["tokens"].to_numpy()
    if len(took) < A_LINE:
        return None
    chosen = even_choice(took, tokens.astype(np.int64), MOST)
    took_ns = took[chosen].astype(np.float64)
    told = np.c_[np.ones(len(chosen)), tokens[chosen], steps["work"].to_numpy()[chosen]]
    columns = _columns(told)
    if columns is None:
        return None
    (line,) = _lines(told, took_ns, columns, np.ones((1, len(chosen))))
    if not line[1:].any():  # nothing grows with the tokens: no time of a token can be told
        return None
    lines, ratios = _resampled(told, took_ns, columns, line)
    return Recompute(line, lines, ratios, len(took), float(tokens.max()))


def _columns(told: Floats) -> list[int] | None:
    """Which parts of a step's time its sizes can tell apart."""
    sizes = np.unique(told, axis=0)
    for columns, fewest in ((_ALL, 4), (_FIXED_AND_TOKENS, 2)):
        if len(sizes) >= fewest and _rank(sizes[:, columns]) == len(columns):
            return columns
    return None


def _rank(told: Floats) -> int:
    return int(np.linalg.matrix_rank(told / np.maximum(told.max(axis=0), 1e-300), tol=1e-6))


def _lines(told: Floats, took_ns: Floats, columns: list[int], weights: Floats) -> Floats:
    """A line for each row of weights: least absolute deviations under coefficients of at least 0.

    The multipliers of the dual: max took . d  where  told' d <= 0  and  |d| <= weight. Many lines that do not
    know of each other are one program, block by block.
    """
    own = told[:, columns]
    scale, unit = own.max(axis=0), float(np.median(took_ns))
    some, number = max(1, _VARIABLES // len(own)), len(columns)
    lines = np.zeros((len(weights), 3))
    for at in range(0, len(weights), some):
        mine = weights[at : at + some]
        rows: Any = kron(eye_array(len(mine)), (own / scale).T)  # scipy's stubs know no sparse A_ub
        found: Any = linprog(
            np.tile(-took_ns / unit, len(mine)), A_ub=rows, b_ub=np.zeros(rows.shape[0]),
            bounds=np.c_[-mine.ravel(), mine.ravel()], method="highs",
        )  # fmt: skip
        slopes = np.maximum(0, -found.ineqlin.marginals).reshape(len(mine), number)
        lines[at : at + some, columns] = slopes * unit / scale
    return lines


def _resampled(told: Floats, took_ns: Floats, columns: list[int], line: Floats) -> tuple[Floats, Floats]:
    """Lines through resamples of the steps, and a ratio of time to line beside each; none of too few."""
    number = len(took_ns)
    if number < FEWEST:
        return np.empty((0, 3)), np.empty(0)
    rng = np.random.default_rng(0)
    weights: list[Floats] = []
    while len(weights) < RESAMPLES:
        weight = np.bincount(rng.integers(0, number, number), minlength=number).astype(np.float64)
        if _rank(told[weight > 0][:, columns]) == len(columns):  # one that still tells them apart
            weights.append(weight)
    spread = np.quantile(took_ns / (told @ line), (np.arange(RESAMPLES) + 0.5) / RESAMPLES)
    return _lines(told, took_ns, columns, np.array(weights)), rng.permutation(spread)
