"""How does the engine see its external cache: healthy, or degraded?

LMCache's client flips to unhealthy when a call to its server times out, and the scheduler then stops asking:
a degraded interval. There is no event for it, so its state is read after each call that may have flipped it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import products, rows

if TYPE_CHECKING:
    from typing import Any


class Watch:
    """One adapter whose health is watched, and the interval it is in."""

    __slots__ = ("adapter", "component", "connector", "healthy", "span_id")

    def __init__(self, connector: Any, adapter: Any) -> None:
        self.connector = connector
        self.adapter = adapter
        self.component = products.component(connector)
        self.healthy: bool | None = None
        self.span_id: int | None = None

    def poll(self) -> bool:
        """Read the state; True when it just became unhealthy."""
        healthy = bool(self.adapter.is_healthy)
        if healthy is self.healthy:
            return False
        now_ns = recorder.now()
        if self.span_id is not None:
            recorder.record((rows.HEALTH_CLOSE, self.span_id, now_ns))
        self.span_id = recorder.next_id()
        reason = "healthy" if healthy else "degraded"
        recorder.record((rows.HEALTH_OPEN, self.span_id, now_ns, reason, self.component))
        flipped = self.healthy is not None and not healthy
        self.healthy = healthy
        return flipped


def watches(connector: Any) -> list[Watch]:
    """A watch for each connector, Multi's children included, that knows whether its cache is healthy."""
    from kvtrace.instrument.vllm.track import family

    found = []
    for each in family(connector):
        adapter = getattr(each, "scheduler_adapter", None)
        if isinstance(getattr(type(adapter), "is_healthy", None), property):
            found.append(Watch(each, adapter))
    return found
