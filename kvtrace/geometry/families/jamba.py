"""Jamba: every `attn_layer_period`-th layer is attention, from `attn_layer_offset` on; the others Mamba 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import full, refuse_unread
from kvtrace.geometry.families._state import mamba

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Stack
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = ("jamba",)
DEFAULTS: Mapping[str, Mapping[str, Any]] = {}


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config)
    period = config.count("attn_layer_period")
    if config.get("attn_layer_offset") is None:
        config.refuse("attn_layer_offset", "is missing")
    offset = config.number_or("attn_layer_offset", 0)
    everything = full(config, storage)
    state = mamba(
        inner=config.count("mamba_expand") * config.count("hidden_size"), state=config.count("mamba_d_state"),
        kernel=config.count("mamba_d_conv"), number_bytes=storage.state_number_bytes(config),
        field="hidden_size",
    )  # fmt: skip
    return tuple((everything,) if layer % period == offset else (state,) for layer in range(config.layers()))
