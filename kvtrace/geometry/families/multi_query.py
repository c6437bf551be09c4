"""Falcon and StarCoder's first generation: one KV head for all queries, told by flags.

Falcon: with `new_decoder_architecture` `num_kv_heads` of them, else one where `multi_query` is true.
GPT BigCode: one where `multi_query` is true. Both else one a query head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.geometry.families._attention import full, refuse_unread

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from kvtrace.geometry.configuration import Configuration
    from kvtrace.geometry.layers import Stack
    from kvtrace.geometry.storage import Storage

MODEL_TYPES = ("falcon", "gpt_bigcode")
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "falcon": {"multi_query": True, "new_decoder_architecture": False},
    "gpt_bigcode": {"multi_query": True},
}


def stack(config: Configuration, storage: Storage) -> Stack:
    """What each hidden layer keeps."""
    refuse_unread(config)
    heads = config.count("num_attention_heads", "n_head")
    if config.get("new_decoder_architecture"):
        heads = config.count("num_kv_heads", "n_head_kv")
    elif config.get("multi_query"):
        heads = 1
    layer = full(config.filling_in({"num_key_value_heads": heads}), storage)
    return ((layer,),) * config.layers()
