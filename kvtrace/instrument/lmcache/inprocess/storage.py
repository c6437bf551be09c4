"""What does LMCache inside the engine read from its tiers, and which of its pins went wrong?

`batched_get` blocks until the objects of one backend are in host memory: a load from that tier, unless it is
host memory itself. Writes to slower tiers are handed over (`batched_put`) and made in the background by each
backend; what was handed over is the size of a store, when it was written nobody says here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.lmcache.inprocess.calls import size, under
from kvtrace.instrument.vllm import configuration
from kvtrace.instrument.wrapping import SKIP, after, around

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


def install(module: ModuleType) -> None:
    """Wrap the storage manager."""
    owner = module.StorageManager
    around(owner, "batched_get", _now, _got)
    around(owner, "batched_put", _put, _nothing)
    around(owner, "allocate", _now, _allocated)
    around(owner, "batched_allocate", _now, _allocated)
    after(owner, "contains", _contained)


def install_pins(module: ModuleType) -> None:
    """Wrap where a pin that is too old is given up."""
    around(module.PinMonitor, "_force_unpin_timeout_object", _now, _expired)


def install_objects(module: ModuleType) -> None:
    """Wrap where an object is unpinned: LMCache warns of one that is not pinned, and goes on."""
    around(module.TensorMemoryObj, "unpin", _unpins, _nothing)


def _now(*_: Any, **__: Any) -> int:
    return recorder.now()


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _got(
    start_ns: int, found: Any, _manager: Any, keys: Any, location: str | None = None, *_: Any, **__: Any
) -> None:
    there = [each for each in found or () if each is not None]
    moved = under.call.moves(there)
    loaded(location or "unknown", under.call.request_id, start_ns, moved, len(keys), len(there))


def loaded(
    location: str, request_id: str | None, start_ns: int, moved: int, asked: int, found: int,
    failed: str | None = None,
) -> None:  # fmt: skip
    """A backend, by its class, has read objects until now; host memory is where they are read to: no hop."""
    tier = TIERS.get(location, "unknown")
    if tier == "host":
        return
    outcome = "failed" if failed else "ok" if found == asked else "partial" if found else "failed"
    recorder.record((
        _LOAD, request_id, start_ns, recorder.now(), moved, tier,
        f"lmcache.inprocess.{location.removesuffix('Backend').lower()}", configuration.here().rank, outcome,
        failed or (None if outcome == "ok" else "not_found"),
        "operation" if request_id is None else "request", asked, found,
    ))  # fmt: skip


def _put(_manager: Any, keys: Any, memory_objs: Any, *_: Any, **__: Any) -> None:
    """Sizes are read before the call: it gives the objects away."""
    del keys
    under.call.moves(memory_objs)


def _contained(where: Any, *_: Any, **__: Any) -> None:
    if where:
        under.call.there += 1


def _allocated(_start_ns: int, found: Any, *_: Any, **__: Any) -> None:
    if found is None:
        under.call.no_room = True


def _unpins(memory_obj: Any) -> object:
    if memory_obj.meta.pin_count <= 0:
        now = recorder.now()
        attribution = "operation" if under.call.request_id is None else "request"
        rank = configuration.here().rank
        recorder.record((_DOUBLE, under.call.request_id, now, now, size(memory_obj), rank, attribution))
    return SKIP


def _expired(_start_ns: int, _result: Any, _monitor: Any, memory_obj: Any, elapsed_time: float) -> None:
    now = recorder.now()
    age_ns = round(elapsed_time * 1e9)
    recorder.record((_EXPIRED, now, now, size(memory_obj), configuration.here().rank, age_ns))
