"""A request's segments again, with some of its intervals shortened.

Five sentences. The partition of exposure is swept once more with what is left of the shortened intervals.
An instant of a tail at which the request has no other class is gone; one at which it has stays, as that.
All that came after moves forward by what is gone, in the same order and at the same distances. Steps of
others stay where they were: a request that would be ready inside one is admitted when it ends, but never
later than it was. Three replays differ in what is taken to wait for the shortened interval:

    high        what waits for it by its name: load_wait, wait_*, queues for a transfer or of unknown reason
    predicted   also a lookup around it
    low         also queues of any reason but capacity, and whoever waited (load_wait, wait_*, interference,
                queue_capacity) while a copy of another request on this path was under way; nobody is held
                up by steps of others
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.analyses.exposure.cache import blocks_in_runs
from kvtrace.analyses.exposure.layers import (
    ANY_WAIT,
    LOOKUP,
    NOBODY,
    QUEUE_CAPACITY,
    QUEUE_OTHER,
    SERVING,
    classes_of,
)
from kvtrace.analyses.exposure.sweep import pieces, segments
from kvtrace.analyses.whatif.tails import (
    BEHIND,
    FREE,
    INSIDE,
    STARTED,
    Behind,
    Marked,
    first_steps,
    shortened,
    started,
    undifferentiated,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.analyses.exposure.cache import Prepared
    from kvtrace.analyses.exposure.layers import Bools, Ints
    from kvtrace.analyses.exposure.sweep import Intervals, Requests, Segments
    from kvtrace.analyses.whatif.changes import Shorter

LOW, PREDICTED, HIGH = range(3)
OWN = (1 << FREE) | (1 << INSIDE)


@dataclass(frozen=True, slots=True)
class Saved:
    """What a change takes off each request's ttft, ns: a row of LOW, PREDICTED and HIGH; whom it is about."""

    ns: Ints
    changed: Bools


class Engines:
    """Until when each engine's steps go on: a request cannot be admitted in the middle of one."""

    def __init__(self, prepared: Prepared) -> None:
        steps = prepared.steps.steps
        self._engine, self._s = steps.engine, steps.s
        self._reach = np.where(steps.is_open, steps.s, steps.e)
        for own in np.split(np.arange(self._s.size), np.flatnonzero(np.diff(self._engine)) + 1):
            self._reach[own] = np.maximum.accumulate(self._reach[own])
        places = pl.DataFrame(
            prepared.connection.sql("SELECT engine, place FROM engine_end").to_arrow_table()
        )
        joined = prepared.table.select("engine").join(places, on="engine", how="left", maintain_order="left")
        self._of = joined["place"].cast(pl.Int64).fill_null(-1).to_numpy()

    def admitted(self, number: Ints, ready: Ints, latest: Ints) -> Ints:
        """When requests that are ready then would be in a step: not in the middle of a step of others."""
        at = ready.copy()
        place = self._of[number]
        for engine in np.unique(place):
            low, high = np.searchsorted(self._engine, [engine, engine + 1])
            own = np.flatnonzero(place == engine)
            if high > low:
                before = low + np.searchsorted(self._s[low:high], ready[own], side="left") - 1
                reach = np.where(before >= low, self._reach[np.maximum(before, low)], ready[own])
                at[own] = np.maximum(ready[own], reach)
        return np.minimum(at, latest)


def replay(prepared: Prepared, changes: Sequence[Shorter]) -> list[Saved]:
    """What each change saves of each request's ttft; every request of the run is in it."""
    size = prepared.table.height
    found = [Saved(np.zeros((3, size), np.int64), np.zeros(size, bool)) for _ in changes]
    failed, queued = Marked.failed(prepared.connection), Marked.queued(prepared.connection)
    engines = Engines(prepared)
    behind = [Behind.of(prepared, change) for change in changes]
    for part, recorded, runs in blocks_in_runs(prepared):
        token = np.where(part.token >= 0, part.token, part.start)
        block = replace(part, stop=token, token=np.full(token.size, -1))
        wrong = failed.of(recorded, part)
        intervals = undifferentiated(recorded, queued.of(recorded, part))
        first = first_steps(intervals, runs.request, runs.steps.s[runs.first], part)
        for change, after, saved in zip(changes, behind, found, strict=True):
            own, touched = shortened(intervals, wrong, change, part)
            own = own.clipped(block)
            rows = own if after is None else own.joined(after.within(block))
            rows = _only(rows, touched | _waits_behind(rows, block)).joined(started(first, block))
            cuts = segments(pieces(rows, block, owners=False), [], block)
            cuts = replace(cuts, served=runs.served(cuts, block))
            at = slice(part.first, part.first + part.start.size)
            saved.ns[:, at] = _saved(cuts, change, block, first, engines)
            saved.changed[at] = touched & (token > part.start)
    return found


def _waits_behind(rows: Intervals, block: Requests) -> Bools:
    """Requests during which copies of others are shortened."""
    found = np.zeros(block.start.size, bool)
    found[rows.request[rows.layer == BEHIND]] = True
    return found


def _only(rows: Intervals, requests: Bools) -> Intervals:
    return rows.where(requests[rows.request])


def _saved(cuts: Segments, change: Shorter, block: Requests, first: Ints, engines: Engines) -> Ints:
    """What of the ttft is gone, a row a replay."""
    cuts = cuts.where((cuts.layers & (OWN | (1 << BEHIND))) != 0)
    length, size = cuts.e - cuts.s, block.start.size
    late = (cuts.layers >> STARTED) & 1
    admitted = np.minimum(first, block.last)
    number = block.first + np.arange(size)
    found = np.zeros((3, size), np.int64)
    for mode in (LOW, PREDICTED, HIGH):
        gone = np.where(_is_free(cuts.layers, change, mode), length - cuts.served, 0)
        gone += np.where(_is_free(cuts.layers | 1, change, mode), cuts.served, 0)
        sums = np.zeros(2 * size, np.int64)
        np.add.at(sums, late * size + cuts.request, gone)
        before, after = sums.reshape(2, size)
        ready = admitted - before
        now = ready if mode == LOW else engines.admitted(number, ready, admitted)
        found[mode] = admitted - now + after
    return found


def _is_free(active: Ints, change: Shorter, mode: int) -> Bools:
    """Instants of tails at which nothing else is going on for the request."""
    own = (active & OWN) != 0
    serving = active & 1
    follows = np.full(active.size, change.follows, np.int64)
    follows |= np.where(serving == 1, change.bits(NOBODY), 0)
    inside = (active >> INSIDE) & 1
    if mode != HIGH:
        follows |= inside << LOOKUP
    if mode == LOW:
        follows |= 1 << QUEUE_OTHER
        moves = (1 << QUEUE_CAPACITY) | change.behind
        follows |= np.where(own, 0, moves)
    # a step that stands still in a wait which is gone is not computing
    stalled = (serving == 1) & ((active & follows & ANY_WAIT) != 0)
    follows |= np.where(stalled, 1 << SERVING, 0)
    rest = active & ~follows
    tail = own if mode != LOW else own | (((active >> BEHIND) & 1) == 1)
    free: Bools = tail & (classes_of(rest, rest) == 0)
    return free
