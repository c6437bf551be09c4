"""Nemotron H: a letter a layer: M Mamba 2, * attention, - and E neither (feed-forward, experts).

The matrix state is float32 unless `mamba_ssm_cache_dtype` says otherwise (vLLM 0.32, models/config.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import by_words, full, refuse_unread
from kvtrace.geometry.families._state import mamba2

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Layer, Stack
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = ("nemotron_h",)
DEFAULTS: Mapping[str, Mapping[str, Any]] = {"nemotron_h": {"mamba_ssm_cache_dtype": "float32"}}


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config, read=("hybrid_override_pattern", "layers_block_type"))
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str) or not pattern:
        config.refuse("hybrid_override_pattern", "is missing" if pattern is None else "is no text")
    if config.get("num_hidden_layers") is not None and config.layers() != len(pattern):
        config.refuse(
            "hybrid_override_pattern",
            f"names {len(pattern)} layers, num_hidden_layers says {config.layers()}",
        )
    heads, head = config.count("mamba_num_heads"), config.count("mamba_head_dim")
    state = mamba2(
        config, inner=heads * head, groups="n_groups", heads="mamba_num_heads", head=head,
        state="ssm_state_size", kernel="conv_kernel", number_bytes=storage.state_number_bytes(config),
        state_number_bytes=storage.state_number_bytes(config, "mamba_ssm_cache_dtype"),
    )  # fmt: skip
    kept: dict[str, tuple[Layer, ...]] = {"M": (state,), "*": (full(config, storage),), "-": (), "E": ()}
    return by_words(config, "hybrid_override_pattern", pattern, kept)
