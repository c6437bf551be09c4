"""What is a cached block of vLLM, and which of it does its key vouch for?

A block's key is a hash over the key before it, its tokens, and extra keys: LoRA name and path, multimodal
hash and offset, cache salt, prompt embeddings (v1/core/kv_cache_utils.py). Two engines that share keys cannot
mix up those. Model, dtype, quantisation, layout and window are in no key: where state leaves the engine under
vLLM's keys, nobody checks them unless the backend does.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kvtrace.instrument.vllm import plugin
from kvtrace.instrument.vllm.settings import at, model_name, said

if TYPE_CHECKING:
    from typing import Any

IN_KEY = ("block_size", "hash_algorithm", "hash_seed", "lora", "multimodal", "cache_salt")
RANDOM = ("xxhash", "xxhash_cbor")
"""Algorithms whose seed vLLM keeps secret; it is not written down."""


def identity(config: Any) -> tuple[dict[str, str], dict[str, str]]:
    """(field -> value, field -> who enforces it); what is not set is left out."""
    paths = {
        "revision": "model_config.revision",
        "tokenizer": "model_config.tokenizer",
        "tokenizer_revision": "model_config.tokenizer_revision",
        "dtype": "model_config.dtype",
        "kv_cache_dtype": "cache_config.cache_dtype",
        "kv_cache_layout": "cache_config.kv_cache_layout",
        "quantization": "model_config.quantization",
        "block_size": "cache_config.block_size",
        "hash_block_size": "cache_config.hash_block_size",
        "hash_algorithm": "cache_config.prefix_caching_hash_algo",
        "window": "cache_config.sliding_window",
        "tensor_parallel_size": "parallel_config.tensor_parallel_size",
        "pipeline_parallel_size": "parallel_config.pipeline_parallel_size",
        "rope_theta": "model_config.hf_text_config.rope_parameters.rope_theta",
        "rope_type": "model_config.hf_text_config.rope_parameters.rope_type",
        "rope_factor": "model_config.hf_text_config.rope_parameters.factor",
    }
    values = {name: said(at(config, path)) for name, path in paths.items()}
    values["model"] = model_name(config)
    values["quantization"] = values["quantization"] or "none"
    values["window"] = values["window"] or "none"
    values["hash_seed"] = hash_seed(str(values["hash_algorithm"]))
    values["lora"] = "per request" if at(config, "lora_config") is not None else "none"
    values["cache_salt"] = "per request"
    values["multimodal"] = "per request" if at(config, "model_config.is_multimodal_model") else "none"
    values["engine_version"] = plugin.version()
    fields = {name: value for name, value in values.items() if value is not None}
    return fields, {name: "key" if name in IN_KEY else "nobody" for name in fields}


def key_space(config: Any) -> str:
    """`vllm:<hash algorithm>:<model>`: keys compare only inside one."""
    return f"vllm:{at(config, 'cache_config.prefix_caching_hash_algo')}:{model_name(config)}"


def hash_seed(algorithm: str) -> str:
    """What the first block's parent hash is made from; engines with the same seed have the same keys."""
    given = os.environ.get("PYTHONHASHSEED")
    if algorithm in RANDOM:
        return "random" if given is None else "given"
    return "vllm-none-hash" if given is None else given
