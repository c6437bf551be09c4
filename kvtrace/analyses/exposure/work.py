"""Plain sums of durations, which overlapping layers, hops and ranks inflate: shown only to be told apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kvtrace.analyses.exposure import layers
from kvtrace.analyses.exposure.layers import FIRST_HOP, NAMED, NOBODY, OTHERS, SERVING
from kvtrace.analyses.exposure.sweep import width

if TYPE_CHECKING:
    from kvtrace.analyses.exposure.layers import Ints
    from kvtrace.analyses.exposure.serving import Runs
    from kvtrace.analyses.exposure.sweep import Intervals, Requests, Segments

_LAYERS = {
    layers.CAPACITY: (layers.QUEUE_CAPACITY,),
    layers.LOAD_WAIT_CLASS: (layers.LOAD_WAIT,),
    8: (layers.LOCK,),
    9: (layers.LOOKUP,),
    10: (layers.STORE,),
    layers.QUEUE: (layers.QUEUE_OTHER, layers.QUEUE_TRANSFER),
}
"""Class -> the layers whose intervals are its work."""


class Work:
    """The plain sums of a block, per class (or hop) and window."""

    def __init__(self, intervals: Intervals, segments: Segments, runs: Runs, block: Requests) -> None:
        self._block, self._segments, self._runs = block, segments, runs
        rest = np.flatnonzero(intervals.layer != SERVING)  # compute has no work, and is nearly all there is
        layer = intervals.layer[rest]
        self._request, self._s, self._e = intervals.request[rest], intervals.s[rest], intervals.e[rest]
        self._rows = {
            int(number): np.flatnonzero(layer == number) for number in np.flatnonzero(np.bincount(layer))
        }

    def of(self, number: int, hop: int, begin: Ints, end: Ints) -> Ints | None:
        """Work of a class (or hop) per request inside [begin, end), ns; None where work has no meaning."""
        if number in (layers.COMPUTE, layers.INTERFERENCE, layers.OTHER):
            return None
        if number in range(layers.WAIT, layers.CAPACITY):
            reason = number - layers.WAIT
            shared = self._served((OTHERS + reason, NOBODY + reason), begin, end)
            return self._lasted((NAMED + reason,), begin, end) + shared
        if number == layers.LOAD:
            return self._lasted((FIRST_HOP + hop,), begin, end)
        return self._lasted(_LAYERS[number], begin, end)

    def _lasted(self, wanted: tuple[int, ...], begin: Ints, end: Ints) -> Ints:
        """Durations of some layers inside the window, per request."""
        sums = np.zeros(self._block.start.size, np.int64)
        for rows in (self._rows[layer] for layer in wanted if layer in self._rows):
            request = self._request[rows]
            s = np.maximum(self._s[rows], begin[request])
            np.add.at(sums, request, np.maximum(np.minimum(self._e[rows], end[request]) - s, 0))
        return sums

    def _served(self, wanted: tuple[int, ...], begin: Ints, end: Ints) -> Ints:
        """The same, counting only while a step serves the request."""
        everybody = np.arange(self._block.start.size)
        sums = np.zeros(everybody.size, np.int64)
        for layer in (layer for layer in wanted if layer in self._rows):
            request = self._request[self._rows[layer]]
            first, last = self._integral.at(everybody, begin), self._integral.at(everybody, end)
            s, e = self._served_ends[layer]
            s, e = np.maximum(s, first[request]), np.minimum(e, last[request])
            np.add.at(sums, request, np.maximum(e - s, 0))
        return sums

    @cached_property
    def _integral(self) -> _Served:
        return _Served.of(self._segments, self._runs, self._block)

    @cached_property
    def _served_ends(self) -> dict[int, tuple[Ints, Ints]]:
        """Served time up to the start and the end of every wait of others and of nobody."""
        found = {}
        for layer, rows in self._rows.items():
            if OTHERS <= layer < layers.QUEUE_CAPACITY:
                request = self._request[rows]
                at = self._integral.at
                found[layer] = at(request, self._s[rows]), at(request, self._e[rows])
        return found


@dataclass(frozen=True, slots=True)
class _Served:
    """How long, up to an instant, steps have served all requests up to this one: a running integral.

    It never falls, from instant to instant and from request to request: what holds of times (the later of
    two starts, the earlier of two ends) holds of it.
    """

    block: Requests
    segments: Segments
    runs: Runs
    key: Ints
    whole: Ints
    before: Ints

    @classmethod
    def of(cls, segments: Segments, runs: Runs, block: Requests) -> _Served:
        """The integral over the segments of a block."""
        whole = segments.served + np.where(segments.layers & 1, segments.e - segments.s, 0)
        key = segments.request * width(block) + (segments.s - block.start[segments.request])
        return cls(block, segments, runs, key, whole, np.cumsum(whole) - whole)

    def at(self, request: Ints, time: Ints) -> Ints:
        """Its value at instants of requests, ns."""
        if not self.key.size:
            return np.zeros(time.size, np.int64)
        wanted = request * width(self.block) + (time - self.block.start[request])
        index = np.maximum(np.searchsorted(self.key, wanted, side="right") - 1, 0)
        inside = wanted - self.key[index]
        value: Ints = self.before[index] + np.where(inside > 0, self.whole[index], 0)
        # nearly all are edges; the start of a wait inside another one is none
        within = (inside > 0) & (inside < (self.segments.e - self.segments.s)[index])
        at, index = np.flatnonzero(within), index[within]
        since = self.segments.s[index]
        some = inside[at] * (self.segments.layers[index] & 1) - self.whole[index]
        some += self.runs.until(request[at], time[at], self.block)
        value[at] += some - self.runs.until(request[at], since, self.block)
        return value
