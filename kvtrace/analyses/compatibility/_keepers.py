"""Who keeps state of another kind from being read? Per product, as found in the source of each.

A field in the key is kept by the key: state of another value has another name, and is never found. A backend
keeps it by refusing the peer, or by a folder of its own. Of all else nobody looks: the bytes are read as they
lie. Read in vLLM 0.32.0 and LMCache 0.5.5 (paths below their packages):

lmcache            the server. Its key is chunk hash, model, kv_rank, object group and salt (ObjectKey in
                   v1/distributed/api.py); kv_rank holds the world size alone, so that TP 2 x PP 1 and
                   TP 1 x PP 2 are one (ipc_key_to_object_keys; of MLA without TP, see kv_world_size in
                   integration/vllm/vllm_multi_process_adapter.py). The hash is made of the tokens, with None
                   for extra keys (hash_tokens in v1/multiprocess/token_hasher.py): no LoRA; a multimodal
                   hash takes the place of its tokens (integration/vllm/lmcache_mp_metadata.py). Layout and
                   dtype are kept a model and world size, the latest wins (LayoutDescRegistry.register in
                   v1/multiprocess/engine_context.py), and a retrieve compares neither.
lmcache.inprocess  the key is model, world size, worker, chunk hash, dtype of the KV cache and tags
                   (CacheEngineKey in utils.py); "ignore extra keys for now" (_hash_tokens in
                   v1/token_database.py): no LoRA; integration/vllm/vllm_v1_adapter.py reads no salt.
vllm               its own block hash, over LoRA name and path, multimodal hash and salt
                   (generate_block_hash_extra_keys in v1/core/kv_cache_utils.py).
vllm.offloading    that hash, below a folder named by model, tokens a hash, dtype of the KV cache, TP, PP and
                   layers (FileMapper in v1/kv_offload/file_mapper.py); where blocks are the same for every
                   layout, TP and PP are left out on purpose. A peer with another such folder, block length or
                   seed is refused (v1/kv_offload/tiering/p2p/session/session.py).
nixl               the handshake's hash of version, model, dtypes, heads and attention backend
                   (compute_nixl_compatibility_hash in .../kv_connector/v1/nixl/metadata.py), unless it is
                   switched off (enforce_handshake_compat); block size, layout and TP are looked at on their
                   own (_validate_remote_agent_handshake in base_worker.py).
"""

from __future__ import annotations

from typing import Literal

Keeper = Literal["key", "backend", "nobody"]

_HASHED = ("hash_algorithm", "hash_seed", "multimodal")
_KEY: dict[str, tuple[str, ...]] = {
    "lmcache": (*_HASHED, "model", "cache_salt", "chunk_size", "world_size", "object_groups"),
    "lmcache.inprocess": (*_HASHED, "model", "chunk_size", "world_size", "kv_cache_dtype"),
    "vllm": (*_HASHED, "lora", "cache_salt", "block_size", "hash_block_size"),
    "vllm.offloading": (*_HASHED, "lora", "cache_salt"),
    "nixl": (),
}
_BACKEND: dict[str, tuple[str, ...]] = {
    "vllm.offloading": (
        "model", "kv_cache_dtype", "block_size", "hash_block_size", "tensor_parallel_size",
        "pipeline_parallel_size", "world_size",
    ),
    "nixl": (
        "model", "dtype", "kv_cache_dtype", "kv_cache_layout", "block_size", "tensor_parallel_size",
        "world_size", "engine_version",
    ),
}  # fmt: skip
_FOREIGN: dict[str, tuple[str, ...]] = {
    "lmcache": ("block_size", "hash_block_size", "hash_algorithm", "hash_seed"),
}
"""Fields of an engine that say nothing of another product's keys: LMCache hashes tokens itself."""
TECHNICAL = ("hash_algorithm", "hash_seed", "chunk_size", "block_size")
"""Fields that change the key of the very same state."""


def product(component: str | None, key_space: str | None) -> str:
    """The product whose keys these are: the longest name that is known, else the first word."""
    name = component or (key_space or "").split(":")[0]
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if (known := ".".join(parts[:length])) in _KEY:
            return known
    return parts[0]


def keeper(of: str, field: str, told: str | None) -> Keeper | None:
    """Who keeps a difference in this field from being read; of a product nobody knows what its row told."""
    if of not in _KEY:
        return told if told in ("key", "backend", "nobody") else None  # type: ignore[return-value]
    if field in _KEY[of]:
        return "key"
    return "backend" if field in _BACKEND.get(of, ()) else "nobody"


def concerns(of: str, field: str) -> bool:
    """Whether an engine's own field says anything of this product's state."""
    return field not in _FOREIGN.get(of.split(".")[0], ())
