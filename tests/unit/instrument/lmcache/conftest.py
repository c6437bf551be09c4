"""A process of LMCache, without LMCache."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.lmcache import bus as ours
from kvtrace.instrument.lmcache import storage
from kvtrace.instrument.lmcache.prefetches import Prefetches
from tests.unit.instrument.lmcache.literal import Bus, Kind

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

STARTED = 2_000_000_000
"""When the run began, on its monotonic clock; its wall clock is 500 ns ahead."""


class Server:
    """A process of LMCache: its modules, its bus, what its storage is made of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tracing: list[bool] = []
        monkeypatch.setattr(ours, "_storage", None)
        monkeypatch.setattr(ours, "_subscribers", [])
        monkeypatch.setattr(ours, "prefetches", Prefetches())
        modules = {
            "lmcache.v1.mp_observability.event": SimpleNamespace(EventType=Kind),
            "lmcache.v1.mp_observability.trace.decorator": SimpleNamespace(
                set_tracing_enabled=self.tracing.append
            ),
            "lmcache": SimpleNamespace(__version__="0.5.5"),
        }
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        self.config = SimpleNamespace(
            l1_manager_config=SimpleNamespace(
                gds_l1_config=None, read_ttl_seconds=3, write_ttl_seconds=6,
                memory_config=SimpleNamespace(size_in_bytes=64, devdax_path=None),
            ),
            eviction_config=SimpleNamespace(eviction_policy="LRU"),
            l2_adapter_config=SimpleNamespace(adapters=[]),
        )  # fmt: skip

    def start(self, bus: Bus) -> Bus:
        """What LMCache does: the bus, then the storage."""
        kind = type("EventBus", (type(bus),), {})
        ours.install(SimpleNamespace(EventBus=kind, __name__="event_bus"))
        bus.__class__ = kind
        bus.start()
        manager = type("StorageManager", (), {"__init__": lambda *_: None, "submit_prefetch_task": submit})
        storage.install(SimpleNamespace(StorageManager=manager))
        self.manager = manager(self.config)
        return bus


def submit(_self: Any, spec: Any, **_: Any) -> Any:
    return SimpleNamespace(prefetch_request_id=5, l1_hit_chunks=0, total_requested_keys=len(spec.keys))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, told: Told) -> Server:
    assert told.rows == []
    monkeypatch.setenv("KVTRACE_ANCHOR", f"{STARTED}:{STARTED + 500}")
    return Server(monkeypatch)
