"""Parts of pieces summed to rows: one integer names a row, so that one sort groups all of them.

key   request 24 bits | class 4 | blocker 32 | reason 3
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.analyses.blockers.sharing import Pairs, Pieces, begins, divided, whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from kvtrace.analyses.exposure.layers import Ints

_EVERYBODY = -2
"""The blocker of the row that says what all blockers of a request and class are given together."""
_BLOCKER, _REASON = 32, 3


@dataclass(frozen=True, slots=True)
class Sums:
    """Rows by key: parts (fractions of ns), time that cannot be divided, overlap, what is given to all."""

    key: Ints
    share: npt.NDArray[np.float64]
    undivided: Ints
    overlap_ns: Ints
    given: Ints


@dataclass(frozen=True, slots=True)
class Found:
    """Rows of a block and window, in whole ns; exposed_ns -1 where it is not known."""

    request: Ints
    kind: Ints
    blocker: Ints
    reason: Ints
    exposed_ns: Ints
    overlap_ns: Ints


def summed(pieces: Pieces, pairs: Pairs, once: Pairs) -> Sums:
    """What the pairs of some pieces come to; the overlap counts each instant of `once`."""
    parts = divided(pieces, pairs)
    size, other, all_ = pairs.s.size, once.s.size, np.flatnonzero(parts.given)
    key = np.concatenate(
        [
            _key(pieces, pairs.piece, pairs.blocker, pairs.reason),
            _key(pieces, once.piece, once.blocker, once.reason),
            _key(pieces, all_, np.full(all_.size, _EVERYBODY), np.full(all_.size, -1)),
        ]
    )
    none = np.zeros(key.size, np.int64)
    share, undivided, overlap_ns, given = none.astype(np.float64), none.copy(), none.copy(), none.copy()
    share[:size], undivided[:size] = parts.share, parts.undivided
    overlap_ns[size : size + other] = once.e - once.s
    given[size + other :] = parts.given[all_]
    return added([Sums(key, share, undivided, overlap_ns, given)])


def _key(pieces: Pieces, piece: Ints, blocker: Ints, reason: Ints) -> Ints:
    named: Ints = (pieces.request[piece] << 4 | pieces.kind[piece]) << _BLOCKER | (blocker - _EVERYBODY)
    return named << _REASON | (reason + 1)


def added(parts: Sequence[Sums]) -> Sums:
    """One row a key."""
    key = np.concatenate([part.key for part in parts])
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.flatnonzero(begins(key))

    def total(name: str) -> npt.NDArray[np.generic]:
        values = np.concatenate([getattr(part, name) for part in parts])[order]
        return np.add.reduceat(values, first) if first.size else values

    names = ("share", "undivided", "overlap_ns", "given")
    return Sums(key[first], *(total(name) for name in names))  # type: ignore[arg-type]


def apportioned(sums: Sums) -> Found:
    """Fractions of ns as whole ones, in the order of the blockers, so that they sum to what is given."""
    group = sums.key >> (_BLOCKER + _REASON)
    starts = np.flatnonzero(begins(group))
    given = np.add.reduceat(sums.given, starts) if starts.size else sums.given
    each = np.repeat(given, np.diff(starts, append=group.size))
    at = np.flatnonzero(sums.overlap_ns > 0)  # not the row of everybody, which only says what is given
    exposed = whole(sums.share[at], begins(group[at]), each[at])
    key = sums.key[at]
    return Found(
        key >> (_BLOCKER + _REASON + 4),
        group[at] & 15,
        ((key >> _REASON) & ((1 << _BLOCKER) - 1)) + _EVERYBODY,
        (key & ((1 << _REASON) - 1)) - 1,
        np.where(sums.undivided[at] > 0, -1, exposed),
        sums.overlap_ns[at],
    )
