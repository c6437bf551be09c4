"""MiniMax Text 01 and M1: lightning attention, a matrix a head, and every so many layers full attention.

`attn_type_list` has a 1 where a layer is full attention; the later form says it in `layer_types`. The matrix
has the model's dtype (vLLM 0.32, layers/mamba/mamba_utils.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import by_words, full, head_size, refuse_unread
from kvtrace.geometry.layers import StateLayer, StatePart

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Layer, Stack
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = ("minimax_text_01", "minimax_m1", "minimax")
DEFAULTS: Mapping[str, Mapping[str, Any]] = {}


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config, read=("attn_type_list",))
    layers, size = config.layers(), head_size(config)
    words = config.texts("layer_types", layers)
    if words is None:
        kinds = config.numbers("attn_type_list")
        if kinds is None or len(kinds) != layers:
            config.refuse("attn_type_list", f"does not name {layers} layers")
        words = tuple("full_attention" if kind == 1 else "linear_attention" for kind in kinds)
    state = StateLayer(
        "lightning",
        (
            StatePart(
                "num_attention_heads", config.count("num_attention_heads"), size * size,
                storage.state_number_bytes(config),
            ),
        ),
    )  # fmt: skip
    kept: dict[str, tuple[Layer, ...]] = {
        "full_attention": (full(config, storage),),
        "linear_attention": (state,),
    }
    return by_words(config, "layer_types", words, kept)
