"""What does LMCache inside the engine read from its tiers, and which of its pins went wrong?

`batched_get` blocks until the objects of one backend are in host memory: a load from that tier, unless it is
host memory itself. Writes to slower tiers are handed over (`batched_put`) and made in the background by each
backend; what was handed over is the size of a store, when it was written nobody says here.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import configuration
from kvtrace.instrument.wrapping import SKIP, around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

TIERS = {
    "LocalCPUBackend": "host",
    "LocalDiskBackend": "disk",
    "GdsBackend": "disk",
    "NixlStorageBackend": "unknown",
    "P2PBackend": "peer",
    "PDBackend": "peer",
    "RemoteBackend": "object",
}
"""Backend of LMCache -> the tier that it reads from."""
_LOAD = recorder.shape(
    "span",
    ("request_id", "start_ns", "end_ns", "bytes", "tier_from", "component", "rank", "outcome", "reason",
     "attribution", "attributes.asked_keys", "attributes.found_keys"),
    name="lmcache_batched_get", op="load", tier_to="host", observer="worker", evidence="shim", clock="host",
)  # fmt: skip
_EXPIRED = recorder.shape(
    "span", ("start_ns", "end_ns", "bytes", "rank", "attributes.age_ns"), name="lmcache_pin_expired",
    component="lmcache.inprocess", observer="worker", evidence="shim", attribution="aggregate",
)  # fmt: skip

_DOUBLE = recorder.shape(
    "span", ("request_id", "start_ns", "end_ns", "bytes", "rank", "attribution"), name="lmcache_double_unpin",
    component="lmcache.inprocess", observer="worker", evidence="shim",
)  # fmt: skip


class Under(threading.local):
    """The call of the engine that this thread is in, and what it has moved so far."""

    request_id: str | None = None
    bytes = 0
    keys = 0
    no_room = False


under = Under()


def begin(request_id: str | None) -> None:
    """A call of the engine begins in this thread."""
    under.request_id = request_id
    under.bytes = under.keys = 0
    under.no_room = False


def install(module: ModuleType) -> None:
    """Wrap the storage manager."""
    owner = module.StorageManager
    around(owner, "batched_get", _now, _got)
    around(owner, "batched_put", _put, _nothing)
    around(owner, "allocate", _now, _allocated)


def install_pins(module: ModuleType) -> None:
    """Wrap where a pin that is too old is given up."""
    around(module.PinMonitor, "_force_unpin_timeout_object", _now, _expired)


def install_objects(module: ModuleType) -> None:
    """Wrap where an object is unpinned: LMCache warns of one that is not pinned, and goes on."""
    around(module.TensorMemoryObj, "unpin", _unpins, _nothing)


def size(found: Any) -> int:
    """Bytes of an object of LMCache."""
    return int(found.get_size())


def _now(*_: Any, **__: Any) -> int:
    return recorder.now()


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _got(
    start_ns: int, found: Any, _manager: Any, keys: Any, location: str | None = None, *_: Any, **__: Any
) -> None:
    tier = TIERS.get(location or "", "unknown")
    there = [each for each in found or () if each is not None]
    moved = sum([size(each) for each in there])
    under.bytes += moved
    under.keys += len(there)
    if tier == "host":
        return
    outcome = "ok" if len(there) == len(keys) else "partial" if there else "failed"
    name = (location or "unknown").removesuffix("Backend").lower()
    recorder.record((
        _LOAD, under.request_id, start_ns, recorder.now(), moved, tier, f"lmcache.inprocess.{name}",
        configuration.here().rank, outcome, None if outcome == "ok" else "not_found",
        "operation" if under.request_id is None else "request", len(keys), len(there),
    ))  # fmt: skip


def _put(_manager: Any, keys: Any, memory_objs: Any, *_: Any, **__: Any) -> None:
    """Sizes are read before the call: it gives the objects away."""
    under.bytes += sum([size(each) for each in memory_objs])
    under.keys += len(keys)


def _allocated(_start_ns: int, found: Any, *_: Any, **__: Any) -> None:
    if found is None:
        under.no_room = True


def _unpins(memory_obj: Any) -> object:
    if memory_obj.meta.pin_count <= 0:
        now = recorder.now()
        attribution = "operation" if under.request_id is None else "request"
        rank = configuration.here().rank
        recorder.record((_DOUBLE, under.request_id, now, now, size(memory_obj), rank, attribution))
    return SKIP


def _expired(_start_ns: int, _result: Any, _monitor: Any, memory_obj: Any, elapsed_time: float) -> None:
    now = recorder.now()
    age_ns = round(elapsed_time * 1e9)
    recorder.record((_EXPIRED, now, now, size(memory_obj), configuration.here().rank, age_ns))
