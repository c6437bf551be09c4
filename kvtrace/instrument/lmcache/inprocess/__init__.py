"""LMCache inside vLLM's processes (LMCacheConnectorV1): lookups that pin, retrieves, stores, tiers.

    engine.py       LMCacheEngine: lookup, lookup_unpin, retrieve, store
    layerwise.py    store_layer, retrieve_layer: generators that the engine advances layer by layer
    prefetching.py  async_lookup_and_prefetch, until its server answers
    inquiring.py    the scheduler's clients of the lookup servers, of both kinds
    storage.py      what a call reads from and hands to the tiers below, and pins that were too old
    reading.py      what backends read for layerwise retrieves and for lookups that were sent ahead
    calls.py        which call a thread is in        rows.py   lookups, retrieves and stores as rows

Written for LMCache 0.5.5 and run here on its own engine, storage and local tiers; not inside vLLM: this
LMCache has no connector for a CPU's KV cache ("No supported cpu connector found") and then finds nothing.
Not seen: for which request vLLM retrieves layer by layer (it does not say), and how long what a lookup that
was sent ahead has pinned stays so.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kvtrace.instrument.importing import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_BACKENDS = (
    "local_cpu_backend",
    "local_disk_backend",
    "nixl_storage_backend",
    "p2p_backend",
    "remote_backend",
)
PARTS = (
    ("lmcache.v1.cache_engine", "LMCache inside the engine", "engine", "install"),
    ("lmcache.v1.cache_engine", "LMCache inside the engine, layerwise", "layerwise", "install"),
    ("lmcache.v1.cache_engine", "LMCache inside the engine, lookups sent ahead", "prefetching", "install"),
    (
        "lmcache.v1.storage_backend.storage_manager",
        "tiers of LMCache inside the engine",
        "storage",
        "install",
    ),
    (
        "lmcache.v1.storage_backend.storage_manager",
        "reads ahead of LMCache inside the engine",
        "prefetching",
        "install_storage",
    ),
    (
        "lmcache.v1.lookup_client.lmcache_async_lookup_client",
        "answers of LMCache inside the engine",
        "prefetching",
        "install_server",
    ),
    (
        "lmcache.v1.lookup_client.lmcache_async_lookup_client",
        "asynchronous lookup client of LMCache inside the engine",
        "inquiring",
        "install_asynchronous",
    ),
    (
        "lmcache.v1.lookup_client.lmcache_lookup_client",
        "lookup client of LMCache inside the engine",
        "inquiring",
        "install",
    ),
    ("lmcache.v1.memory_management", "objects of LMCache inside the engine", "storage", "install_objects"),
    ("lmcache.v1.pin_monitor", "pins of LMCache inside the engine", "storage", "install_pins"),
    *(
        (f"lmcache.v1.storage_backend.{name}", f"{name} of LMCache inside the engine", "reading", "install")
        for name in _BACKENDS
    ),
)
"""Module of LMCache, what it is to us, and which function of which file here wraps it."""


def arm() -> None:
    """Have each part wrapped when the engine imports it; nothing of LMCache is imported from here."""
    for module, part, file, function in PARTS:
        when_imported(module, part, _installer(file, function))


def _installer(file: str, function: str) -> Callable[[ModuleType], None]:
    def act(module: ModuleType) -> None:
        getattr(import_module(f"{__name__}.{file}"), function)(module)

    return act
