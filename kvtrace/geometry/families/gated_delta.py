"""Qwen3-Next and Qwen3.5: gated delta nets, and every so many layers attention.

`layer_types` says which, else `full_attention_interval` (4). The matrix state has the model's dtype unless
`mamba_ssm_dtype` names another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import by_words, full, refuse_unread
from kvtrace.geometry.families._state import gated_delta

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Layer, Stack
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    model_type: {"full_attention_interval": 4} for model_type in MODEL_TYPES
}


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config)
    layers = config.layers()
    words = config.texts("layer_types", layers)
    if words is None:
        every = config.count("full_attention_interval")
        words = tuple(
            "linear_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)
        )
    state = gated_delta(
        config,
        number_bytes=storage.state_number_bytes(config),
        state_number_bytes=storage.state_number_bytes(config, "mamba_ssm_dtype"),
    )
    kept: dict[str, tuple[Layer, ...]] = {
        "full_attention": (full(config, storage),),
        "linear_attention": (state,),
    }
    return by_words(config, "layer_types", words, kept)
