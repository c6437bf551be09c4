"""Who overlaps whom, and how the time of a stretch is divided among those to blame.

piece     [====================)   a request lacks L blocks
hold a    [==========)             h = 2     |  a  | a, b | b |  of every instant with H >= L > 0
hold b         [============)      h = 4     | 2/2 | 2/6,4/6 | 4/4 |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import numpy.typing as npt

    from kvtrace.analyses.exposure.layers import Bools, Ints

MOST_PAIRS = 2_000_000
"""Pairs of a piece and an interval that are in memory at once, about."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Disjoint stretches of requests: request of the block, class, [s, e), whether the class won, L.

    `lane` is the engine; `known` says whether L (`need`) is known; `inside`: a step of it is being served.
    """

    request: Ints
    kind: Ints
    s: Ints
    e: Ints
    won: Bools
    need: Ints
    known: Bools
    inside: Bools
    lane: Ints

    def where(self, chosen: Ints | Bools | slice) -> Pieces:
        """Some of them."""
        return Pieces(*(getattr(self, name)[chosen] for name in Pieces.__slots__))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Parts [s, e) of pieces in which somebody is to blame: whom (a code), why (a code), how much."""

    piece: Ints
    s: Ints
    e: Ints
    blocker: Ints
    reason: Ints
    weight: Ints
    unknown: Ints


class Timeline:
    """Intervals of engines, ready to be asked which of them overlap a stretch of time.

    Sorted by engine, power of two of the length, and start: of one length class only those that start less
    than a class's length before the stretch can reach into it, so that one hold that never ends does not
    make everything that comes after it a candidate.
    """

    def __init__(self, lane: Ints, s: Ints, e: Ints) -> None:
        length = np.ceil(np.log2(np.maximum(e - s, 1).astype(np.float64))).astype(np.int64)
        order = np.lexsort((s, length, lane))
        self.order, self.s, self.e = order, s[order], e[order]
        kind = lane[order] * 64 + length[order]
        begin = np.flatnonzero(np.append(np.ones(min(kind.size, 1), bool), kind[1:] != kind[:-1]))
        self._runs = [
            (int(kind[low]) // 64, 1 << min(int(kind[low]) % 64, 62), int(low), int(high))
            for low, high in zip(begin, [*begin[1:], kind.size], strict=False)
        ]

    def overlaps(self, lane: Ints, s: Ints, e: Ints) -> tuple[Ints, Ints]:
        """(stretch, interval) of every two of the same engine that overlap."""
        stretches, found = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for engine, reach, first, after in self._runs:
            own = np.flatnonzero(lane == engine)
            starts = self.s[first:after]
            low = first + np.searchsorted(starts, s[own] - reach)
            count = first + np.searchsorted(starts, e[own]) - low
            at = np.repeat(low, count) + counted(count)
            stretch = np.repeat(own, count)
            hit = self.e[at] > s[stretch]
            stretches.append(stretch[hit])
            found.append(self.order[at[hit]])
        return np.concatenate(stretches), np.concatenate(found)

    def candidates(self, lane: Ints, s: Ints, e: Ints) -> Ints:
        """At most how many intervals overlap each stretch."""
        count = np.zeros(s.size, np.int64)
        for engine, reach, first, after in self._runs:
            own = np.flatnonzero(lane == engine)
            starts = self.s[first:after]
            count[own] += np.searchsorted(starts, e[own]) - np.searchsorted(starts, s[own] - reach)
        return count


def counted(count: Ints) -> Ints:
    """0 .. n-1 for each n."""
    return np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)


def portions(pieces: Pieces, timeline: Timeline) -> Iterator[Pieces]:
    """The pieces in portions whose pairs fit the memory."""
    before = np.cumsum(timeline.candidates(pieces.lane, pieces.s, pieces.e)) // MOST_PAIRS
    if not before.size:
        return
    edges = np.flatnonzero(np.append(np.ones(1, bool), before[1:] != before[:-1]))
    for low, high in zip(edges, np.append(edges[1:], before.size), strict=True):
        yield pieces.where(slice(int(low), int(high)))


def overlay(first: tuple[Ints, Ints], second: tuple[Ints, Ints]) -> tuple[Ints, Ints, Ints, Ints]:
    """Common parts of two sorted lists of disjoint intervals: number in each, start and end."""
    low = np.searchsorted(second[1], first[0], side="right")
    count = np.maximum(np.searchsorted(second[0], first[1]) - low, 0)
    one = np.repeat(np.arange(count.size), count)
    two = np.repeat(low, count) + counted(count)
    return one, two, np.maximum(first[0][one], second[0][two]), np.minimum(first[1][one], second[1][two])


def begins(*columns: Ints) -> Bools:
    """Rows in which any of the columns differs from the row before, and the first."""
    first = np.ones(columns[0].size, bool)
    first[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return first


def uncovered(starts: Bools, s: Ints, e: Ints) -> Ints:
    """Start of each interval cut to what those before it in its group leave over; maybe beyond its end.

    `starts` marks the first of each group. An instant belongs to the first interval of a group that has it.
    """
    ends, rank = np.unique(e, return_inverse=True)
    group = np.cumsum(starts)
    reached = np.maximum.accumulate(group * ends.size + rank)  # a later group is above all before it
    begin = s.copy()
    begin[1:] = np.where(starts[1:], s[1:], np.maximum(s[1:], ends[(reached[:-1] % max(ends.size, 1))]))
    return begin


def together(pairs: Pairs) -> Pairs:
    """Each blocker and reason once an instant, whatever number of ranks and names say so."""
    order = np.lexsort((pairs.s, pairs.reason, pairs.blocker, pairs.piece))
    names = ("piece", "blocker", "reason", "s", "e")
    piece, blocker, reason, s, e = (getattr(pairs, name)[order] for name in names)
    s = uncovered(begins(piece, blocker, reason), s, e)
    kept = e > s
    one = np.ones(int(kept.sum()), np.int64)
    return Pairs(piece[kept], s[kept], e[kept], blocker[kept], reason[kept], one, np.zeros_like(one))


def whole(share: npt.NDArray[np.float64], starts: Bools, given: Ints) -> Ints:
    """Fractions of ns as whole ones: each group (`starts` marks its first) sums to what is given to it."""
    first = np.flatnonzero(starts)
    group = np.cumsum(starts) - 1
    until = np.cumsum(share.astype(np.longdouble))
    before = np.append(np.zeros(min(until.size, 1), np.longdouble), until[:-1])[first]
    last = np.append(first[1:], share.size)[: first.size] - 1
    total = until[last] - before
    reached = (until - before[group]) / np.where(total > 0, total, 1)[group]
    upto = np.rint(reached * given).astype(np.int64)
    parts = upto.copy()
    parts[1:] -= np.where(starts[1:], 0, upto[:-1])
    return parts


@dataclass(frozen=True, slots=True)
class Parts:
    """What each pair gets (fractions of ns), its time that cannot be divided, and what each piece gives."""

    share: npt.NDArray[np.float64]
    undivided: Ints
    given: Ints


def divided(pieces: Pieces, pairs: Pairs) -> Parts:
    """Divide every instant that a piece's class won, and in which H >= L > 0, by weight."""
    size, count = pieces.s.size, pairs.s.size
    numbers, zero = np.arange(size), np.zeros(size, np.int64)
    piece = np.concatenate([pairs.piece, pairs.piece, numbers, numbers])
    time = np.concatenate([pairs.s, pairs.e, pieces.s, pieces.e])
    order = np.lexsort((time, piece))
    held = np.cumsum(np.concatenate([pairs.weight, -pairs.weight, zero, zero])[order])
    unclear = np.cumsum(np.concatenate([pairs.unknown, -pairs.unknown, zero, zero])[order]) > 0
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    piece, time = piece[order], time[order]
    length = np.append(np.where(piece[1:] == piece[:-1], np.diff(time), 0), np.zeros(min(time.size, 1), int))
    length = np.where(pieces.won[piece], length, 0)
    need, known = pieces.need[piece], pieces.known[piece]
    given = np.where(known & ~unclear & (need > 0) & (held >= need), length, 0)
    lacking = np.where(~known | (unclear & (need > 0)), length, 0)

    def until(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.append(np.zeros(1, values.dtype), np.cumsum(values))

    # 80-bit sums: over all pieces of a portion they reach 1e17 ns, and differences of them are wanted
    each = until(given.astype(np.longdouble) / np.maximum(held, 1))
    loose = until(lacking)
    begin, end = place[:count], place[count : 2 * count]
    share = ((each[end] - each[begin]) * pairs.weight).astype(np.float64)
    total = np.zeros(size, np.int64)
    np.add.at(total, piece, given)
    return Parts(share, loose[end] - loose[begin], total)
