"""Bytes a token, a block, a sequence, a request, a rank: sums over what the layers keep.

    a request of T tokens = ceil(T / block) blocks of the layers that still grow at T      bytes_per_token
                          + the full windows and chunks of those that no longer grow
                          + the states                                                     bytes_per_sequence

`per_rank` is the fullest rank: with pipeline stages of unequal size the one whose request is largest (of
equal ones the first). Layout padding of an engine (a hybrid's pages made equal) is not part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.errors import InputError, UsageError
from kvtrace.geometry.parallel import Placement, stages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.geometry.layers import Layer, Stack
    from kvtrace.geometry.model import Model

MOST_TOKENS = 1 << 40
MOST_BYTES = 1 << 62
"""No machine has more; what is told fits a 64-bit number."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The figures of a model or of one group of its layers; `group` is None for the whole."""

    group: str | None
    span_tokens: int | None
    bytes_per_token: int
    bytes_per_token_per_rank: int
    bytes_per_token_all_ranks: int
    bytes_per_block: int
    bytes_per_block_per_rank: int
    bytes_per_sequence: int
    bytes_per_request: int
    layers: int


def capacity(model: Model, placement: Placement, *, block_size: int, tokens: int) -> Capacity:
    """The figures of a whole model.

    Raises:
        UsageError: a length that is none, or ranks that the model cannot be spread over.
        InputError: sums that no machine holds.
    """
    _check(model, placement, block_size, tokens)
    rank = _fullest(model.stack, placement, block_size, tokens)
    return _sum(
        None, None, _flat(model.stack), _flat(rank), len(model.stack), placement.tp, block_size, tokens
    )


def groups(model: Model, placement: Placement, *, block_size: int, tokens: int) -> tuple[Capacity, ...]:
    """The figures of each group of equal layers, by their first layers; they sum to the whole's bytes."""
    _check(model, placement, block_size, tokens)
    everywhere = _flat(model.stack)
    rank = _flat(_fullest(model.stack, placement, block_size, tokens))
    found = []
    for kept in dict.fromkeys(everywhere):
        mine = [layer for layer in everywhere if layer == kept]
        held = [layer for layer in rank if layer == kept]
        found.append(_sum(kept.kind, kept.span, mine, held, len(mine), placement.tp, block_size, tokens))
    return tuple(found)


def _check(model: Model, placement: Placement, block_size: int, tokens: int) -> None:
    for name, value in (("--block-size", block_size), ("--tokens", tokens)):
        if not 1 <= value <= MOST_TOKENS:
            raise UsageError(f"{name} {value}: is no number of tokens (1 to {MOST_TOKENS}).")
    if model.attention_heads is not None and model.attention_heads % placement.tp:
        raise UsageError(
            f"--tp {placement.tp}: num_attention_heads is {model.attention_heads}, which it does not divide."
        )


def _flat(stack: Stack) -> list[Layer]:
    return [layer for layers in stack for layer in layers]


def _fullest(stack: Stack, placement: Placement, block_size: int, tokens: int) -> Stack:
    return max(
        stages(stack, placement.pp),
        key=lambda stage: sum(_held(layer, placement.tp, block_size, tokens) for layer in _flat(stage)),
    )


def _held(layer: Layer, tp: int, block_size: int, tokens: int) -> int:
    """Bytes of a request in one layer on one of tp ranks."""
    blocks = layer.most_blocks(tokens, block_size)
    return blocks * block_size * layer.token_bytes(tp) + layer.state_bytes(tp)


def _sum(
    group: str | None,
    span: int | None,
    everywhere: Sequence[Layer],
    rank: Sequence[Layer],
    layers: int,
    tp: int,
    block_size: int,
    tokens: int,
) -> Capacity:
    growing = [layer for layer in everywhere if layer.grows_at(tokens)]
    bounded = [layer for layer in everywhere if not layer.grows_at(tokens)]
    found = Capacity(
        group=group,
        span_tokens=span,
        bytes_per_token=sum(layer.token_bytes(1) for layer in growing),
        bytes_per_token_per_rank=sum(layer.token_bytes(tp) for layer in rank if layer.grows_at(tokens)),
        bytes_per_token_all_ranks=tp * sum(layer.token_bytes(tp) for layer in growing),
        bytes_per_block=block_size * sum(layer.token_bytes(1) for layer in everywhere),
        bytes_per_block_per_rank=block_size * sum(layer.token_bytes(tp) for layer in rank),
        bytes_per_sequence=sum(_held(layer, 1, block_size, tokens) for layer in bounded),
        bytes_per_request=sum(_held(layer, 1, block_size, tokens) for layer in everywhere),
        layers=layers,
    )
    if max(found.bytes_per_request, found.bytes_per_block, found.bytes_per_token_all_ranks) > MOST_BYTES:
        raise InputError("The sums exceed what any machine holds: a dimension or a length is no real one.")
    return found
