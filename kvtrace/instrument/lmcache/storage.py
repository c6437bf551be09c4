"""What no event says: how the storage is configured, whom a prefetch is for, what was deleted by force."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.lmcache import bus, facts
from kvtrace.instrument.lmcache.keys import COLUMNS, named
from kvtrace.instrument.lmcache.prefetches import submitted, tell
from kvtrace.instrument.lmcache.subscriber import Storage
from kvtrace.instrument.vllm.settings import at
from kvtrace.instrument.wrapping import SKIP, around
from kvtrace.instrument.wrapping import after as after_call
from kvtrace.recorder import shape
from kvtrace.schema.lmcache_keys import L2_TIERS

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_L1 = {"event": "cleared", "component": "lmcache.l1", "evidence": "shim"}
CLEARED = shape("block", ("time_ns", "reason"), **_L1)
FORCED = shape("block", ("time_ns", *COLUMNS), reason="force_delete", **_L1)

FULL = -1
"""LMCache's window of full attention: every chunk of a prefix is needed."""


def install(module: ModuleType) -> None:
    """Wrap the storage manager."""
    around(module.StorageManager, "__init__", _configures, _nothing)
    after_call(module.StorageManager, "submit_prefetch_task", _prefetches)


def install_first_level(module: ModuleType) -> None:
    """Wrap what deletes from L1 without being asked by its eviction."""
    around(module.L1Manager, "clear", _clears, _nothing)
    around(module.L1Manager, "delete", _deletes, _nothing)


def _configures(manager: Any, config: Any, *_: Any, **__: Any) -> None:
    medium, adapters = facts.storage(config)
    ttls = (at(config, f"l1_manager_config.{mode}_ttl_seconds") for mode in ("read", "write"))
    read_ttl_ns, write_ttl_ns = (_ns(seconds) for seconds in ttls)
    tiers = {kind: L2_TIERS.get(inner, "unknown") for kind, inner in adapters.items()}
    bus.configure(Storage(medium, read_ttl_ns, write_ttl_ns, tiers), type(manager))


def _prefetches(
    handle: Any, _self: Any, spec: Any, external_request_id: str = "", *_: Any, **__: Any
) -> None:
    """Whom an L2 prefetch is for: the only place where both of its names are known."""
    mode = str(getattr(spec.mode, "name", spec.mode)).lower()
    request = external_request_id or None
    tell([submitted(request, recorder.now(), handle, mode)])
    if handle.prefetch_request_id >= 0:
        objects = _objects(getattr(spec, "attn_desc", None))
        tell(bus.prefetches.tie(handle.prefetch_request_id, request, warm=mode == "warm", objects=objects))


def _objects(attention: Any) -> int | None:
    """Of how many objects a chunk consists: one a shard and object group, where none of them has a window."""
    windows = getattr(attention, "num_chunks_in_sw", None)
    if not windows or any(window != FULL for window in windows):
        return None  # of a window only its last chunks are kept
    return len(windows) * int(attention.world_size)


def _clears(_self: Any, force: bool = False) -> None:  # noqa: FBT001, FBT002 - LMCache's own signature
    recorder.record((CLEARED, recorder.now(), "force" if force else "unlocked"))


def _deletes(_self: Any, keys: Any, force: bool = False) -> Any:  # noqa: FBT001, FBT002 - LMCache's own signature
    if not force:
        return SKIP
    now = recorder.now()
    for key in keys:
        recorder.record((FORCED, now, *named(key)))
    return None


def _ns(seconds: Any) -> int | None:
    known = isinstance(seconds, (int, float)) and 0 <= seconds < 1 << 32
    return round(seconds * 1e9) if known else None


def _nothing(*_: Any, **__: Any) -> None:
    pass
