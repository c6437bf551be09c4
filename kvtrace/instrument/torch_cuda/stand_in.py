"""A device without a GPU: streams, events and a clock of its own, for tests (KVTRACE_DEVICE=stand-in).

    host    ──c────────────────────►     a call is made at c
    device     ░░░░████████              what a stream does begins when it is free, takes its time, and the
                   s       e             events around it are over at s and e on the device's clock

A tensor is on it when `place` says so; its copies take the host's own time. `work` makes a stream busy. The
device's clock has another zero than the host's and drifts by `drift_ppm`; `elapsed_time` gives 32-bit
milliseconds, as the driver does.
"""

from __future__ import annotations

from contextlib import nullcontext
from struct import pack, unpack
from time import monotonic_ns
from typing import TYPE_CHECKING

from kvtrace.instrument.torch_cuda.cuda import HOST

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NEVER = 1 << 62


def place(tensor: Any, index: int = 0) -> Any:
    """Say that a tensor is on the stand-in device; gives the tensor."""
    tensor._kvtrace_device = index  # noqa: SLF001 - our own attribute on a foreign object
    return tensor


class Stream:
    """First in, first out: free again at `free_ns` of the host."""

    __slots__ = ("cuda_stream", "free_ns")

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle
        self.free_ns = 0


class Event:
    """Over when its stream has come to it; `broken` is what reading or recording it then raises."""

    __slots__ = ("_device", "at_ns", "broken", "stamp")

    def __init__(self, device: StandIn) -> None:
        self._device = device
        self.at_ns = 0
        self.stamp = 0.0
        self.broken: Exception | None = None

    def record(self, stream: Stream) -> None:
        """Behind everything that the stream has to do."""
        self._check()
        self.at_ns = max(self._device.now(), stream.free_ns)
        self.stamp = self._device.clock(self.at_ns)

    def query(self) -> bool:
        """Whether the stream has come here."""
        self._check()
        return self.at_ns <= self._device.now()

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds of the device's clock from this event to another."""
        self._check()
        other._check()
        return float(unpack("f", pack("f", (other.stamp - self.stamp) / 1e6))[0])

    def _check(self) -> None:
        broken = self.broken or self._device.broken
        if broken is not None:
            raise broken


class StandIn:
    """One or more devices in the host's memory."""

    def __init__(
        self, now: Callable[[], int] = monotonic_ns, *, drift_ppm: float = 0.0, zero_ns: int = 12_345_678
    ) -> None:
        self.now = now
        self.drift_ppm = drift_ppm
        self.broken: Exception | None = None
        self.is_capturing = False
        self.events = 0
        self.default = Stream(0)
        self.pointers: dict[int, int] = {}
        self.zero_ns = zero_ns
        self._streams = 0

    def clock(self, host_ns: int) -> float:
        """The device's clock at a time of the host, ns."""
        return (host_ns - self.zero_ns) * (1 + self.drift_ppm / 1e6)

    def work(self, stream: Stream, lasts_ns: int) -> None:
        """Let a stream do something, behind what it has to do."""
        stream.free_ns = max(self.now(), stream.free_ns) + lasts_ns

    def side(self, tensor: Any) -> int:
        """Index of the device a tensor is on, HOST for none."""
        return getattr(tensor, "_kvtrace_device", HOST)

    def real(self, _tensor: Any) -> bool:
        """Every tensor is."""
        return True

    def current(self) -> int:
        """Device 0."""
        return 0

    def name(self, index: int) -> str:
        """The device's name."""
        return f"stand-in:{index}"

    def stream(self, _index: int) -> tuple[int, Any]:
        """Handle and object of the stream that the next copy uses."""
        return self.default.cuda_stream, self.default

    def own_stream(self, _index: int) -> Stream:
        """A stream on which nothing else runs."""
        self._streams += 1
        return Stream(self._streams)

    def external_stream(self, _handle: int, _index: int) -> Stream:
        """The only stream there is."""
        return self.default

    def event(self, _index: int) -> Event:
        """A new event."""
        self.events += 1
        return Event(self)

    def capturing(self) -> bool:
        """Whether the stream only records a graph."""
        return self.is_capturing

    def on(self, _index: int) -> Any:
        """Nothing to make current."""
        return nullcontext()

    def capture_begins(self) -> None:
        """Graphs are captured on this device alone, when a test says so."""
        self.is_capturing = True

    def capture_ends(self) -> None:
        """The end of it."""
        self.is_capturing = False

    def captures(self) -> bool:
        """Whether a graph is captured."""
        return self.is_capturing

    def relax_thread(self) -> bool:
        """No graph of anybody's can break."""
        return True

    def pointer_side(self, pointer: int) -> int | None:
        """Where a pointer points, as `pointers` says; None when nobody said."""
        return self.pointers.get(pointer)
