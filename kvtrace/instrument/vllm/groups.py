"""Which groups of layers have a block table of their own, and which tokens does each still need?

    first = the first token that is computed; W = the window

    full, latent   |==================|first      every token before it
    window                 |==========|first      the W - 1 before it
    chunked                    |======|first      those of its chunk
    recurrent                        =|first      one state, after exactly the token before it

Of a group that is of none of these kinds (rings, encoders, replicas, windows over the answer alone) nothing
is told, nor of one that no load brings: a window that is computed again, a copy of another group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.instrument.vllm import configuration
from kvtrace.instrument.vllm.settings import at
from kvtrace.instrument.wrapping import lose

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

KINDS = {
    "MLAAttentionSpec": "latent",
    "FullAttentionSpec": "full",
    "SlidingWindowSpec": "window",
    "ChunkedLocalAttentionSpec": "chunked",
    "MambaSpec": "recurrent",
}
"""Class of vLLM that says what a layer keeps -> the kind, as kvtrace.geometry calls it; subclasses too."""
OTHERS = {"RSWASpec", "HiddenStateCacheSpec"}
"""Subclasses of these that need something else."""
STATES = {"latent": "kv", "full": "kv", "window": "window", "chunked": "window", "recurrent": "recurrent"}
_SPANS = {"window": "sliding_window", "chunked": "attention_chunk_size"}


class Group:
    """Layers that share a block table.

    `block_bytes` is what a block of all of them takes on this rank; None where it has none of them.
    """

    __slots__ = ("block_bytes", "block_tokens", "kind", "layers", "number", "span", "state_kind")

    def __init__(self, number: int, group: Any, kind: str, spec: Any) -> None:
        sharded = at(configuration.here().config, "parallel_config.decode_context_parallel_size") or 1
        self.number = number
        self.kind = kind
        self.layers = len(group.layer_names)
        self.state_kind = STATES[kind]
        each = _each(group)
        if each and all(at(one, "cache_role.value") == "indexer" for one in each):
            self.state_kind = "indexer"
        self.span = None if kind not in _SPANS else int(getattr(spec, _SPANS[kind]))
        self.block_tokens = int(spec.block_size) * (sharded if getattr(spec, "dcp_sharded", False) else 1)
        self.block_bytes = _block_bytes(group)

    def needs_from(self, first: int) -> int:
        """The earliest token whose state it needs, when this one is the first to be computed."""
        if self.kind == "recurrent":
            return max(0, first - 1)
        if self.span is None:
            return 0
        return max(0, first - self.span + 1) if self.kind == "window" else first // self.span * self.span


def groups_of(config: Any, numbers: Iterable[int] | None = None) -> tuple[Group | None, ...]:
    """The groups of a KVCacheConfig, or those of these numbers; None in the place of one of no known kind.

    Empty where there is no configuration, or one of another version.
    """
    try:
        every = config.kv_cache_groups
        chosen = [(number, every[number]) for number in numbers or range(len(every))]
    except Exception as error:  # noqa: BLE001 - an engine we do not know: the rest is recorded
        if config is not None:
            lose("groups of layers", error)
        return ()
    return tuple([_guarded(number, group) for number, group in chosen])


def _guarded(number: int, group: Any) -> Group | None:
    """A group of another version takes none of the others along."""
    try:
        return _group(number, group)
    except Exception as error:  # noqa: BLE001 - whatever another version raises
        lose("a group of layers", error)
        return None


def _group(number: int, group: Any) -> Group | None:
    own = group.kv_cache_spec
    if not (getattr(own, "prefix_cacheable", True) and getattr(group, "enable_kv_transfer", True)):
        return None
    inside = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    spec = next(iter(inside.values())) if inside else group.kv_cache_spec
    names = [each.__name__ for each in type(spec).__mro__]
    kinds = [KINDS[name] for name in names if name in KINDS]
    return Group(number, group, kinds[0], spec) if kinds and OTHERS.isdisjoint(names) else None


def _block_bytes(group: Any) -> int | None:
    """Of all its layers, without what pads a page."""
    sizes = [_page_bytes(one) for one in _each(group)]
    return sum(map(int, sizes)) if sizes and None not in sizes else None


def _each(group: Any) -> list[Any]:
    """The specification of each layer."""
    inside = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    return list(inside.values()) if inside else [group.kv_cache_spec] * len(group.layer_names)


def _page_bytes(spec: Any) -> Any:
    for name in ("unpadded_page_size_bytes", "real_page_size_bytes", "page_size_bytes"):
        if (found := getattr(spec, name, None)) is not None:
            return found
    return None
