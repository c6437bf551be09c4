"""Latent attention (MLA): one compressed vector a token and the part that carries positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.layers import TokenLayer

if TYPE_CHECKING:
    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.storage import Storage


def latent(config: Configuration, storage: Storage, *, sparse: bool = False) -> TokenLayer:
    """A layer of latent attention; every rank of tensor parallelism keeps all of it."""
    record = storage.latent_bytes(
        config.count("kv_lora_rank"), config.count("qk_rope_head_dim"), sparse=sparse
    )
    return TokenLayer("latent", heads=1, record_bytes=record)
