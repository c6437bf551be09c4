"""One device: its copies from their call to their row.

    engine's threads   begin ─► end ─► incoming ┐
    reaper's thread                             └► one queue a stream, oldest first ─► a row | a loss

A stream is first in, first out: where the oldest copy is not over, none behind it is asked. Only
`event.query()` is called, which never waits. What cannot be read is counted and its pair never used again;
a device whose events all fail is gone: everything that waits is counted, and it is tried again later.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import scope
from kvtrace.instrument.torch_cuda import rows
from kvtrace.instrument.torch_cuda.anchors import Anchors
from kvtrace.instrument.torch_cuda.pairs import MOST_PAIRS, Pair, Pool

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NEVER_NS = 60_000_000_000
"""A copy that has not ended so long after its call is counted as one that never does."""
MOST_ERRORS = 16
"""So many events in a row that cannot be read mean that the device is gone."""
GONE_NS = 10_000_000_000
"""How long a device that is gone is left alone."""
PIECE = 25
"""So many copies are read at once: a tenth of a millisecond."""
MOST_IDLE_LANES = 64
ROUNDING_NS = 2_000
TOLERANCE_NS = 2_000_000
"""A device time further outside of what the host saw is impossible, not imprecise."""


class Lane:
    """Copies of one stream that wait for their end."""

    __slots__ = ("last_end_ns", "name", "queue")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: deque[Pair] = deque()
        self.last_end_ns = 0


class Station:
    """One device's pool, anchors and waiting copies."""

    def __init__(self, device: Any, index: int, most: int = MOST_PAIRS) -> None:
        self.device = device
        self.index = index
        self.pool = Pool(self._make, most)
        self.anchors = Anchors(device, index)
        self.incoming: deque[Pair] = deque()
        self.gone_until_ns = 0
        self._name = device.name(index)
        self._lanes: dict[int, Lane] = {}
        self._errors = 0

    def _make(self) -> Pair:
        return Pair(self, self.device.event(self.index), self.device.event(self.index))

    def waiting(self) -> bool:
        """Whether copies wait for their end."""
        return bool(self.incoming) or any(lane.queue for lane in self._lanes.values())

    def read(self, pause: Callable[[], None]) -> None:
        """Write what is over. Only the reaper calls this; it counts what it loses and raises nothing.

        `pause` is called after every PIECE of copies: the engine's threads want the interpreter.
        """
        try:
            self._sort()
            if self.waiting():
                self.anchors.renew()
        except Exception as error:  # noqa: BLE001 - a device may fail in any way
            self._failed(error)
        for lane in list(self._lanes.values()):
            self._read_lane(lane, pause)

    def give_up(self, why: str) -> None:
        """Count everything that waits as lost."""
        self._sort()
        for lane in self._lanes.values():
            while lane.queue:
                self._lose(lane.queue.popleft(), why)
        self._lanes.clear()

    def _sort(self) -> None:
        while self.incoming:
            pair = self.incoming.popleft()
            lane = self._lanes.get(pair.lane)
            if lane is None:
                self._drop_idle_lanes()
                lane = self._lanes[pair.lane] = Lane(f"{pair.lane:#x}")
            lane.queue.append(pair)

    def _drop_idle_lanes(self) -> None:
        """Streams that were destroyed leave nothing behind."""
        if len(self._lanes) >= MOST_IDLE_LANES:
            for key in [key for key, lane in self._lanes.items() if not lane.queue]:
                del self._lanes[key]

    def _read_lane(self, lane: Lane, pause: Callable[[], None]) -> None:
        read = 0
        while lane.queue:
            read += 1
            if read % PIECE == 0:
                pause()
            pair = lane.queue[0]
            try:
                over = pair.end.query()
                times = self.anchors.times(pair.submit_ns, pair.start, pair.end) if over else None
            except Exception as error:  # noqa: BLE001 - destroyed, reset: a device may fail in any way
                lane.queue.popleft()
                self._lose(pair, f"event cannot be read: {type(error).__name__}")
                self._failed(error)
                continue
            if over is not True or times is None:
                if recorder.now() - pair.submit_ns <= NEVER_NS:
                    return
                lane.queue.popleft()
                self._lose(pair, "did not end" if not over else "no anchor of the device's clock")
                continue
            lane.queue.popleft()
            self._errors = 0
            self._write(pair, lane, *times)

    def _write(self, pair: Pair, lane: Lane, start_ns: int, end_ns: int) -> None:
        """A copy lies between its call and now, and behind the one before it on its stream.

        Two threads may use one stream, and their events interleave: only what rounding put a little before
        the end of the last copy is put behind it.
        """
        now = recorder.now()
        if end_ns < start_ns:
            self._lose(pair, None, "negative_duration", keep=True)
        elif start_ns < pair.submit_ns - TOLERANCE_NS or end_ns > now + TOLERANCE_NS:
            self._lose(pair, "the device's clock jumped", "impossible_time", keep=True)
            self.anchors.start_over()
        else:
            if 0 < lane.last_end_ns - start_ns < ROUNDING_NS:
                start_ns = lane.last_end_ns
            start_ns = min(max(start_ns, pair.submit_ns), now)
            end_ns = lane.last_end_ns = max(start_ns, min(end_ns, now))
            scope.within(pair.scope, rows.write, pair, start_ns, end_ns, self._name, lane.name)
            self.pool.give(pair)

    def _lose(self, pair: Pair, why: str | None, cause: str = "dropped", *, keep: bool = False) -> None:
        recorder.lost(cause, op=pair.op, detail=None if why is None else f"copy: {why}")
        if keep:
            self.pool.give(pair)
        else:
            self.pool.retire()

    def _failed(self, error: Exception) -> None:
        self._errors += 1
        if self._errors >= MOST_ERRORS:
            self._errors = 0
            self.gone_until_ns = recorder.now() + GONE_NS
            self.give_up(f"device is gone: {type(error).__name__}")
            self.pool.forget()
            self.anchors = Anchors(self.device, self.index)
