"""Keys and values in every layer, with one window for all of them or none (or by `layer_types`).

`num_key_value_heads` that is missing means as many as query heads where the configuration class says so.
A sliding window counts unless `use_sliding_window` is false (Qwen: only where it is true, and from layer
`max_window_layers` on). A window of 0, or null, is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import by_words, full, refuse_unread, windowed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Layer, Stack, TokenLayer
    from kvtrace.geometry.storage import Storage

_QWEN = (
    "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3", "qwen3_moe",
    "qwen3_vl_text", "qwen3_vl_moe_text",
)  # fmt: skip
_UNLESS_USED = (*_QWEN, "smollm3")
"""Those whose window counts only where `use_sliding_window` is true."""
_FROM_A_LAYER = ("qwen2", "qwen3")
"""Those of them whose layers have it from `max_window_layers` on."""
_UNSAID_WINDOWS = {"mistral": 4096, "qwen2": 4096, "qwen3": 4096}
"""The window that the class has where a file has no such field; null means none."""
_ONE_EACH = (
    "llama", "phi", "phi3", "cohere", "granite", "granitemoe", "olmo", "olmo2", "olmoe",
)  # fmt: skip
"""Those whose class gives every query head its own keys and values where the file is silent."""
MODEL_TYPES = (
    *_ONE_EACH, *_QWEN, "mistral", "ministral3", "mixtral", "phimoe", "gemma", "glm", "glm4", "glm4_moe",
    "minimax_m2", "starcoder2", "smollm3", "stablelm", "ernie4_5", "seed_oss",
)  # fmt: skip
DEFAULTS: Mapping[str, Mapping[str, Any]] = {}


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config)
    layers = config.layers()
    everything = _full(config, storage)
    words = config.texts("layer_types", layers)
    if words is not None:
        kept: dict[str, tuple[Layer, ...]] = {"full_attention": (everything,)}
        if "sliding_attention" in words:
            kept["sliding_attention"] = (windowed(everything, config.count("sliding_window")),)
        return by_words(config, "layer_types", words, kept)
    window = _window(config)
    if window is None:
        return ((everything,),) * layers
    bounded = (windowed(everything, window),)
    if config.get("model_type") not in _FROM_A_LAYER:
        return (bounded,) * layers
    if config.get("max_window_layers") is None:
        config.refuse("max_window_layers", "is missing")
    first = config.number_or("max_window_layers", layers)
    return tuple(bounded if layer >= first else (everything,) for layer in range(layers))


def _full(config: Configuration, storage: Storage) -> TokenLayer:
    if config.get("model_type") in _ONE_EACH and config.get("num_key_value_heads") is None:
        config = config.filling_in({"num_key_value_heads": config.count("num_attention_heads")})
    return full(config, storage)


def _window(config: Configuration) -> int | None:
    model_type, used = config.get("model_type"), config.get("use_sliding_window")
    if used is False or (used is None and model_type in _UNLESS_USED):
        return None
    if model_type in _UNLESS_USED and model_type not in _FROM_A_LAYER:
        config.refuse("layer_types", "is missing, and use_sliding_window is set")
    if "sliding_window" not in config.fields and model_type in _UNSAID_WINDOWS:
        return _UNSAID_WINDOWS[model_type]
    return config.count_or_none("sliding_window")
