"""An event of the bus -> rows, in the order of delivery, on the bus's own thread.

The callback decodes and appends to the recorder's buffers: no lock, no file, nothing of LMCache is kept.
Delivery order is not time order (what a GPU stamped comes later): whoever reads sorts by time, then `seq`.
LMCache's wall clock becomes the recorder's: both ends of every difference come from one clock.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.lmcache import points
from kvtrace.instrument.lmcache.blend import Blend
from kvtrace.instrument.lmcache.blocks import FirstLevel, second_level
from kvtrace.instrument.lmcache.calls import Calls
from kvtrace.instrument.lmcache.lookups import Lookups
from kvtrace.instrument.lmcache.tasks import Tasks
from kvtrace.instrument.lmcache.transfers import Transfers
from kvtrace.instrument.wrapping import Guard
from kvtrace.recorder.place import clock_pair, given_anchor
from kvtrace.recorder.shapes import LOSS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from kvtrace.instrument.lmcache.blocks import Handler
    from kvtrace.instrument.lmcache.prefetches import Prefetches

REFUSED = ("token",)
"""Parts of the names of events that are never subscribed to: asking makes LMCache copy all token ids."""
LOOK_NS = 1_000_000_000
"""How often the bus is asked what it dropped."""
SAMPLE_DEPTH = "lmcache.event_bus.queue_depth"


class Storage:
    """What the decoders must know of the storage: media, and how long locks live. None = not known."""

    def __init__(
        self,
        medium: str | None = None,
        read_ttl_ns: int | None = None,
        write_ttl_ns: int | None = None,
        tiers: dict[str, str] | None = None,
    ) -> None:
        self.medium, self.read_ttl_ns, self.write_ttl_ns = medium, read_ttl_ns, write_ttl_ns
        self.tiers = tiers or {}
        """L2 adapter's type -> its medium."""
        self.second_tier = _one(self.tiers.values()) if tiers or tiers is None else None
        """The medium of all of L2, `unknown` where it has several; None where there is no L2."""

    def handlers(self, prefetches: Prefetches, offset_ns: int) -> dict[str, Handler]:
        """Every event that we know."""
        first = FirstLevel(self.medium, self.read_ttl_ns, self.write_ttl_ns)
        calls = Calls(self.medium, self.read_ttl_ns, self.write_ttl_ns)
        return {
            **first.handlers(),
            **second_level(self.tiers),
            **points.storage(first),
            **points.Points(offset_ns).handlers(),
            **Lookups(first.tier, self.second_tier, prefetches).handlers(),
            **Transfers(first.tier).handlers(),
            **Tasks(prefetches, first.tier, self.tiers).handlers(),
            **prefetches.handlers(),
            **Blend().handlers(),
            "trace.call": calls.decode,
        }


def _one(media: Iterable[str]) -> str:
    found = set(media)
    return found.pop() if len(found) == 1 else "unknown"


class Subscriber:
    """What a bus calls, on its own thread."""

    def __init__(self, bus: Any, prefetches: Prefetches) -> None:
        self._bus = bus
        self._prefetches = prefetches
        self._seq = count()
        anchor = given_anchor() or clock_pair()
        self._offset_ns = anchor[1] - anchor[0]
        self._handlers: dict[str, Handler] = {}
        self._guard = Guard("event bus subscriber", "lmcache.subscriber")
        self._dropped = 0
        self._failed: dict[str, int] = {}
        self._looked_ns = recorder.now()
        self._looked_at = 0  # by the events' own clock

    def configure(self, storage: Storage) -> None:
        """What the storage is; it is made after the bus has started and before its first event."""
        self._handlers.update(storage.handlers(self._prefetches, self._offset_ns))

    def subscribe(self, kinds: Iterable[Any]) -> None:
        """Subscribe to every type of event but those that carry tokens."""
        for kind in kinds:
            name = str(kind.value)
            if not any(part in name for part in REFUSED):
                self._bus.subscribe(kind, self._callback(name))

    def _callback(self, name: str) -> Callable[[Any], None]:
        """What is called for each event of one name, thousands of times a second."""
        guard, handlers, seq, offset_ns = self._guard, self._handlers, self._seq, self._offset_ns
        record = recorder.record

        def receive(event: Any) -> None:
            """One event; nothing leaves from here."""
            if not guard.on:
                return
            try:
                at = round(event.timestamp * 1e9)
                if at <= 0:
                    recorder.lost("impossible_time", detail="an event of LMCache without a time")
                    return
                handler = handlers.get(name) or self._nobodys(name)
                for row in handler(next(seq), at - offset_ns, event.session_id, event.metadata):
                    record(row)
                if at - self._looked_at > LOOK_NS:
                    self._looked_at = at
                    self.look(recorder.now())
            except Exception as error:  # noqa: BLE001 - never into the server
                guard.failed(error)

        return receive

    def _nobodys(self, name: str) -> Handler:
        recorder.lost("undecodable", detail=f"LMCache's event {name}: nobody knows it")
        return points.numbers(name)

    def look(self, now: int) -> None:
        """Count what the bus dropped, and whose callbacks failed, since the last look."""
        since, self._looked_ns = self._looked_ns, now
        dropped = self._bus.dropped_events_count()
        if dropped > self._dropped:
            detail = "LMCache's event bus was full"
            recorder.record((LOSS, "dropped", dropped - self._dropped, None, detail, since, now))
            self._dropped = dropped
        for name, failures in self._bus.subscriber_exception_counts().items():
            before = self._failed.get(name, 0)
            self._failed[name] = failures
            if failures > before and "receive" in name:  # the others' are theirs: we got those events
                recorder.lost("hook_failure", failures - before, detail=f"LMCache's event bus: {name}")
        recorder.record((points.SAMPLE, now, SAMPLE_DEPTH, float(self._bus.queue_depth())))

    def shutdown(self) -> None:
        """The bus has stopped: what is left of its counts, then all of it into the spool."""
        try:
            self.look(recorder.now())
            recorder.flush()
        except Exception as error:  # noqa: BLE001 - never into the server
            self._guard.failed(error)
