"""Layers that take turns between a sliding window and everything: Gemma 2 and 3, GPT-OSS, Cohere 2, Olmo 3.

Which turn it is says `layer_types`, else `sliding_window_pattern` (every so many layers one that sees
everything), else the class's own pattern. GPT-OSS's attention sinks are learned numbers of the model, not of
the cache. Cohere 2's window holds the token itself besides `sliding_window` others (as vLLM 0.32 keeps it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import by_words, full, refuse_unread, windowed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Stack
    from kvtrace.geometry.storage import Storage

_PATTERN = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6, "gpt_oss": 2, "cohere2": 4, "olmo3": 4}
"""Every so many layers one sees everything, beginning with those that do not."""
MODEL_TYPES = tuple(_PATTERN)
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
    },
    "gemma2": {"sliding_window": 4096},
    "gpt_oss": {"sliding_window": 128},
}


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config)
    if config.get("use_bidirectional_attention"):
        config.refuse("use_bidirectional_attention", "changes the window in a way not known here")
    everything = full(config, storage)
    window = config.count("sliding_window") + (config.get("model_type") == "cohere2")
    kept = {"full_attention": (everything,), "sliding_attention": (windowed(everything, window),)}
    return by_words(config, "layer_types", _words(config), kept)


def _words(config: Configuration) -> tuple[str, ...]:
    layers = config.layers()
    said = config.texts("layer_types", layers)
    if said is not None:
        return said
    every = config.count_or_none("sliding_window_pattern") or _PATTERN[str(config.get("model_type"))]
    return tuple("sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(layers))
