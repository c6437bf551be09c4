"""The sweep: intervals of many requests -> segments in which nothing changes.

Five sentences. Every request gets its own stretch of one integer axis, so that one sort orders the events
of all requests at once. Per layer, intervals are cut into disjoint pieces, each owned by the interval that
started first. A piece switches its layer's bit on at its start and off at its end. The running sum of all
switches is, between two events, the set of layers that are active: a segment. Classes follow from the set.

    layer A   [=====)            pieces   [=====)[==)     switches  +A      -A+A  -A
    layer A      [=====)
    layer B         [====)                   [====)                    +B      -B
                                 segments |A |A|AB|AB|B|
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kvtrace.analyses.exposure.layers import NAMED, NOBODY, OTHERS, Bools, Ids, Ints, Small

MOST_CELLS = 1 << 61
"""The axis must hold every request's stretch: requests x longest window stays below this."""

NO_SPAN = 2**64 - 1
"""Stands for a null span_id, which is no number: the last of two that started together."""


@dataclass(frozen=True, slots=True)
class Requests:
    """A block of consecutive requests; times in unix ns, `token` is -1 where there is no first token."""

    first: int
    start: Ints
    stop: Ints
    token: Ints
    engine: Ints

    @property
    def last(self) -> Ints:
        """End of the later of the two windows that begin at the arrival."""
        return np.maximum(self.stop, self.token)

    def part(self, low: int, high: int) -> Requests:
        """The requests [low, high) of the block."""
        cut = slice(low, high)
        return Requests(self.first + low, self.start[cut], self.stop[cut], self.token[cut], self.engine[cut])


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of a block: request (0 = first of the block), layer, [s, e), open or not.

    `started` and `span` say whose they are; both are empty where nobody asks.
    """

    request: Ints
    layer: Small
    s: Ints
    e: Ints
    is_open: Bools
    started: Ints
    span: Ids

    def where(self, mask: Bools) -> Intervals:
        """The intervals for which the mask holds."""
        owned = self.started.size > 0
        return Intervals(
            self.request[mask], self.layer[mask], self.s[mask], self.e[mask], self.is_open[mask],
            self.started[mask] if owned else self.started, self.span[mask] if owned else self.span,
        )  # fmt: skip

    def clipped(self, block: Requests) -> Intervals:
        """Cut to [arrival, end) of their requests; what lies outside, or ends before it starts, is gone."""
        s = np.maximum(self.s, block.start[self.request])
        e = np.minimum(self.e, block.last[self.request])
        cut = replace(self, s=s, e=e)
        kept = e > s
        return cut if kept.all() else cut.where(kept)

    def joined(self, other: Intervals) -> Intervals:
        """Both, one after the other."""
        names = ("request", "layer", "s", "e", "is_open", "started", "span")
        return Intervals(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of all engines, sorted by engine and start; pairs = wait * requests + request, sorted."""

    engine: Ints
    s: Ints
    e: Ints
    is_open: Bools
    reason: Ints
    nobody: Bools
    span: Ids
    pairs: Ints
    requests: int

    def of(self, block: Requests, *, owners: bool) -> Intervals:
        """Every wait that overlaps a request of the block, in the layer that says whom it names."""
        low, high = self._range(block)
        count = high - low
        request = np.repeat(np.arange(count.size), count)
        wait = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count - low, count)
        s = np.maximum(self.s[wait], block.start[request])
        e = np.minimum(self.e[wait], block.last[request])
        kept = e > s
        request, wait, s, e = request[kept], wait[kept], s[kept], e[kept]
        pair = wait * self.requests + request + block.first
        at = np.searchsorted(self.pairs, pair)
        at[at == self.pairs.size] = 0
        named = self.pairs[at] == pair if self.pairs.size else np.zeros(pair.size, bool)
        layer = np.where(named, NAMED, np.where(self.nobody[wait], NOBODY, OTHERS)) + self.reason[wait]
        owner = wait if owners else wait[:0]
        return Intervals(
            request, layer.astype(np.int8), s, e, self.is_open[wait], self.s[owner], self.span[owner]
        )

    def count(self, block: Requests) -> Ints:
        """At most how many waits overlap each request."""
        low, high = self._range(block)
        return high - low

    def _range(self, block: Requests) -> tuple[Ints, Ints]:
        """Per request the waits [low, high) of its engine that can overlap it."""
        low = np.zeros(block.start.size, np.int64)
        high = np.zeros(block.start.size, np.int64)
        for engine in np.unique(self.engine):
            first, after = np.searchsorted(self.engine, [engine, engine + 1])
            own = block.engine == engine
            ends = np.maximum.accumulate(self.e[first:after])
            low[own] = first + np.searchsorted(ends, block.start[own], side="right")
            high[own] = first + np.searchsorted(self.s[first:after], block.last[own], side="left")
        return low, np.maximum(low, high)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Disjoint pieces of one layer on the axis, sorted; each belongs to the interval that started first."""

    layer: int
    s: Ints
    e: Ints
    started: Ints
    span: Ids


@dataclass(frozen=True, slots=True)
class Segments:
    """Stretches in which nothing changes: request, [s, e) in unix ns, active layers, open layers.

    Where steps were not swept, `served` says how long they served the request meanwhile, else 0.
    """

    request: Ints
    s: Ints
    e: Ints
    layers: Ints
    open_layers: Ints
    served: Ints

    def where(self, mask: Bools | Ints) -> Segments:
        """The segments for which the mask holds, or those at these places."""
        return Segments(
            *(getattr(self, name)[mask] for name in ("request", "s", "e", "layers", "open_layers", "served"))
        )


def width(block: Requests) -> int:
    """Length of one request's stretch of the axis, in ns."""
    return int((block.last - block.start).max(initial=0)) + 1


def pieces(intervals: Intervals, block: Requests, *, owners: bool) -> list[Pieces]:
    """Cut every layer into disjoint pieces; an instant belongs to the interval that started first."""
    stretch = width(block)
    base = intervals.request * stretch - block.start[intervals.request]
    s, e = intervals.s + base, intervals.e + base
    found = []
    for layer in np.flatnonzero(np.bincount(intervals.layer)):
        own = np.flatnonzero(intervals.layer == layer)
        if owners:
            order = np.lexsort((intervals.span[own], intervals.started[own], intervals.request[own]))
        else:
            order = np.argsort(s[own], kind="stable")
        own = own[order]
        reached = np.maximum.accumulate(e[own])
        begin = s[own].copy()
        begin[1:] = np.maximum(begin[1:], reached[:-1])
        kept = e[own] > begin
        owner = own[kept] if owners else own[:0]
        found.append(
            Pieces(int(layer), begin[kept], e[own][kept], intervals.started[owner], intervals.span[owner])
        )
    return found


def _switches(parts: list[Pieces]) -> tuple[Ints, Ints]:
    """When which layer's bit goes on and off."""
    empty = np.empty(0, np.int64)
    times = [empty, *(part.s for part in parts), *(part.e for part in parts)]
    bits = [np.full(part.s.size, 1 << part.layer, np.int64) for part in parts]
    return np.concatenate(times), np.concatenate([empty, *bits, *(-bit for bit in bits)])


def segments(parts: list[Pieces], open_parts: list[Pieces], block: Requests) -> Segments:
    """Sum up the switches: between two events, the set of active layers."""
    base = np.arange(block.start.size, dtype=np.int64) * width(block)
    ends = base + (block.last - block.start)
    tokens = (base + (block.token - block.start))[block.token >= 0]
    marks = np.concatenate([base, base + (block.stop - block.start), ends, tokens])
    at, bit = _switches(parts)
    open_at, open_bit = _switches(open_parts)
    times = np.concatenate([marks, at, open_at])
    order = np.argsort(times, kind="stable")
    times = times[order]
    after = np.flatnonzero(times[1:] != times[:-1])  # the last event of every instant but the last
    edge = np.append(times[after], times[-1:])

    def running(*parts: Ints) -> Ints:
        summed: Ints = np.cumsum(np.concatenate(parts)[order])[after]
        return summed

    quiet = np.zeros(marks.size, np.int64)
    active = running(quiet, bit, np.zeros_like(open_bit))
    opened = running(quiet, np.zeros_like(bit), open_bit) if open_parts else np.zeros_like(active)
    first = np.searchsorted(edge, base)
    request = np.repeat(np.arange(base.size), np.diff(first, append=edge.size))[:-1]
    shift = (block.start - base)[request]
    inside = np.flatnonzero(edge[:-1] < ends[request])
    request, shift = request[inside], shift[inside]
    begin, end = edge[inside] + shift, edge[inside + 1] + shift
    return Segments(request, begin, end, active[inside], opened[inside], np.zeros_like(begin))
