"""DeepSeek V2, V3 and V3.2, Kimi K2, GLM with latent attention; with `index_topk` also an indexer.

The indexer keeps one key a token: a byte a number and a float32 scale for every 128 of them, whatever the
cache's dtype. With `indexer_types`, `index_topk_freq` or `index_topk_pattern` ("S" skips) some layers use
another layer's choice and keep none (vLLM 0.32, model_executor/models/deepseek_v2.py). Layers of multi-token
prediction are not part of `num_hidden_layers` and not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import by_words, refuse_unread
from kvtrace.geometry.families._latent import latent
from kvtrace.geometry.layers import TokenLayer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Stack
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = (
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite", "glm_moe_dsa",
)  # fmt: skip
DEFAULTS: Mapping[str, Mapping[str, Any]] = {}
_SPARSE = ("deepseek_v32", "glm_moe_dsa")
_SCALED_NUMBERS = 128
_SCALE_BYTES = 4


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config, read=("kv_lora_rank", "index_topk"))
    sparse = config.get("index_topk") is not None
    if config.get("model_type") in _SPARSE and not sparse:
        config.refuse("index_topk", "is missing")
    layer = latent(config, storage, sparse=sparse)
    if not sparse:
        return ((layer,),) * config.layers()
    indexer = TokenLayer("indexer", heads=1, record_bytes=_indexer_bytes(config))
    layers = config.layers()
    words = config.texts("indexer_types", layers)
    if words is not None:
        return by_words(config, "indexer_types", words, {"full": (layer, indexer), "shared": (layer,)})
    return tuple((layer, indexer) if _searches(config, number) else (layer,) for number in range(layers))


def _indexer_bytes(config: Configuration) -> int:
    size = config.count("index_head_dim")
    return size + size // _SCALED_NUMBERS * _SCALE_BYTES


def _searches(config: Configuration, layer: int) -> bool:
    """Does this layer have an indexer of its own?"""
    pattern = config.get("index_topk_pattern")
    if pattern is None:
        every = config.count("index_topk_freq") if config.get("index_topk_freq") is not None else 1
        offset = config.number_or("index_skip_topk_offset", 2)
        return max(layer - offset + 1, 0) % every == 0
    if not isinstance(pattern, (str, list)) or any(letter not in ("F", "S") for letter in pattern):
        config.refuse("index_topk_pattern", "is no pattern of the letters F and S")
    return layer >= len(pattern) or pattern[layer] != "S"
