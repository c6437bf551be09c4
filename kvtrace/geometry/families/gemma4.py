"""Gemma 4: windows in most layers; those that see everything have heads of their own size and number.

`global_head_dim` (512) is their head's size and, with `attention_k_eq_v`, `num_global_key_value_heads` their
number; values equal to keys are kept all the same. `num_kv_shared_layers` of the last layers keep nothing of
their own, and the last layer always sees everything (transformers' gemma4, vLLM 0.32).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import SHARED, by_words, full, refuse_unread, windowed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Stack, TokenLayer
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = ("gemma4_text",)
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma4_text": {"global_head_dim": 512, "num_kv_shared_layers": 0, "sliding_window": 512}
}
_EVERY = 6


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config, read=("num_kv_shared_layers", "global_head_dim", "attention_k_eq_v"))
    if config.get("use_bidirectional_attention") not in (None, False, "vision"):
        config.refuse("use_bidirectional_attention", "changes the window in a way not known here")
    layers = config.layers()
    words = config.texts("layer_types", layers) or tuple(
        "sliding_attention" if (layer + 1) % _EVERY else "full_attention" for layer in range(layers)
    )
    own = layers - config.number_or("num_kv_shared_layers", 0)
    if own < 1:
        config.refuse("num_kv_shared_layers", "leaves no layer with keys and values of its own")
    kept = {
        "full_attention": (_everything(config, storage),),
        "sliding_attention": (windowed(full(config, storage), config.count("sliding_window")),),
    }
    found = by_words(config, "layer_types", (*words[:-1], "full_attention"), kept)
    return (*found[:own], *((SHARED,),) * (layers - own))


def _everything(config: Configuration, storage: Storage) -> TokenLayer:
    heads = config.count("num_key_value_heads")
    if config.get("attention_k_eq_v") and config.get("num_global_key_value_heads") is not None:
        heads = config.count("num_global_key_value_heads")
    own = {"head_dim": config.count("global_head_dim"), "num_key_value_heads": heads}
    return full(config.saying(own), storage)
