"""When is a device's clock compared with the host's, and which anchor is nearest to a copy?

One event on a stream of our own, on which nothing else runs: it is over microseconds after its record. Of
some tries the narrowest counts. One that the device does not get to at once is looked at again later; its
interval is wider, and still true, but as a first one it would say too little and is thrown away. Nothing here
waits for a device.

Whoever has two events around a copy asks `times`: the reaper (station.py) for copies of its own, an engine's
thread (vllm/offload_device.py) for copies that the engine times itself, with less patience.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from kvtrace import recorder
from kvtrace.instrument.torch_cuda.mapping import Mapping

if TYPE_CHECKING:
    from typing import Any

EVERY_NS = 4_000_000_000
"""Between anchors while copies are made: a difference of 4 s is given to half a microsecond."""
STALE_NS = 16_000_000_000
"""After a pause this long the chain begins anew: its next difference would be coarser than 1 us."""
TRIES = 3
NARROW_NS = 20_000
PATIENCE_NS = 1_000_000
WIDEST_NS = 2_000_000
KEPT = 32


class Anchor(NamedTuple):
    """An event whose time is known on both clocks."""

    event: Any
    before_ns: int
    device_ns: int


class Anchors:
    """The anchors of one device, taken by one thread alone, which looks `patience_ns` for a fresh one."""

    def __init__(self, device: Any, index: int, *, patience_ns: int = PATIENCE_NS) -> None:
        self._device = device
        self._index = index
        self._patience_ns = patience_ns
        self._stream: Any = None
        self._late: tuple[Any, int] | None = None
        self._kept: deque[Anchor] = deque(maxlen=KEPT)
        self._told = (0, 0, 0)
        self.mapping = Mapping()

    def renew(self) -> None:
        """Take an anchor if one is due. Raises what the device raises."""
        if self._late is not None:
            late, self._late = self._late, None
            if late[0].query():
                self._add(*late, recorder.now())
            else:
                self._late = late
            return
        if self._kept:
            age = recorder.now() - self._kept[-1].before_ns
            if age < EVERY_NS:
                return
            if age > STALE_NS:
                self.start_over()
        self._take()

    def nearest(self, submit_ns: int) -> Anchor | None:
        """The last anchor before a copy was called, else the first that there is; None without any."""
        for anchor in reversed(self._kept):
            if anchor.before_ns <= submit_ns:
                return anchor
        return self._kept[0] if self._kept else None

    def times(self, submit_ns: int, first: Any, last: Any) -> tuple[int, int] | None:
        """When, on the host's clock, the device came to two events around a copy; None without an anchor.

        The duration is taken between the two events: over so short a time it is exact. Raises what the device
        raises.
        """
        anchor = self.nearest(submit_ns)
        if anchor is None:
            return None
        start = anchor.device_ns + round(anchor.event.elapsed_time(first) * 1e6)
        end = start + round(first.elapsed_time(last) * 1e6)
        return self.mapping.host(start), self.mapping.host(end)

    def start_over(self) -> None:
        """The chain is broken: what was measured stays in `facts`, the next anchor is a first one."""
        self._told = self._sums()
        self._kept.clear()
        self._late = None
        self.mapping = Mapping()

    def facts(self) -> dict[str, int]:
        """Anchors taken, the widest error in ns, jumps of the clock, drift in parts a billion if known."""
        anchors, jumps, worst = self._sums()
        found = {"anchors": anchors, "anchor_error_ns": worst, "clock_jumps": jumps}
        drift = self.mapping.drift_ppb()
        return found if drift is None else {**found, "drift_ppb": drift}

    def _sums(self) -> tuple[int, int, int]:
        anchors, jumps, worst = self._told
        now = self.mapping
        return anchors + now.anchors, jumps + now.jumps, max(worst, now.worst_error)

    def _take(self) -> None:
        if self._stream is None:
            self._stream = self._device.own_stream(self._index)
        best: tuple[int, Any, int, int] | None = None
        for _ in range(TRIES):
            event = self._device.event(self._index)
            before = recorder.now()
            event.record(self._stream)
            seen = self._seen(event, before)
            if seen is None:
                if best is None:
                    self._late = (event, before)
                break
            if best is None or seen - before < best[0]:
                best = (seen - before, event, before, seen)
            if best[0] <= NARROW_NS:
                break
        if best is not None:
            self._add(*best[1:])

    def _seen(self, event: Any, before: int) -> int | None:
        while True:
            done = event.query()
            seen = recorder.now()
            if done:
                return seen
            if seen - before > self._patience_ns:
                return None

    def _add(self, event: Any, before: int, seen: int) -> None:
        device_ns = 0
        if not self._kept and seen - before > WIDEST_NS:
            return
        if self._kept:
            last = self._kept[-1]
            device_ns = last.device_ns + round(last.event.elapsed_time(event) * 1e6)
        self.mapping.anchor(device_ns, before, seen)
        self._kept.append(Anchor(event, before, device_ns))
