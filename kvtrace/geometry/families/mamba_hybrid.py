"""Attention and Mamba 2 in one stack: Granite 4, Bamba, Falcon H1.

Granite says which layer is which in `layer_types`, Bamba in `attn_layer_indices`; every layer of Falcon H1
has both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import by_words, full, refuse_unread
from kvtrace.geometry.families._state import head_size_of_state, mamba2

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Layer, Stack, StateLayer
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = ("granitemoehybrid", "bamba", "falcon_h1")
DEFAULTS: Mapping[str, Mapping[str, Any]] = {}


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config)
    layers = config.layers()
    everything, state = full(config, storage), _state(config, storage)
    if config.get("model_type") == "falcon_h1":
        return ((everything, state),) * layers
    if config.get("model_type") == "bamba":
        attention = config.numbers("attn_layer_indices")
        if attention is None:
            config.refuse("attn_layer_indices", "is missing")
        return tuple((everything,) if layer in attention else (state,) for layer in range(layers))
    words = config.texts("layer_types", layers)
    if words is None:
        config.refuse("layer_types", "is missing")
    kept: dict[str, tuple[Layer, ...]] = {
        "attention": (everything,), "full_attention": (everything,),
        "mamba": (state,), "linear_attention": (state,),
    }  # fmt: skip
    return by_words(config, "layer_types", words, kept)


def _state(config: Configuration, storage: Storage) -> StateLayer:
    if config.get("mamba_d_ssm") is not None:
        inner = config.count("mamba_d_ssm")
    else:
        inner = config.count("mamba_expand") * config.count("hidden_size")
    return mamba2(
        config, inner=inner, groups="mamba_n_groups", heads="mamba_n_heads",
        head=head_size_of_state(config, "mamba_d_head", inner, "mamba_n_heads"), state="mamba_d_state",
        kernel="mamba_d_conv", number_bytes=storage.state_number_bytes(config),
    )  # fmt: skip
