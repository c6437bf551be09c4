"""How large must a cache be for each access to hit? Stack distances of an LRU, all at once.

An LRU of any size holds the most lately used keys, as many as fit: what a small one holds a larger one holds
too. So one number an access is enough: how many different keys were used since its key was, itself included
(Mattson, Gecsei, Slutz and Traiger 1970). A request looks at all of its keys before it uses any:

    r0  a b c        the stack behind it, latest first:  a b c
    r1  x y                                              x y a b c
    r2  a b z        a is the third, b the fourth, z nowhere: a cache of 4 keys has a and b

A request's keys are used from its last to its first, as prefix caches do it (vLLM frees a prompt's blocks in
reverse): the end of a prefix goes before its beginning. A hit ends at the first key that is not there, so the
size that a key needs is at least that of every key before it.

How many different keys a stretch of accesses has = how many of them have no access of the same key inside the
stretch before them: for all stretches together that is counted in a wavelet matrix, a bit of the numbers at a
time: O(n log n), no loop over accesses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    Ints = npt.NDArray[np.signedinteger]
    Wide = npt.NDArray[np.int64]

AT_ONCE = 1_000_000
"""So many stretches are followed at a time: what is needed for one bit of them."""


def needed(turn: Ints, key: Ints, position: Ints) -> Wide:
    """Keys that a cache must hold for each access to belong to a hit; more than there are accesses: never.

    Accesses are sorted by turn (one request) and position; a position that is not its place in the turn is
    behind a gap. Keys are numbers from 0.
    """
    size = turn.size
    if not size:
        return np.empty(0, np.int64)
    kind = _narrowest(size)
    first = np.flatnonzero(np.r_[True, turn[1:] != turn[:-1]])
    length = np.diff(np.r_[first, size])
    begin = np.repeat(first.astype(kind), length)
    place = np.arange(size, dtype=kind) - begin
    use = begin + np.repeat(length.astype(kind), length) - 1 - place  # a turn backwards
    gone = position != place
    del place
    last, before = _uses(key[use], begin)
    seen = np.flatnonzero(before >= 0).astype(kind)
    since = before[seen] + 1
    del before
    last += 1
    counted = below(last, since, begin[seen], since + 1)
    del last, since, begin
    distance = np.full(size, size + 1, np.int64)
    distance[seen] = counted + 1
    distance = distance[use]
    distance[gone] = size + 1
    above = np.repeat(np.arange(first.size) * (size + 2), length)
    distance += above
    np.maximum.accumulate(distance, out=distance)
    distance -= above
    return distance


def _narrowest(size: int) -> type[np.signedinteger]:
    return np.int32 if size < 2**31 - 2 else np.int64


def _uses(key: Ints, begin: Ints) -> tuple[Ints, Ints]:
    """Of each use the one before it of the same key, and the last one before its own turn; -1: none."""
    size, kind = key.size, begin.dtype
    order = np.argsort(key, kind="stable").astype(kind)
    same = np.r_[False, key[order[1:]] == key[order[:-1]]]
    last = np.full(size, -1, kind)
    last[order[1:][same[1:]]] = order[:-1][same[1:]]
    starts = np.r_[True, ~same[1:] | (begin[order[1:]] != begin[order[:-1]])]
    head = np.maximum.accumulate(np.where(starts, np.arange(size, dtype=kind), 0))
    before = np.full(size, -1, kind)
    before[order] = np.where(same[head], order[head - 1], -1)
    return last, before


def below(values: Ints, low: Ints, high: Ints, bound: Ints) -> Ints:
    """How many of values[low:high] are below the bound, for many stretches at once; nothing is negative.

    A wavelet matrix without the matrix: one bit after the other, from the highest, the values are parted into
    those without and with it, in their order, and each stretch follows the half in which its bound lies.
    """
    kind = _narrowest(values.size)
    low, high = low.astype(kind), high.astype(kind)
    found = np.zeros(low.size, kind)
    most = int(max(values.max(initial=0), bound.max(initial=0)))
    for bit in range(most.bit_length() - 1, -1, -1):
        with_it = (values >> bit & 1).astype(bool)
        zeros = np.r_[0, np.cumsum(~with_it, dtype=kind)].astype(kind, copy=False)
        for part in _parts(low.size):
            zeros_low, zeros_high = zeros[low[part]], zeros[high[part]]
            takes = (bound[part] >> bit & 1).astype(bool)
            found[part] += np.where(takes, zeros_high - zeros_low, 0)
            low[part] = np.where(takes, zeros[-1] + low[part] - zeros_low, zeros_low)
            high[part] = np.where(takes, zeros[-1] + high[part] - zeros_high, zeros_high)
        values = np.concatenate((values[~with_it], values[with_it]))
    return found


def _parts(size: int) -> Iterator[slice]:
    return (slice(begin, begin + AT_ONCE) for begin in range(0, size, AT_ONCE))
