"""Laws of capacity, and bounded windows against counting block by block."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrace.errors import KvtraceError, UsageError
from kvtrace.geometry import Placement, capacity, groups, model_of
from kvtrace.geometry.layers import TokenLayer
from kvtrace.geometry.parallel import stages
from tests.unit.geometry.shapes import KINDS

SHAPES = sorted(KINDS)
RANKS = st.sampled_from([1, 2, 4, 8, 16])
LENGTHS = st.integers(1, 300_000)
BLOCKS = st.sampled_from([1, 7, 16, 128])
FIELDS = sorted({name for config, _ in KINDS.values() for name in (config.get("text_config") or config)})
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 5), st.integers(), st.floats(), st.text(max_size=5),
    st.lists(st.integers(-1, 2), max_size=4), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


def held(span: int | None, tokens: int, block: int) -> int:
    """Blocks with a token that is still in the window, at this length, counted."""
    first = 0 if span is None else max(0, tokens - span)
    return len({token // block for token in range(first, tokens)})


@given(st.integers(1, 60), st.integers(1, 150), st.integers(1, 20))
def test_a_window_holds_at_most_what_counting_finds_on_the_way(span: int, tokens: int, block: int) -> None:
    layer = TokenLayer("window", 1, 1, span)
    assert layer.most_blocks(tokens, block) == max(held(span, each, block) for each in range(1, tokens + 1))


@given(st.sampled_from(SHAPES), RANKS, st.integers(1, 3), BLOCKS, LENGTHS)
def test_groups_sum_to_the_whole_and_ranks_hold_no_less_than_one_copy(
    name: str, tp: int, pp: int, block: int, tokens: int
) -> None:
    model = model_of(KINDS[name][0])
    try:
        whole = capacity(model, Placement(tp, pp), block_size=block, tokens=tokens)
    except UsageError:
        return
    parts = groups(model, Placement(tp, pp), block_size=block, tokens=tokens)
    for figure in (
        "bytes_per_token", "bytes_per_token_per_rank", "bytes_per_token_all_ranks", "bytes_per_block",
        "bytes_per_block_per_rank", "bytes_per_sequence", "bytes_per_request",
    ):  # fmt: skip
        assert getattr(whole, figure) == sum(getattr(part, figure) for part in parts), figure
    blocks = math.ceil(tokens / block)
    assert whole.bytes_per_request == blocks * block * whole.bytes_per_token + whole.bytes_per_sequence
    assert whole.bytes_per_token <= whole.bytes_per_token_all_ranks
    if pp == 1:
        assert whole.bytes_per_token_all_ranks == tp * whole.bytes_per_token_per_rank
    assert whole.bytes_per_token_per_rank <= whole.bytes_per_token


@given(st.sampled_from(SHAPES), BLOCKS, LENGTHS, LENGTHS)
def test_a_longer_request_never_holds_less(name: str, block: int, one: int, other: int) -> None:
    model, (short, long) = model_of(KINDS[name][0]), sorted((one, other))
    first, second = (
        capacity(model, Placement(), block_size=block, tokens=tokens).bytes_per_request
        for tokens in (short, long)
    )
    assert first <= second


@given(st.integers(1, 70), st.integers(1, 9))
def test_stages_are_all_layers_in_order_and_differ_by_one(layers: int, pp: int) -> None:
    stack = tuple((TokenLayer("full", 1, layer + 1),) for layer in range(layers))
    if pp > layers:
        with pytest.raises(UsageError):
            stages(stack, pp)
        return
    found = stages(stack, pp)
    assert tuple(layer for stage in found for layer in stage) == stack
    assert max(map(len, found)) - min(map(len, found)) <= 1


@given(st.sampled_from(SHAPES), st.dictionaries(st.sampled_from(FIELDS), ODD, min_size=1, max_size=3))
def test_hostile_fields_are_a_sentence_or_an_answer(name: str, change: dict[str, Any]) -> None:
    config = KINDS[name][0]
    inner = config.get("text_config")
    broken = config | change if inner is None else config | {"text_config": inner | change}
    with suppress(KvtraceError):
        found = capacity(model_of(broken), Placement(2), block_size=16, tokens=1000)
        assert found.bytes_per_request >= 0
