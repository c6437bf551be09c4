"""LMCache's multiprocess client, as it runs inside vLLM: what it asked its server for, and what it gave up.

    adapter.py    worker: every store and retrieve, from its submit to the report of its end
    moves.py      ... one of them, and its rows
    copies.py     worker: engine-driven transfers, whose copies are made here
    heartbeat.py  worker: how it sees the server
    inquiries.py  scheduler: lookups, what they wait for and which timeout ended them
    locks.py      scheduler: locks given back, sessions ended, locks left behind
    lazy.py       scheduler: the queue of the lazy offload: queued, drained, stale

The adapters are the same whichever connector class is configured: the current one, those kept for older
versions of vLLM (`_0180`, `_0201`), vLLM's own copy. What belongs to the connector itself is wrapped on the
very class that the factory hands out. Written for LMCache 0.5.5.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kvtrace.instrument.importing import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_ADAPTER = "lmcache.integration.vllm.vllm_multi_process_adapter"
_TRANSFER = "lmcache.v1.multiprocess.transfer_context"
PARTS = (
    (_ADAPTER, "stores and retrieves of LMCache's client", "adapter"),
    (_ADAPTER, "lookups of LMCache's client", "inquiries"),
    (_ADAPTER, "locks and sessions of LMCache's client", "locks"),
    (_ADAPTER, "heartbeat of LMCache's client", "heartbeat"),
    ("lmcache.integration.vllm.lazy_offload_pending_store", "lazy offload of LMCache", "lazy"),
    (f"{_TRANSFER}.worker_transfer", "engine-driven copies of LMCache", "copies"),
    (f"{_TRANSFER}.async_engine_driven", "asynchronous engine-driven copies of LMCache", "copies"),
    (f"{_TRANSFER}.shm", "engine-driven transfers of LMCache in shared memory", "copies"),
    (f"{_TRANSFER}.pickle", "engine-driven transfers of LMCache in messages", "copies"),
)
"""Module of LMCache, what it is to us, and which file here wraps it (its `install`)."""


def arm() -> None:
    """Have each part wrapped when the engine imports it; nothing of LMCache is imported from here."""
    for module, part, file in PARTS:
        when_imported(module, part, _installer(file))


def _installer(file: str) -> Callable[[ModuleType], None]:
    def act(module: ModuleType) -> None:
        import_module(f"{__name__}.{file}").install(module)

    return act
