"""Inside vLLM's environment: from which token on a group needs its state, as kvtrace and as vLLM have it.

Prints `NEEDS` and a list of [class of vLLM, kind, [[first computed token, ours, vLLM's], ...]].
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import torch
from kvtrace.instrument.vllm.groups import groups_of
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

ATTENTION = {"block_size": 16, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32}
SPECS: list[KVCacheSpec] = [
    FullAttentionSpec(**ATTENTION),
    MLAAttentionSpec(**ATTENTION),
    *(SlidingWindowSpec(**ATTENTION, sliding_window=window) for window in (1, 2, 16, 33)),
    SlidingWindowMLASpec(**ATTENTION, sliding_window=20),
    *(ChunkedLocalAttentionSpec(**ATTENTION, attention_chunk_size=chunk) for chunk in (16, 48)),
    MambaSpec(block_size=16, shapes=((2, 3),), dtypes=(torch.float32,)),
]


def asked(spec: KVCacheSpec) -> tuple[str, str, list[tuple[int, int, int]]]:
    """One group, token by token."""
    group = SimpleNamespace(layer_names=["layer.0"], kv_cache_spec=spec)
    (ours,) = groups_of(SimpleNamespace(kv_cache_groups=[group]))
    assert ours is not None
    kind = KVCacheSpecRegistry.get_manager_class(spec)
    manager = object.__new__(kind)  # the number of skipped tokens is a matter of the specification alone
    for name in ("sliding_window", "extra_retained_tokens", "attention_chunk_size"):
        if hasattr(spec, name):
            setattr(manager, name, getattr(spec, name))
    found = [
        (first, ours.needs_from(first), max(0, manager.get_num_skipped_tokens(first)))
        for first in range(1, 130)
    ]
    return type(spec).__name__, ours.kind, found


print("NEEDS", json.dumps([asked(spec) for spec in SPECS]))
