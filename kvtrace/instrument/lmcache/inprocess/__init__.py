"""LMCache inside vLLM's processes (LMCacheConnectorV1): lookups that pin, retrieves, stores, tiers.

    engine.py    LMCacheEngine: lookup, lookup_unpin, retrieve, store
    storage.py   what a call reads from and hands to the tiers below, and pins that were too old

Written for LMCache 0.5.5 and run here on its own engine, storage and local tiers; not inside vLLM: this
LMCache has no connector for a CPU's KV cache ("No supported cpu connector found") and then finds nothing.
Not seen: layerwise stores and retrieves (`store_layer`, `retrieve_layer`), lookups sent ahead
(`async_lookup_and_prefetch`), and the client of the lookup server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kvtrace.instrument.importing import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

PARTS = (
    ("lmcache.v1.cache_engine", "LMCache inside the engine", "engine", "install"),
    (
        "lmcache.v1.storage_backend.storage_manager",
        "tiers of LMCache inside the engine",
        "storage",
        "install",
    ),
    ("lmcache.v1.memory_management", "objects of LMCache inside the engine", "storage", "install_objects"),
    ("lmcache.v1.pin_monitor", "pins of LMCache inside the engine", "storage", "install_pins"),
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
