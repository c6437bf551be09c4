"""Runs inside the engine's Python: what vLLM itself says a layer's page takes. JSON in, JSON out.

Heads and head sizes come from vLLM's reading of the configuration as transformers understands it, states from
the model classes, bytes from vLLM's own cache specifications: nothing here is computed by us.

    {"config": {...}, "tp": 2, "block": 16, "dtype": "auto"}  ->  [[kind, span, bytes of a page, layers], ...]
    {"layers": 61, "pp": 4}                                   ->  [layers of each stage, ...]
"""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig
from vllm.distributed.utils import get_pp_indices
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateDtypeCalculator, MambaStateShapeCalculator
from vllm.transformers_utils.model_arch_config_convertor import (
    MODEL_ARCH_CONFIG_CONVERTORS,
    ModelArchConfigConvertorBase,
)
from vllm.utils.torch_utils import kv_cache_dtype_str_to_dtype
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    get_kv_quant_mode,
)

STATES = {
    "jamba": ("mamba", "jamba", "JambaForCausalLM"),
    "mamba": ("mamba", "mamba", "MambaForCausalLM"),
    # its own module needs torchvision, which is not here; it asks the same calculators for the same fields
    "qwen3_5_text": ("gated_delta", "qwen3_next", "Qwen3NextForCausalLM"),
    "mamba2": ("mamba2", "mamba2", "Mamba2ForCausalLM"),
    "zamba2": ("mamba2", "zamba2", "Zamba2ForCausalLM"),
    "granitemoehybrid": ("mamba2", "granitemoehybrid", "GraniteMoeHybridForCausalLM"),
    "falcon_h1": ("mamba2", "falcon_h1", "FalconH1ForCausalLM"),
    "nemotron_h": ("mamba2", "nemotron_h", "NemotronHForCausalLM"),
    "qwen3_next": ("gated_delta", "qwen3_next", "Qwen3NextForCausalLM"),
    "lfm2": ("short_conv", "lfm2", "Lfm2ForCausalLM"),
}
PACKED = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}


def pages(case: dict[str, Any]) -> list[tuple[str, int | None, int, int]]:
    """The kinds of layers of one model with the bytes of a page on one rank, and how many layers are so."""
    fields = dict(case["config"])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    text = config.get_text_config()
    kinds = Counter(kind for kept in _words(text) for kind in kept)
    return [
        (kind, span, _spec(kind, span, text, config, case).page_size_bytes, layers)
        for (kind, span), layers in kinds.items()
    ]


def stages(layers: int, pp: int) -> list[int]:
    """How many layers each pipeline stage has."""
    ranges = [get_pp_indices(layers, stage, pp) for stage in range(pp)]
    return [end - start for start, end in ranges]


def _words(text: Any) -> list[list[tuple[str, int | None]]]:
    model_type = text.model_type
    if getattr(text, "kv_lora_rank", None) and model_type != "kimi_linear":
        indexer = [("indexer", None)] if getattr(text, "index_topk", None) else []
        own = getattr(text, "indexer_types", None) or ["full"] * text.num_hidden_layers
        return [[("latent", None), *(indexer if word == "full" else [])] for word in own]
    if model_type == "falcon_h1":
        return [[("full", None), ("mamba2", None)]] * text.num_hidden_layers
    words = getattr(text, "layers_block_type", None) if model_type in ("jamba", "zamba2") else None
    words = words or getattr(text, "layer_types", None)
    if words is None:
        window = getattr(text, "sliding_window", None)
        return [[("window", window) if window else ("full", None)]] * text.num_hidden_layers
    own = len(words) - (getattr(text, "num_kv_shared_layers", None) or 0)
    return [_kept(word, text) for word in words[:own]]


def _kept(word: str, text: Any) -> list[tuple[str, int | None]]:
    attention: tuple[str, int | None] = (
        ("latent", None) if text.model_type == "kimi_linear" else ("full", None)
    )
    state = (STATES[text.model_type][0] if text.model_type in STATES else "kda", None)
    return {
        "full_attention": [attention],
        "attention": [attention],
        "sliding_attention": [("window", _window(text))],
        "chunked_attention": [("chunked", getattr(text, "attention_chunk_size", None))],
        "linear_attention": [state],
        "mamba": [state],
        "conv": [state],
        "hybrid": [state, attention],
        "moe": [],
        "mlp": [],
    }[word]


def _window(text: Any) -> int | None:
    window = getattr(text, "sliding_window", None)
    return window + 1 if text.model_type == "cohere2" else window  # as models/commandr.py builds its layer


def _spec(kind: str, span: int | None, text: Any, config: Any, case: dict[str, Any]) -> KVCacheSpec:
    if kind not in ("full", "window", "chunked", "latent", "indexer"):
        return _state(text, config, case)
    block, name = case["block"], case["dtype"]
    if kind == "indexer":  # as the layer itself is built, with its key's bytes and their scales
        size = text.index_head_dim + text.index_head_dim // 128 * 4
        return MLAAttentionSpec(block_size=block, num_kv_heads=1, head_size=size, dtype=torch.uint8)
    convertor = MODEL_ARCH_CONFIG_CONVERTORS.get(text.model_type, ModelArchConfigConvertorBase)(config, text)
    dtype = kv_cache_dtype_str_to_dtype(name, SimpleNamespace(dtype=torch.bfloat16))
    if kind == "latent":
        return MLAAttentionSpec(
            block_size=block, num_kv_heads=1, head_size=convertor.get_head_size(), dtype=dtype,
            cache_dtype_str=name, state_content_bytes=PACKED.get(name),
        )  # fmt: skip
    layered = convertor.get_per_layer_hf_configs()
    if layered is not None:  # layers that differ: the one of this kind
        number = next(place for place, word in enumerate(_words(text)) if (kind, span) in word)
        convertor = type(convertor)(*layered[number])
        text = layered[number][1]
    size = getattr(text, "attention_head_dim", None) or convertor.get_head_size()
    common = {
        "block_size": block, "num_kv_heads": max(1, convertor.get_total_num_kv_heads() // case["tp"]),
        "head_size": size, "dtype": dtype, "kv_quant_mode": get_kv_quant_mode(name),
    }  # fmt: skip
    if kind == "window":
        spec: Any = SlidingWindowSpec(**common, sliding_window=span)
    elif kind == "chunked":
        spec = ChunkedLocalAttentionSpec(**common, attention_chunk_size=span)
    else:
        spec = FullAttentionSpec(**common)
    return TritonAttentionBackend.customize_spec(spec)


def _state(text: Any, config: Any, case: dict[str, Any]) -> MambaSpec:
    if text.model_type == "kimi_linear":
        shapes = MambaStateShapeCalculator.kda_state_shape(
            case["tp"], text.linear_num_heads, text.linear_head_dim,
            conv_kernel_size=text.linear_conv_kernel_dim,
        )  # fmt: skip
        return MambaSpec(
            block_size=case["block"],
            shapes=shapes,
            dtypes=MambaStateDtypeCalculator.kda_state_dtype(torch.bfloat16, "auto"),
        )
    _, module, name = STATES[text.model_type]
    model = getattr(importlib.import_module(f"vllm.model_executor.models.{module}"), name)
    named = getattr(text, "mamba_ssm_dtype", None) or "auto"
    named = "float32" if text.model_type == "nemotron_h" else named  # as models/config.py sets it
    engine = SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=case["tp"]),
        model_config=SimpleNamespace(hf_config=config, hf_text_config=text, dtype=torch.bfloat16),
        cache_config=SimpleNamespace(
            mamba_cache_dtype="auto", mamba_ssm_cache_dtype=named, use_replayssm=False
        ),
        speculative_config=None,
        num_speculative_tokens=0,
    )
    return MambaSpec(
        block_size=case["block"],
        shapes=model.get_mamba_state_shape_from_config(engine),
        dtypes=model.get_mamba_state_dtype_from_config(engine),
    )


if __name__ == "__main__":
    answers = []
    for each in json.load(sys.stdin):
        try:
            answers.append(pages(each) if "config" in each else stages(each["layers"], each["pp"]))
        except Exception as error:  # noqa: BLE001 - the test says which case and why
            answers.append(f"{type(error).__name__}: {error}")
    print("ANSWERS " + json.dumps(answers))
