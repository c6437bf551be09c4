"""Which places of HiCache does each version have, and what do we rely on there?

Version -> module -> class -> method -> its parameters after self, as far as we read them. What we read of the
objects is in FIELDS. Both are compared with the wheels' source by a test.
"""

from __future__ import annotations

_CONTROLLER = "sglang.srt.managers.cache_controller"
_HYBRID = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller"
_RADIX = "sglang.srt.mem_cache.hiradix_cache"
_UNIFIED = "sglang.srt.mem_cache.unified_radix_cache"
_BASE = "sglang.srt.mem_cache.base_prefix_cache"

Methods = dict[str, tuple[str, ...]]

_CACHE: Methods = {
    "match_prefix": ("params",),
    "init_load_back": ("params",),
    "loading_check": ("finish_count",),
    "writing_check": ("write_back", "finish_count"),
}
_COPIES: Methods = {
    "load": ("host_indices", "priority", "node_id"),
    "start_loading": (),
    "start_writing": (),
}
_STORAGE: Methods = {
    "_storage_hit_query": ("operation",),
    "_page_transfer": ("operation",),
    "_page_backup": ("operation",),
}
_OVERRIDDEN: Methods = {
    "load": ("host_indices", "priority", "node_id"),
    "_storage_hit_query": ("operation",),
}
"""Hybrid models have these of their own; the others of theirs call the ones above."""

PLACES: dict[str, dict[str, dict[str, Methods]]] = {
    "0.5.18": {
        _CONTROLLER: {"HiCacheController": {**_COPIES, **_STORAGE}},
        _HYBRID: {"HybridCacheController": _OVERRIDDEN},
        _RADIX: {"HiRadixCache": {**_CACHE, "check_prefetch_progress": ("req_id",)}},
        _UNIFIED: {"UnifiedRadixCache": {**_CACHE, "check_prefetch_progress": ("req_id",)}},
    },
    "0.5.23": {
        _CONTROLLER: {"HiCacheController": {**_COPIES, **_STORAGE}},
        _HYBRID: {"HybridCacheController": _OVERRIDDEN},
        _UNIFIED: {"UnifiedRadixCache": {**_CACHE, "check_prefetch_progress": ("request",)}},
    },
}
MODULES = tuple(dict.fromkeys(module for modules in PLACES.values() for module in modules))

_READ: dict[str, dict[str, tuple[str, ...]]] = {
    _CONTROLLER: {
        "HiCacheAck": (
            "start_event",
            "finish_event",
            "node_ids",
            "num_tokens",
            "timing_enabled",
            "num_bytes",
        ),
        "HiCacheController": ("ack_load_queue", "ack_write_queue", "storage_backend_type"),
        "StorageOperation": ("token_ids", "completed_tokens", "hash_value"),
        "PrefetchOperation": ("request_id",),
    },
    _BASE: {
        "MatchPrefixParams": ("key", "req"),
        "InitLoadBackParams": ("host_hit_length", "req"),
    },
}
FIELDS: dict[str, dict[str, dict[str, tuple[str, ...]]]] = {
    "0.5.18": {**_READ, _BASE: {**_READ[_BASE], "MatchResult": ("device_indices", "host_hit_length")}},
    "0.5.23": {
        **_READ,
        _BASE: {
            **_READ[_BASE],
            "MatchResult": ("device_prefix_len", "host_hit_length"),
            "CacheRequestHandle": ("rid",),
        },
    },
}
"""Version -> module -> class -> what we read of its objects."""
