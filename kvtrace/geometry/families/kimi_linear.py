"""Kimi Linear: delta attention (KDA) with a float32 matrix a head, and layers of latent attention.

`linear_attn_config` numbers both kinds of layers from 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import refuse_unread
from kvtrace.geometry.families._latent import latent
from kvtrace.geometry.layers import StateLayer, StatePart

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Layer, Stack
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = ("kimi_linear",)
DEFAULTS: Mapping[str, Mapping[str, Any]] = {}
_FLOAT32_BYTES = 4


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config, read=("kv_lora_rank", "linear_attn_config"))
    linear = config.inside("linear_attn_config")
    heads, head = linear.count("num_heads"), linear.count("head_dim")
    state = StateLayer(
        "kda",
        (
            StatePart(
                "linear_attn_config.num_heads", 3 * heads * head, linear.count("short_conv_kernel_size") - 1,
                storage.state_number_bytes(config),
            ),
            StatePart("linear_attn_config.num_heads", heads, head * head, _FLOAT32_BYTES),
        ),
    )  # fmt: skip
    found: dict[int, Layer] = {}
    for name, kept in (("full_attn_layers", latent(config, storage)), ("kda_layers", state)):
        numbers = linear.numbers(name)
        if numbers is None:
            linear.refuse(name, "is missing")
        found |= dict.fromkeys(numbers, kept)
    layers = config.layers()
    if sorted(found) != list(range(1, layers + 1)):
        linear.refuse("kda_layers", f"with full_attn_layers does not name each of {layers} layers, from 1")
    return tuple((found[number],) for number in range(1, layers + 1))
