"""Runs inside the engine's Python: does a field change the key, or the backend's own word? JSON out.

Keys are made by vLLM's and LMCache's own functions, of one chunk of tokens, with one field changed at a time:

    {"vllm": {"lora": true, ...}, "lmcache": {...}, ...}     true: the key is another

What a maker has no place for (LoRA in LMCache's) it drops: the fields of both keys are told beside.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import torch
from lmcache.integration.vllm.utils import apply_mm_hashes_to_token_ids
from lmcache.integration.vllm.vllm_multi_process_adapter import ParallelStrategy
from lmcache.utils import CacheEngineKey
from lmcache.v1.distributed.api import ObjectKey, ipc_key_to_object_keys
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.token_hasher import TokenHasher
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import compute_nixl_compatibility_hash
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_offload.file_mapper import FileMapper

TOKENS = list(range(16))
IMAGE = (4, 8)
"""Offset and length of an image's place in the prompt."""


def vllm_key(
    *, hash_algorithm: str = "sha256", hash_seed: str = "1", block_size: int = 16, lora: str | None = None,
    cache_salt: str | None = None, multimodal: str | None = None, **_: Any,
) -> bytes:  # fmt: skip
    """The last block of the prompt; what else an engine may differ in has no place in it."""
    os.environ["PYTHONHASHSEED"] = hash_seed
    function = get_hash_fn_by_name(hash_algorithm)
    kv_cache_utils.init_none_hash(function)
    place = SimpleNamespace(offset=IMAGE[0], length=IMAGE[1])
    request = SimpleNamespace(
        lora_request=lora and SimpleNamespace(lora_name=lora, lora_path="p"),
        mm_features=[SimpleNamespace(identifier=multimodal, mm_position=place)] if multimodal else [],
        cache_salt=cache_salt, prompt_embeds=None,
    )  # fmt: skip
    parent = None
    for start in range(0, len(TOKENS), block_size):
        extra, _next = kv_cache_utils.generate_block_hash_extra_keys(request, start, start + block_size, 0)
        part = TOKENS[start : start + block_size]
        parent = kv_cache_utils.hash_block_tokens(function, parent, part, extra)
    assert parent is not None
    return parent


def server_key(
    *, hash_algorithm: str = "sha256_cbor", hash_seed: str = "1", chunk_size: int = 16, model: str = "m",
    cache_salt: str = "", tp: int = 1, pp: int = 1, mla: bool = False, multimodal: str | None = None,
    **_: Any,
) -> Any:  # fmt: skip
    """The first object of the prompt's last chunk, as LMCache's client and server make it."""
    os.environ["PYTHONHASHSEED"] = hash_seed
    tokens = torch.tensor(TOKENS)
    if multimodal:
        apply_mm_hashes_to_token_ids(
            tokens, [multimodal], [SimpleNamespace(offset=IMAGE[0], length=IMAGE[1])]
        )
    chunks = TokenHasher(chunk_size, hash_algorithm).compute_chunk_hashes(tokens.tolist())
    ranks = ParallelStrategy(
        mla_only=mla, vllm_world_size=tp * pp, vllm_worker_id=0, tp_size=tp, pp_size=pp, n_servers=1
    )
    key = IPCCacheServerKey(
        model_name=model, world_size=ranks.kv_world_size, worker_id=0, token_ids=tuple(TOKENS), start=0,
        end=len(TOKENS), request_id="r", cache_salt=cache_salt, num_kv_readers=1,
    )  # fmt: skip
    return ipc_key_to_object_keys(key, chunks, [0])[0][-1]


def inside_key(
    *, model: str = "m", world_size: int = 1, kv_cache_dtype: str = "float16", cache_salt: str = "", **_: Any
) -> Any:
    """The same of LMCache inside the engine; a salt comes with the request's own configuration, if at all."""
    configs = {"cache_salt": cache_salt} if cache_salt else None
    return CacheEngineKey(model, world_size, 0, 7, getattr(torch, kv_cache_dtype), configs)


def folder(
    *, model: str = "m", kv_cache_dtype: str = "float16", block_size: int = 16, tp: int = 1, pp: int = 1,
    agnostic: bool = False, **_: Any,
) -> str:  # fmt: skip
    """Where vLLM's offloading keeps its files."""
    return FileMapper(
        "root", model, block_size, 1, tp, pp, 1, 1, 0, kv_cache_dtype, parallel_agnostic=agnostic
    ).base_path


def handshake(
    *, model: str = "m", dtype: str = "float16", kv_cache_dtype: str = "auto", revision: str | None = None,
    quantization: str | None = None, **_: Any,
) -> str:  # fmt: skip
    """What NIXL's peers compare first."""
    heads = {name: lambda: 2 for name in (
        "get_total_num_kv_heads", "get_head_size", "get_total_num_hidden_layers")}  # fmt: skip
    config: Any = SimpleNamespace(
        model_config=SimpleNamespace(
            model=model, dtype=dtype, revision=revision, quantization=quantization, **heads
        ),
        cache_config=SimpleNamespace(cache_dtype=kv_cache_dtype), speculative_config=None,
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
    )  # fmt: skip
    return compute_nixl_compatibility_hash(config, "FLASH_ATTN")


CASES: dict[str, tuple[Any, dict[str, dict[str, Any]]]] = {
    "vllm": (vllm_key, {
        "hash_algorithm": {"hash_algorithm": "sha256_cbor"}, "hash_seed": {"hash_seed": "2"},
        "block_size": {"block_size": 8}, "lora": {"lora": "l"}, "cache_salt": {"cache_salt": "s"},
        "multimodal": {"multimodal": "image"}, "dtype": {"dtype": "float32"}, "model": {"model": "n"},
    }),
    "lmcache": (server_key, {
        "hash_algorithm": {"hash_algorithm": "blake3"}, "hash_seed": {"hash_seed": "2"},
        "chunk_size": {"chunk_size": 8}, "model": {"model": "n"}, "cache_salt": {"cache_salt": "s"},
        "multimodal": {"multimodal": "image"}, "world_size": {"tp": 2}, "lora": {"lora": "l"},
        "dtype": {"dtype": "float32"}, "kv_cache_dtype": {"kv_cache_dtype": "fp8"},
    }),
    "lmcache.inprocess": (inside_key, {
        "model": {"model": "n"}, "world_size": {"world_size": 2}, "cache_salt": {"cache_salt": "s"},
        "kv_cache_dtype": {"kv_cache_dtype": "float32"}, "lora": {"lora": "l"},
    }),
    "vllm.offloading": (folder, {
        "model": {"model": "n"}, "kv_cache_dtype": {"kv_cache_dtype": "fp8"}, "block_size": {"block_size": 8},
        "tensor_parallel_size": {"tp": 2}, "pipeline_parallel_size": {"pp": 2},
        "quantization": {"quantization": "fp8"},
    }),
    "nixl": (handshake, {
        "model": {"model": "n"}, "dtype": {"dtype": "float32"}, "kv_cache_dtype": {"kv_cache_dtype": "fp8"},
        "revision": {"revision": "x"}, "quantization": {"quantization": "fp8"},
    }),
}  # fmt: skip
"""Product -> what makes its key, and what is changed for each field."""


def main() -> None:
    """Every case, and the few where two settings make one key."""
    found: dict[str, Any] = {
        name: {field: make(**change) != make() for field, change in changes.items()}
        for name, (make, changes) in CASES.items()
    }
    found["one"] = {
        "TP 2 x PP 1 and TP 1 x PP 2": server_key(tp=2) == server_key(pp=2),
        "MLA of TP 1 and 2": server_key(mla=True) == server_key(mla=True, tp=2),
        "blake3 of two seeds": server_key(hash_algorithm="blake3")
        == server_key(hash_algorithm="blake3", hash_seed="2"),
        "blocks that every layout has": folder(agnostic=True) == folder(agnostic=True, tp=2, pp=2),
    }
    found["fields"] = {
        kind.__name__: sorted(each.name for each in fields(kind) if each.compare)
        for kind in (IPCCacheServerKey, ObjectKey, CacheEngineKey)
    }
    print("ANSWERS", json.dumps(found))


if __name__ == "__main__":
    main()
