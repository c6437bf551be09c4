"""Zamba: Mamba in every layer (Zamba 2: Mamba 2), and in those called hybrid attention besides.

The attention reads the hidden state and the embedding side by side: a head is twice as wide as usual. Its
weights are shared between layers, its keys and values are not. `layers_block_type` says which layers those
are; the first Zamba also by `attn_layer_period` and `attn_layer_offset`, counted from the fourth layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import by_words, refuse_unread
from kvtrace.geometry.families._state import head_size_of_state, mamba, mamba2
from kvtrace.geometry.layers import TokenLayer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Layer, Stack, StateLayer
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = ("zamba", "zamba2")
DEFAULTS: Mapping[str, Mapping[str, Any]] = {}


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config, read=("layers_block_type",))
    state = _mamba(config, storage) if config.get("model_type") == "zamba" else _mamba2(config, storage)
    kept: dict[str, tuple[Layer, ...]] = {
        "mamba": (state,),
        "linear_attention": (state,),
        "hybrid": (state, _attention(config, storage)),
    }
    return by_words(config, "layers_block_type", _words(config), kept)


def _words(config: Configuration) -> tuple[str, ...]:
    layers = config.layers()
    said = config.texts("layers_block_type", layers)
    if said is not None:
        return said
    if config.get("model_type") != "zamba" or config.get("attn_layer_offset") is None:
        config.refuse("layers_block_type", "is missing")
    period, offset = config.count("attn_layer_period"), config.number_or("attn_layer_offset", 0)
    begin = ("mamba", "mamba", "hybrid")
    rest = ("hybrid" if layer % period == offset else "mamba" for layer in range(layers - len(begin)))
    return (*begin, *rest)[:layers]


def _attention(config: Configuration, storage: Storage) -> TokenLayer:
    heads, width = config.count("num_attention_heads"), 2 * config.count("hidden_size")
    if width % heads:
        config.refuse("num_attention_heads", f"is {heads}, which does not divide twice hidden_size")
    own = config.count("num_key_value_heads") if config.get("num_key_value_heads") is not None else heads
    return TokenLayer("full", own, storage.record_bytes(width // heads, width // heads))


def _mamba(config: Configuration, storage: Storage) -> StateLayer:
    return mamba(
        inner=_inner(config), state=config.count("mamba_d_state"), kernel=config.count("mamba_d_conv"),
        number_bytes=storage.state_number_bytes(config), field="hidden_size",
    )  # fmt: skip


def _mamba2(config: Configuration, storage: Storage) -> StateLayer:
    head = head_size_of_state(config, "mamba_headdim", _inner(config), "n_mamba_heads")
    return mamba2(
        config, inner=_inner(config), groups="mamba_ngroups", heads="n_mamba_heads", head=head,
        state="mamba_d_state", kernel="mamba_d_conv", number_bytes=storage.state_number_bytes(config),
    )  # fmt: skip


def _inner(config: Configuration) -> int:
    return config.count("mamba_expand") * config.count("hidden_size")
