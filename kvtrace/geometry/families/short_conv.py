"""LFM 2: short convolutions that keep a few inputs, and layers of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import by_words, full, refuse_unread
from kvtrace.geometry.layers import StateLayer, StatePart

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Stack
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = ("lfm2", "lfm2_moe")
DEFAULTS: Mapping[str, Mapping[str, Any]] = {}


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config)
    layers = config.layers()
    words = config.texts("layer_types", layers)
    if words is None:
        attention = config.numbers("full_attn_idxs")
        if attention is None:
            config.refuse("layer_types", "is missing (and so is full_attn_idxs)")
        words = tuple("full_attention" if layer in attention else "conv" for layer in range(layers))
    state = StateLayer(
        "short_conv",
        (
            StatePart(
                "conv_dim", config.count("conv_dim", "hidden_size"), config.count("conv_L_cache") - 1,
                storage.state_number_bytes(config),
            ),
        ),
    )  # fmt: skip
    return by_words(
        config, "layer_types", words, {"full_attention": (full(config, storage),), "conv": (state,)}
    )
