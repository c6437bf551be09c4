"""Llama 4: three of four layers see the current chunk alone, the fourth everything.

`no_rope_layers` has a 0 where a layer sees everything; empty or missing it is every
`no_rope_layer_interval`-th. No `attention_chunk_size` (null) means no chunks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import by_words, full, refuse_unread
from kvtrace.geometry.layers import TokenLayer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Stack
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = ("llama4_text",)
DEFAULTS: Mapping[str, Mapping[str, Any]] = {"llama4_text": {"no_rope_layer_interval": 4}}


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config, read=("attention_chunk_size",))
    if "attention_chunk_size" not in config.fields:
        config.refuse("attention_chunk_size", "is missing")
    everything = full(config, storage)
    chunk = config.count_or_none("attention_chunk_size")
    bounded = everything
    if chunk is not None:
        bounded = TokenLayer("chunked", everything.heads, everything.record_bytes, chunk)
    kept = {"full_attention": (everything,), "chunked_attention": (bounded,)}
    return by_words(config, "layer_types", _words(config), kept)


def _words(config: Configuration) -> tuple[str, ...]:
    layers = config.layers()
    said = config.texts("layer_types", layers)
    if said is not None:
        return said
    flags = config.numbers("no_rope_layers")
    if not flags:
        every = config.count("no_rope_layer_interval")
        flags = tuple(int((layer + 1) % every != 0) for layer in range(layers))
    if len(flags) != layers:
        config.refuse("no_rope_layers", f"names {len(flags)} layers, num_hidden_layers says {layers}")
    return tuple("chunked_attention" if flag else "full_attention" for flag in flags)
