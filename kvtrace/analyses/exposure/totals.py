"""Segments -> how long what was active together in each request, and who wins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.analyses.exposure import layers
from kvtrace.analyses.exposure.layers import (
    FIRST_HOP,
    HOPS,
    LOAD,
    Bools,
    Ints,
    Small,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.analyses.exposure.sweep import Segments

_SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)
_SLOTS = 1 << 16
_MOST_CELLS = 1 << 22


@dataclass(frozen=True, slots=True)
class Window:
    """One window of every request of a block: [begin, end) in unix ns, and whether its bound is exact."""

    name: str
    begin: Ints
    end: Ints
    exact: Bools


@dataclass(frozen=True, slots=True)
class Kinds:
    """The few different things that go on together: active layers, open layers, windows (all as bits)."""

    layers: Ints
    open_layers: Ints
    windows: Ints


@dataclass(frozen=True, slots=True)
class Amounts:
    """How long what was active: one row a (request, kind)."""

    request: Ints
    kind: Ints
    length: Ints
    kinds: Kinds

    def within(self, place: int) -> Amounts:
        """Those that lie in the window of this place."""
        lies = (self.kinds.windows >> place) & 1 == 1
        at = np.flatnonzero(lies[self.kind])
        return Amounts(self.request[at], self.kind[at], self.length[at], self.kinds)


def amounts(segments: Segments, windows: Sequence[Window]) -> Amounts:
    """Add up segments in which the same is going on; the ends of the windows are edges of segments.

    Everything that comes after depends on what is active, not on when: a request has many segments and a
    dozen of these.
    """
    inside = np.zeros(segments.s.size, np.int8)
    for place, window in enumerate(windows):
        within = (segments.s >= window.begin[segments.request]) & (segments.e <= window.end[segments.request])
        inside |= within.astype(np.int8) << place
    kinds, kind = _kinds(segments.layers, segments.open_layers, inside)
    size = kinds.layers.size
    cell = segments.request * size + kind
    length = segments.e - segments.s - segments.served
    if int(cell.max(initial=0)) < _MOST_CELLS:
        rows = np.arange(int(cell.max(initial=-1)) + 1)
    else:
        rows, cell = np.unique(cell, return_inverse=True)
    sums = np.zeros((2, rows.size), np.int64)  # while no swept step serves the request, and while others do
    np.add.at(sums[0], cell, length)
    np.add.at(sums[1], cell, segments.served)
    serving, at = np.nonzero(sums)
    request, kind = np.divmod(rows[at], size)
    both = Kinds(
        np.append(kinds.layers, kinds.layers | 1), np.tile(kinds.open_layers, 2), np.tile(kinds.windows, 2)
    )
    return Amounts(request, kind + serving * size, sums[serving, at], both)


def _kinds(active: Ints, opened: Ints, inside: Small) -> tuple[Kinds, Ints]:
    """The few different (active, opened, inside) there are, and which of them each segment has.

    A hash that keeps them apart is cheaper than any sorting; where it does not, they are joined.
    """
    mixed = active * 8 + inside + opened * _SPREAD  # wraps around
    slot = ((mixed * _SPREAD) >> 47) & (_SLOTS - 1)
    first = np.full(_SLOTS, -1)
    first[slot] = np.arange(slot.size)
    like = first[slot]
    if (active[like] == active).all() and (opened[like] == opened).all() and (inside[like] == inside).all():
        taken = np.flatnonzero(first >= 0)
        place = np.zeros(_SLOTS, np.int64)
        place[taken] = np.arange(taken.size)
        one = first[taken]
        return Kinds(active[one], opened[one], inside[one].astype(np.int64)), place[slot]
    every = pl.DataFrame({"active": active, "opened": opened, "inside": inside.astype(np.int64)})
    kinds = every.unique()
    kind = every.join(kinds.with_row_index("kind"), on=every.columns, maintain_order="left")["kind"]
    return Kinds(*(column.to_numpy() for column in kinds)), kind.cast(pl.Int64).to_numpy()


@dataclass(frozen=True, slots=True)
class Winners:
    """Of every amount or segment its own classes, its winning class and its winning hop."""

    own: Ints
    winner: Ints
    hop: Ints


def bottlenecks(request: Ints, active: Ints, length: Ints, requests: int) -> Ints:
    """Which hop each copying part belongs to; -1 where none copies.

    Of those copying, it is the one with the largest union in the window.
    """
    winner = np.full(active.size, -1, np.int64)
    present = sorted(hops_in(active), key=layers.hop_order)
    if not present:
        return winner
    union = np.zeros((len(present), requests), np.int64)
    for row, hop in enumerate(present):
        np.add.at(union[row], request, length * ((active >> (FIRST_HOP + hop)) & 1))
    ranked = np.argsort(-union, axis=0, kind="stable")
    numbers = np.asarray(present)
    for place in range(len(present)):
        hop = numbers[ranked[place][request]]
        takes = (winner < 0) & (((active >> (FIRST_HOP + hop)) & 1) == 1)
        winner[takes] = hop[takes]
    return winner


def hops_in(active: Ints) -> list[int]:
    """Numbers of the hops that copy at any instant."""
    seen = int(np.bitwise_or.reduce(active, initial=0)) >> FIRST_HOP
    return [hop for hop in range(HOPS) if (seen >> hop) & 1]


def winners(request: Ints, active: Ints, own: Ints, length: Ints, window: Window) -> Winners:
    """Who wins, wherever something is active inside a window: `own` classes, of the `active` layers."""
    own = own & np.where(window.exact[request], np.int64(-1), ~np.int64(1 << layers.COMPUTE))
    winner = layers.first_bit(own)
    hop = np.where(winner == LOAD, bottlenecks(request, active, length, window.begin.size), -1)
    return Winners(own, winner, hop)
