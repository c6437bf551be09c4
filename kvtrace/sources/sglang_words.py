"""SGLang's words in ours: its tiers, its storage backends, and what ties two rows of it together."""

from __future__ import annotations

from typing import Any

from kvtrace.sources.records import text

ENGINE = "sglang"
"""The engine of rows whose source names none; SGLang's spans have it as service.name by default."""
COMPONENTS = {"host": "hicache.l2", "storage": "hicache.l3"}
TRANSFER = "hicache.l3"
"""transfer_id of a request's prefetch from storage, wherever it was seen."""
_STORAGE = {
    "file": ("disk", "file"), "HiCacheFile": ("disk", "file"),
    "mooncake": ("object", "mooncake"), "MooncakeStore": ("object", "mooncake"),
    "aibrix": ("object", "aibrix"), "AibrixKVCacheStorage": ("object", "aibrix"),
    "eic": ("object", "eic"), "EICStorage": ("object", "eic"),
    "seaweedfs": ("object", "seaweedfs"), "SeaweedFSStore": ("object", "seaweedfs"),
    "hf3fs": ("object", "hf3fs"), "HiCacheHF3FS": ("object", "hf3fs"),
    "nixl": ("unknown", "nixl"), "HiCacheNixl": ("unknown", "nixl"),
    "npu_memcache": ("unknown", "npu_memcache"), "NpuMemcacheStore": ("unknown", "npu_memcache"),
    "simm": ("unknown", "simm"), "HiCacheSiMM": ("unknown", "simm"),
    "mori": ("unknown", "mori"), "UMBPStore": ("unknown", "mori"),
    "shm": ("host", "shm"), "HiCacheShm": ("host", "shm"),
    "tensorcast": ("unknown", "tensorcast"), "TensorcastStore": ("unknown", "tensorcast"),
    "sim": ("unknown", "sim"), "SimHiCacheStorage": ("unknown", "sim"),
}  # fmt: skip
"""Storage backend, by the name of its option or of its class (backend_factory.py) -> where it keeps state.
What keeps it in more than one kind of place, or nowhere, is unknown."""


def storage(backend: str | None) -> tuple[str, str]:
    """Tier and component of a storage backend."""
    if backend is None:
        return "unknown", COMPONENTS["storage"]
    tier, name = _STORAGE.get(backend, ("unknown", backend[:64]))
    return tier, f"{COMPONENTS['storage']}.{name}"


def storage_name(backend: str) -> str:
    """The backend's name as its option has it, whichever of its names was said."""
    return storage(backend)[1].removeprefix(f"{COMPONENTS['storage']}.")


def room(given: Any) -> str | None:
    """The bootstrap room that both halves of a request share, as the spans of its two engines say it."""
    if isinstance(given, bool):
        return None
    return f"{given:#x}" if isinstance(given, int) and 0 < given < 2**64 else text(given)


def identity(field: str, value: str, source: str) -> dict[str, Any]:
    """A row of `identity` of the external tiers: an engine's own is that of its GPU's state."""
    return {"identity_id": f"{ENGINE}:hicache", "side": "writer", "field": field, "value": value,
            "source": source, "enforced_by": None}  # fmt: skip
