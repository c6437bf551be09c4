"""What the server is: its configuration, what its keys are made of, and what of it is wrapped.

Said piece by piece as it becomes known; places of this machine and secrets are left out.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.lmcache import plugin
from kvtrace.instrument.vllm.identity import RANDOM, hash_seed
from kvtrace.instrument.vllm.settings import SECRET, at, said
from kvtrace.instrument.wrapping import around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

SERVER = {
    "chunk_size": "chunk_size",
    "hash_algorithm": "hash_algorithm",
    "server_mode": "engine_type",
    "transfer_mode": "supported_transfer_mode",
    "separate_object_groups": "separate_object_groups",
    "transport": "transport",
    "max_gpu_workers": "max_gpu_workers",
    "max_cpu_workers": "max_cpu_workers",
    "p2p": "p2p_config.enabled",
    "segmented_prefix": "enable_segmented_prefix",
    "worker_reap_timeout_seconds": "worker_reap_timeout_seconds",
}
STORAGE = {
    "l1_bytes": "l1_manager_config.memory_config.size_in_bytes",
    "l1_lazy": "l1_manager_config.memory_config.use_lazy",
    "l1_align_bytes": "l1_manager_config.memory_config.align_bytes",
    "read_ttl_seconds": "l1_manager_config.read_ttl_seconds",
    "write_ttl_seconds": "l1_manager_config.write_ttl_seconds",
    "eviction_policy": "eviction_config.eviction_policy",
    "eviction_watermark": "eviction_config.trigger_watermark",
    "eviction_ratio": "eviction_config.eviction_ratio",
    "store_policy": "store_policy",
    "prefetch_policy": "prefetch_policy",
    "prefetch_max_in_flight": "prefetch_max_in_flight",
}
"""Our name of a setting -> where LMCache's configuration holds it."""
IN_KEY = ("chunk_size", "hash_algorithm", "hash_seed", "model", "cache_salt", "parallel_layout")
SEEDLESS = ("blake3",)
"""Algorithms whose first parent is no seed's hash (`TokenHasher._init_none_hash`)."""
_PLACE = re.compile(r"path|dir|file|url|host|endpoint|address|bucket")
_ADAPTERS = "lmcache.v1.distributed.l2_adapters.config"


def install(module: ModuleType) -> None:
    """Wrap what is given the whole configuration of a server, whichever way it was started."""
    around(module, "create_request_server", _serves, _nothing)


def describe(instruments: dict[str, str] | None = None, **more: Any) -> None:
    """Tell the recorder what is known of this process; later calls add to it."""
    recorder.describe(
        role="server",
        product="lmcache",
        version=plugin.version(),
        instruments={**plugin.instruments(), **(instruments or {})},
        **more,
    )


def storage(config: Any) -> tuple[str, dict[str, str]]:
    """Tell how the storage is configured; L1's medium, and of each adapter's type its own medium's type."""
    found = {name: said(at(config, path)) for name, path in STORAGE.items()}
    found["l1_medium"] = medium = first_medium(config)
    media: dict[str, str] = {}
    for number, adapter in enumerate(at(config, "l2_adapter_config.adapters") or ()):
        kind = _type_of(adapter)
        media[kind] = _innermost(adapter)
        found |= {f"l2.{number}.{name}": text for name, text in _adapter(kind, adapter).items()}
    describe(config={name: text for name, text in found.items() if text is not None})
    return medium, media


def first_medium(config: Any) -> str:
    """What L1 is made of; of a hybrid of memory and DAX the memory, each object says its own."""
    if at(config, "l1_manager_config.gds_l1_config") is not None:
        return "gds"
    memory = at(config, "l1_manager_config.memory_config")
    return "devdax" if at(memory, "devdax_path") and not at(memory, "devdax_size_in_bytes") else "dram"


def _adapter(kind: str, config: Any) -> dict[str, str | None]:
    found: dict[str, str | None] = {"type": kind}
    for name, value in vars(config).items():
        if not SECRET.search(name) and not _PLACE.search(name) and isinstance(value, (str, int, float)):
            found[name] = said(value)
    found["serde"] = said(at(config, "serde_config.type_name") or at(config, "serde_config.type"))
    found["eviction_policy"] = said(at(config, "eviction_config.eviction_policy"))
    inner = at(config, "inner_config")
    if inner is not None:
        found["inner"] = _type_of(inner)
    return found


def _innermost(config: Any) -> str:
    """The type of the adapter that holds the bytes, behind those that wrap it."""
    inner = at(config, "inner_config")
    return _type_of(config) if inner is None else _innermost(inner)


def _type_of(config: Any) -> str:
    try:
        return str(sys.modules[_ADAPTERS].get_type_name_for_config(config))
    except (KeyError, AttributeError, ValueError):
        return type(config).__name__


def _serves(_modules: Any, config: Any) -> None:
    """The server is about to listen: all of its configuration is there."""
    found = {name: said(at(config, path)) for name, path in SERVER.items()}
    settings = {name: text for name, text in found.items() if text is not None}
    instance = str(at(config, "instance_id"))
    describe(engine=instance, config=settings)
    plugin.warn_of_an_unknown_version()
    fields: dict[str, str] = {}
    fields |= {name: text for name, text in settings.items() if name in IN_KEY}
    fields |= {"model": "per request", "cache_salt": "per request", "parallel_layout": "per request"}
    if (seed := seed_of(fields.get("hash_algorithm"))) is not None:
        fields["hash_seed"] = seed
    fields["engine_version"] = plugin.version()
    enforced: dict[str, str] = {name: "key" if name in IN_KEY else "nobody" for name in fields}
    for side in ("writer", "reader"):
        recorder.identity(instance, side, fields, source="MPServerConfig", enforced_by=enforced)


def seed_of(algorithm: str | None) -> str | None:
    """What LMCache's keys grow from: vLLM's seed, by the same rule; None where there is none.

    Python's own `hash` of that seed's text is another in every process, unless PYTHONHASHSEED is given.
    """
    if algorithm is None or algorithm in SEEDLESS:
        return None
    return hash_seed(RANDOM[0] if algorithm == "builtin" else algorithm)


def _nothing(*_: Any, **__: Any) -> None:
    pass
