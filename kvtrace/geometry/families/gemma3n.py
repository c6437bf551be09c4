"""Gemma 3n: windows in four of five layers, and the last layers read the keys and values of earlier ones.

`num_kv_shared_layers` of them keep nothing of their own (transformers' and vLLM 0.32's gemma3n).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import SHARED, by_words, full, refuse_unread, windowed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Stack
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = ("gemma3n_text",)
DEFAULTS: Mapping[str, Mapping[str, Any]] = {}
_EVERY = 5


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config, read=("num_kv_shared_layers",))
    layers = config.layers()
    if config.get("num_kv_shared_layers") is None:
        config.refuse("num_kv_shared_layers", "is missing")
    own = layers - config.number_or("num_kv_shared_layers", 0)
    if own < 1:
        config.refuse("num_kv_shared_layers", "leaves no layer with keys and values of its own")
    words = config.texts("layer_types", layers) or tuple(
        "sliding_attention" if (layer + 1) % _EVERY else "full_attention" for layer in range(layers)
    )
    everything = full(config, storage)
    kept = {
        "full_attention": (everything,),
        "sliding_attention": (windowed(everything, config.count("sliding_window")),),
    }
    found = by_words(config, "layer_types", words, kept)
    return (*found[:own], *((SHARED,),) * (layers - own))
