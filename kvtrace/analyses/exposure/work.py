"""Plain sums of durations, which overlapping layers, hops and ranks inflate: shown only to be told apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvtrace.analyses.exposure import layers
from kvtrace.analyses.exposure.layers import FIRST_HOP, NAMED, NOBODY, OTHERS, Ints
from kvtrace.analyses.exposure.sweep import Intervals, Requests, Segments, width

_LAYERS = {
    layers.CAPACITY: (layers.QUEUE_CAPACITY,),
    layers.LOAD_WAIT_CLASS: (layers.LOAD_WAIT,),
    8: (layers.LOCK,),
    9: (layers.LOOKUP,),
    10: (layers.STORE,),
    layers.QUEUE: (layers.QUEUE_OTHER, layers.QUEUE_TRANSFER),
}
"""Class -> the layers whose intervals are its work."""


@dataclass(frozen=True, slots=True)
class Work:
    """The intervals of a block as they were recorded, and when a step served each request."""

    intervals: Intervals
    segments: Segments
    block: Requests

    def of(self, number: int, hop: int, begin: Ints, end: Ints) -> Ints | None:
        """Work of a class (or hop) per request inside [begin, end), ns; None where work has no meaning."""
        if number in (layers.COMPUTE, layers.INTERFERENCE, layers.OTHER):
            return None
        sums = np.zeros(self.block.start.size, np.int64)
        if number in range(layers.WAIT, layers.CAPACITY):
            reason = number - layers.WAIT
            self._add(sums, (NAMED + reason,), begin, end, serving=False)
            self._add(sums, (OTHERS + reason, NOBODY + reason), begin, end, serving=True)
        elif number == layers.LOAD:
            self._add(sums, (FIRST_HOP + hop,), begin, end, serving=False)
        else:
            self._add(sums, _LAYERS[number], begin, end, serving=False)
        return sums

    def _add(self, sums: Ints, wanted: tuple[int, ...], begin: Ints, end: Ints, *, serving: bool) -> None:
        """Add the clipped durations of some layers; `serving` counts only while a step serves the request."""
        rows = np.flatnonzero(np.isin(self.intervals.layer, wanted))
        request = self.intervals.request[rows]
        s = np.maximum(self.intervals.s[rows], begin[request])
        e = np.maximum(s, np.minimum(self.intervals.e[rows], end[request]))
        durations = self._served(request, e) - self._served(request, s) if serving else e - s
        np.add.at(sums, request, durations)

    def _served(self, request: Ints, at: Ints) -> Ints:
        """How long, up to an instant, steps have served all requests up to this one: a running integral."""
        stretch = width(self.block)
        begin, end = self.segments.s, self.segments.e
        serving = (self.segments.layers & 1) * (end - begin)
        before = np.concatenate([[0], np.cumsum(serving)])
        key = self.segments.request * stretch + (begin - self.block.start[self.segments.request])
        wanted = request * stretch + (at - self.block.start[request])
        index = np.maximum(np.searchsorted(key, wanted, side="right") - 1, 0)
        if not key.size:
            return np.zeros(at.size, np.int64)
        inside = np.clip(wanted - key[index], 0, (end - begin)[index])
        return before[index] + inside * (self.segments.layers[index] & 1)
