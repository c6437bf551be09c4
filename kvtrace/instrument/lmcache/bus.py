"""The server's event bus: our subscriber is registered when it starts, before there is anything to hear.

    EventBus.start ─► subscribed to all but mp.tokens     only LMCache's multiprocess server starts a bus
    StorageManager(config) ─► decoders know media and TTLs, calls are traced (the only source of lock counts)

`--disable-observability` makes a bus that cannot be heard: that is said of the process.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from kvtrace.instrument.lmcache import binding, facts
from kvtrace.instrument.lmcache.prefetches import Prefetches
from kvtrace.instrument.lmcache.subscriber import Storage, Subscriber
from kvtrace.instrument.wrapping import ACTIVE, around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

INSTRUMENT = "events of LMCache"
CALLS = "calls of LMCache's storage"
OFF = "not active: the server runs with --disable-observability"
_EVENT = "lmcache.v1.mp_observability.event"
_TRACE = "lmcache.v1.mp_observability.trace.decorator"
prefetches = Prefetches()
_storage: Storage | None = None
_subscribers: list[Subscriber] = []
MOST_SUBSCRIBERS = 64


def install(module: ModuleType) -> None:
    """Wrap the start of the bus."""
    around(module.EventBus, "start", _starts, _started)


def _starts(bus: Any) -> bool:
    """Whether it is heard from now on."""
    own = vars(bus)
    if not own["_config"].enabled:
        facts.describe({INSTRUMENT: OFF})
        return False
    if "_kvtrace" not in own and len(_subscribers) < MOST_SUBSCRIBERS:
        made = own["_kvtrace"] = Subscriber(bus, prefetches)
        made.configure(_storage or Storage())
        _subscribers.append(made)
        made.subscribe(sys.modules[_EVENT].EventType)
        own["_registered_subscribers"].append(made)
        facts.describe({INSTRUMENT: ACTIVE})
    return True


def _started(*_: Any) -> None:
    pass


def configure(storage: Storage, manager: type) -> None:
    """What the storage of this process is, and have the calls of its manager's class traced."""
    global _storage
    _storage = storage
    for subscriber in _subscribers:
        subscriber.configure(storage)
    if _subscribers:
        binding.hasten(manager)
        import_module(_TRACE).set_tracing_enabled(True)
        facts.describe({CALLS: ACTIVE})
    else:
        facts.describe({INSTRUMENT: OFF, CALLS: OFF})
