"""What happens around one copy between host and device, in the engine's own thread?

    begin    a pair from the pool, the host's time, its first event on the stream that the copy will use
    (the copy itself)
    end      its second event on that stream, then the pair waits for the reaper

Nothing here waits or raises; what cannot be recorded is counted. A copy inside a copy is part of it. Copies
that only a graph captures do not run now, and are counted. `KVTRACE_COPIES` = `scoped` (default: copies of
tensors count inside `kvtrace.request`, those of whole blocks always), `all` or `off`: an engine copies its
inputs and weights to the device as well, and those are no state.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import scope
from kvtrace.instrument.torch_cuda import PART
from kvtrace.instrument.torch_cuda.reaper import Reaper
from kvtrace.instrument.torch_cuda.station import Station
from kvtrace.instrument.wrapping import ACTIVE, SKIP

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.torch_cuda.pairs import Pair
    from kvtrace.instrument.torch_cuda.ranges import Ranges


class Inside(threading.local):
    """Whether this thread is inside a copy that is recorded."""

    copy = False


class Copies:
    """The copies of one process."""

    def __init__(self, device: Any, *, ranges: Ranges | None = None, most: int | None = None) -> None:
        self.device = device
        self.every_tensor = os.environ.get("KVTRACE_COPIES") == "all"
        self.reaper = Reaper(device)
        self.closed = False
        self._ranges = ranges
        self._most = most
        self._inside = Inside()
        self._making = threading.Lock()
        self._ends_with_process = False

    def begin(
        self,
        name: str,
        op: str,
        index: int,
        *,
        blocks: int | None = None,
        moved_bytes: int | None = None,
        stream: int | None = None,
    ) -> Any:
        """Before a copy: its pair, or SKIP. `stream` is the handle of one that is not the current one."""
        mine = scope.current()
        if self._inside.copy or self.closed or (mine is not None and mine.covered):
            return SKIP
        pair = None
        try:
            station = self.reaper.stations.get(index) or self._station(index)
            if station.gone_until_ns and recorder.now() < station.gone_until_ns:
                return self._lose(op, "device is gone")
            if self.device.capturing():
                return self._lose(op, "captured by a graph, not run")
            pair = station.pool.take()
            if pair is None:
                return self._lose(op, "no event is free")
            pair.op, pair.name, pair.scope = op, name, mine
            pair.blocks, pair.bytes = blocks, moved_bytes
            if stream is None:
                pair.lane, pair.stream = self.device.stream(index)
            else:
                pair.lane, pair.stream = stream, self.device.external_stream(stream, index)
            if self._ranges is not None:
                pair.range = self._ranges.begin(mine, op)
            pair.submit_ns = recorder.now()
            pair.start.record(pair.stream)
        except Exception as error:  # noqa: BLE001 - a stream that is gone, a device that was reset
            return self._broken(pair, op, error)
        self._inside.copy = True
        return pair

    def end(self, pair: Pair, moved_bytes: int | None) -> None:
        """After a copy that returned."""
        self._inside.copy = False
        try:
            if pair.range is not None and self._ranges is not None:
                self._ranges.end(pair.range)
            pair.end.record(pair.stream)
        except Exception as error:  # noqa: BLE001 - a stream that is gone, a device that was reset
            self._broken(pair, pair.op, error)
            return
        pair.bytes = moved_bytes
        reaper = self.reaper
        pair.station.incoming.append(pair)
        if reaper.idle:
            reaper.wake()

    def drop(self, pair: Pair) -> None:
        """After a copy that raised, or that turned out to be none: its pair is free again."""
        self._inside.copy = False
        try:
            if pair.range is not None and self._ranges is not None:
                self._ranges.end(pair.range)
        finally:
            pair.station.pool.give(pair)

    def finish(self) -> None:
        """Before the recording ends: what is over is written, what is not is counted, no more is begun."""
        if not self.closed:
            self.closed = True
            self.reaper.finish("the process ended before it did")

    def begin_again(self) -> None:
        """In a forked child: no thread, no event of the parent's, nothing that waits."""
        self.reaper = Reaper(self.device)
        self._inside = Inside()
        self._making = threading.Lock()
        self._ends_with_process = False

    def _station(self, index: int) -> Station:
        with self._making:
            found = self.reaper.stations.get(index)
            if found is None:
                most = {} if self._most is None else {"most": self._most}
                found = self.reaper.stations[index] = Station(self.device, index, **most)
                self._end_with_process()
        self.reaper.start()
        return found

    def _end_with_process(self) -> None:
        """What is registered later runs earlier: `describe` has the recorder's end registered before ours.

        A child of multiprocessing ends by os._exit: only finalizers run, and a fork clears those.
        """
        if self._ends_with_process:
            return
        self._ends_with_process = True
        recorder.describe(instruments={PART: ACTIVE})
        atexit.register(self.finish)
        util = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, self.finish, exitpriority=0)

    def _lose(self, op: str, why: str) -> object:
        recorder.lost("dropped", op=op, detail=f"copy: {why}")
        return SKIP

    def _broken(self, pair: Pair | None, op: str, error: Exception) -> object:
        if pair is not None:
            pair.station.pool.retire()
            if pair.range is not None and self._ranges is not None:
                self._ranges.end(pair.range)
        return self._lose(op, f"event cannot be recorded: {type(error).__name__}")
