"""Which steps served whom: a run of steps is one thing, however many they are.

A request is in one step of its engine after the other, and while it is, only its own few intervals and the
waits of the engine change anything. So steps need not be swept: how long a step served the request between
two edges of the sweep is the difference of a running sum over the steps of the engine.

    steps      [0==) [1==) [2==) [3==) [4==)        a run (first 1, last 3)
    request           x     x     x                 served between two edges: 2 + 5 + 3, not a row a step
    edges               |              |

Requests for which this does not hold - two steps serve them at once, or one whose end nobody saw - are
swept: their steps come out as intervals like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.analyses.exposure import intervals as queries
from kvtrace.analyses.exposure.layers import SERVING
from kvtrace.analyses.exposure.sweep import NO_SPAN, Intervals, width

if TYPE_CHECKING:
    import duckdb

    from kvtrace.analyses.exposure.layers import Bools, Ids, Ints
    from kvtrace.analyses.exposure.sweep import Requests, Segments

CHUNK = 4_000_000
"""So many memberships are held at once."""


@dataclass(frozen=True, slots=True)
class Steps:
    """All steps, sorted by engine and start.

    place    where the step of a membership stands; -1 (as the last is) for one that ends before it starts
    engine   a number, rising
    fresh    does not follow on the step before it: another engine's, or one that began before that ended
    before   how long all steps before it last together
    """

    place: Ints
    engine: Ints
    s: Ints
    e: Ints
    is_open: Bools
    span: Ids
    fresh: Bools
    before: Ints

    @classmethod
    def read(cls, connection: duckdb.DuckDBPyConnection) -> Steps:
        """The steps of a prepared run."""
        table = pl.DataFrame(queries.steps(connection))
        step = table["step"].to_numpy()
        place = np.full(int(step.max(initial=-1)) + 2, -1, np.int64)
        place[step] = np.arange(step.size)
        engine = table["place"].cast(pl.Int64).fill_null(1 << 32).to_numpy()  # the last ones
        s, e, is_open = table["s"].to_numpy(), table["e"].to_numpy(), table["is_open"].to_numpy()
        fresh = np.ones(s.size, bool)
        fresh[1:] = (engine[1:] != engine[:-1]) | (s[1:] < e[:-1])
        lasted = np.where(is_open, 0, e - s)
        span = table["span_id"].fill_null(NO_SPAN).to_numpy()
        return cls(place, engine, s, e, is_open, span, fresh, np.cumsum(lasted) - lasted)


@dataclass(frozen=True, slots=True)
class Runs:
    """Steps [first, last] that served a request one after the other; sorted by request and time, disjoint."""

    steps: Steps
    request: Ints
    first: Ints
    last: Ints

    def served(self, cuts: Segments, block: Requests) -> Ints:
        """How long steps serve the request in each segment, ns; segments of a request are adjacent."""
        if not self.request.size or not cuts.s.size:
            return np.zeros(cuts.s.size, np.int64)
        closes = np.ones(cuts.s.size, bool)
        closes[:-1] = cuts.request[1:] != cuts.request[:-1]
        at_start = self.until(cuts.request, cuts.s, block)
        at_end = np.append(at_start[1:], 0)
        at_end[closes] = self.until(cuts.request[closes], cuts.e[closes], block)
        return at_end - at_start

    def until(self, request: Ints, time: Ints, block: Requests) -> Ints:
        """How long steps have served all requests before, and this one until then: a running sum, ns."""
        if not self.request.size:
            return np.zeros(time.size, np.int64)
        steps, stretch = self.steps, width(block)
        begin = self.request * stretch + np.clip(steps.s[self.first] - block.start[self.request], 0, stretch)
        length = steps.before[self.last] - steps.before[self.first] + steps.e[self.last] - steps.s[self.last]
        total = np.append(0, np.cumsum(length))
        run = np.searchsorted(begin, request * stretch + (time - block.start[request]), side="right") - 1
        sums = total[run + 1]  # all of the run, unless the instant lies in it
        inside = np.flatnonzero((self.request[run] == request) & (run >= 0))
        run, time = run[inside], time[inside]
        step = np.clip(self._started(steps.engine[self.first[run]], time), self.first[run], self.last[run])
        lasted = np.clip(time - steps.s[step], 0, steps.e[step] - steps.s[step])
        sums[inside] = total[run] + steps.before[step] - steps.before[self.first[run]] + lasted
        return sums

    def _started(self, engine: Ints, time: Ints) -> Ints:
        """The last step of an engine that has started by an instant."""
        order = np.argsort(engine.astype(np.uint16), kind="stable")
        found = np.empty(engine.size, np.int64)
        ends = np.flatnonzero(np.diff(engine[order])) + 1
        for own in np.split(order, ends) if order.size else ():
            low, high = np.searchsorted(self.steps.engine, [engine[own[0]], engine[own[0]] + 1])
            found[own] = low + np.searchsorted(self.steps.s[low:high], time[own], side="right") - 1
        return found


class Memberships:
    """The steps that served each request, a chunk of requests at a time, in the order of the requests."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, requests: int) -> None:
        self.steps = Steps.read(connection)
        self._connection, self._requests = connection.cursor(), requests  # beside what is being streamed
        counts = pl.DataFrame(queries.served_counts(connection))
        self._before = np.zeros(requests + 1, np.int64)
        self._before[counts["number"].to_numpy() + 1] = counts["steps"].to_numpy()
        self._before = np.cumsum(self._before)
        self._first = self._after = 0
        self._keys = np.empty(0, np.int64)

    def count(self, block: Requests) -> int:
        """How many steps served the requests of a block."""
        return int(self._before[block.first + block.start.size] - self._before[block.first])

    def of(self, block: Requests) -> tuple[Ints, Ints]:
        """(request, step) of the requests of a block, sorted; request 0 is the first of them."""
        low, high = block.first, block.first + block.start.size
        stride = self.steps.s.size + 1
        if low < self._first or high > self._after:
            self._read(low, high)
        cut = np.searchsorted(self._keys, np.array([low, high]) * stride)
        request, step = np.divmod(self._keys[cut[0] : cut[1]], stride)
        return request - low, step

    def _read(self, low: int, high: int) -> None:
        """Read as many requests from this one on as a chunk holds, at least these."""
        most = int(np.searchsorted(self._before, self._before[low] + CHUNK, side="right")) - 1
        self._first, self._after = low, min(max(high, most), self._requests)
        table = queries.served(self._connection, low, self._after)
        step = self.steps.place[np.minimum(table["step"].to_numpy(), self.steps.place.size - 1)]
        keys = table["number"].to_numpy() * np.int64(self.steps.s.size + 1) + step
        keys = np.sort(keys[step >= 0])
        twice = keys[1:] == keys[:-1]
        self._keys = np.delete(keys, np.flatnonzero(twice)) if twice.any() else keys

    def intervals(self, request: Ints, step: Ints, *, owners: bool) -> Intervals:
        """Memberships as intervals."""
        steps, owner = self.steps, step if owners else step[:0]
        return Intervals(
            request, np.full(request.size, SERVING, np.int8), steps.s[step], steps.e[step],
            steps.is_open[step], steps.s[owner], steps.span[owner],
        )  # fmt: skip

    def runs(self, block: Requests) -> tuple[Runs, Intervals]:
        """The steps of a block as runs, and as intervals those of requests that must be swept."""
        request, step = self.of(block)
        new = np.ones(request.size, bool)
        new[1:] = (request[1:] != request[:-1]) | (step[1:] != step[:-1] + 1) | self.steps.fresh[step[1:]]
        at = np.flatnonzero(new)
        last = np.append(at[1:], request.size)[: at.size] - 1
        runs = Runs(self.steps, request[at], step[at], step[last])
        s, e = self.steps.s[runs.first], self.steps.e[runs.last]
        swept = np.zeros(block.start.size, bool)
        swept[request[self.steps.is_open[step]]] = True
        swept[runs.request[1:][(runs.request[1:] == runs.request[:-1]) & (s[1:] < e[:-1])]] = True
        kept = ~swept[runs.request] & (s < block.last[runs.request]) & (e > block.start[runs.request])
        mine = swept[request]
        rows = self.intervals(request[mine], step[mine], owners=False)
        return Runs(self.steps, runs.request[kept], runs.first[kept], runs.last[kept]), rows
