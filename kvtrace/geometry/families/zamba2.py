"""Zamba 2: Mamba 2 in every layer, and in those called hybrid attention besides.

The attention reads the hidden state and the embedding side by side: a head is twice as wide as usual. Its
weights are shared between layers, its keys and values are not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import by_words, refuse_unread
from kvtrace.geometry.families._state import head_size_of_state, mamba2
from kvtrace.geometry.layers import TokenLayer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Stack
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = ("zamba2",)
DEFAULTS: Mapping[str, Mapping[str, Any]] = {}


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config, read=("layers_block_type",))
    words = config.texts("layers_block_type", config.layers())
    if words is None:
        config.refuse("layers_block_type", "is missing")
    heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
    if 2 * hidden % heads:
        config.refuse("num_attention_heads", f"is {heads}, which does not divide twice hidden_size {hidden}")
    size = 2 * hidden // heads
    own = config.count("num_key_value_heads") if config.get("num_key_value_heads") is not None else heads
    everything = TokenLayer("full", own, storage.record_bytes(size, size))
    inner = config.count("mamba_expand") * hidden
    state = mamba2(
        config, inner=inner, groups="mamba_ngroups", heads="n_mamba_heads",
        head=head_size_of_state(config, "mamba_headdim", inner, "n_mamba_heads"), state="mamba_d_state",
        kernel="mamba_d_conv", number_bytes=storage.state_number_bytes(config),
    )  # fmt: skip
    kept = {"mamba": (state,), "linear_attention": (state,), "hybrid": (state, everything)}
    return by_words(config, "layers_block_type", words, kept)
