"""Tokens, blocks, requests and ranks, on numbers small enough to count."""

from __future__ import annotations

from typing import Any

import pytest
from kvtrace.errors import InputError, UsageError
from kvtrace.geometry import Capacity, Placement, capacity, groups, model_of
from kvtrace.geometry.parallel import stages
from kvtrace.run import open_run
from tests.engines import model as tiny
from tests.samples import SAMPLES
from tests.unit.geometry import shapes


def figures(
    config: dict[str, Any], *, tp: int = 1, pp: int = 1, block: int = 16, tokens: int = 1
) -> Capacity:
    return capacity(model_of(config), Placement(tp, pp), block_size=block, tokens=tokens)


def test_a_request_is_whole_blocks() -> None:
    found = figures(shapes.LLAMA_8B, tokens=17)
    assert found.bytes_per_block == 16 * 131072
    assert found.bytes_per_request == 2 * 16 * 131072
    assert found.bytes_per_sequence == 0


def test_heads_are_replicated_when_there_are_more_ranks() -> None:
    found = figures(shapes.LLAMA_8B, tp=16)  # 8 KV heads
    assert found.bytes_per_token == 131072
    assert found.bytes_per_token_per_rank == 131072 // 8
    assert found.bytes_per_token_all_ranks == 2 * 131072


def test_every_rank_keeps_the_whole_latent() -> None:
    found = figures(shapes.DEEPSEEK_V3, tp=8)
    assert found.bytes_per_token_per_rank == found.bytes_per_token == 70_272
    assert found.bytes_per_token_all_ranks == 8 * 70_272


def test_pipeline_stages_that_are_unequal_name_the_fullest_rank() -> None:
    found = figures(shapes.DEEPSEEK_V3, pp=4)  # 15, 15, 16, 15 of 61
    assert found.bytes_per_token_per_rank == 16 * 1152
    assert found.bytes_per_token_all_ranks == found.bytes_per_token
    two_left = figures(shapes.DEEPSEEK_V3 | {"num_hidden_layers": 62}, pp=4)  # 15, 16, 16, 15
    assert two_left.bytes_per_token_per_rank == 16 * 1152


@pytest.mark.parametrize(
    ("layers", "sizes"), [(60, [15, 15, 15, 15]), (61, [15, 15, 16, 15]), (62, [15, 16, 16, 15])]
)
def test_what_is_left_over_goes_to_the_stages_before_the_last(layers: int, sizes: list[int]) -> None:
    stack = model_of(shapes.DEEPSEEK_V3 | {"num_hidden_layers": layers}).stack
    assert [len(stage) for stage in stages(stack, 4)] == sizes


def test_a_full_window_grows_no_more() -> None:
    """GPT-OSS: 18 layers with a window of 128 tokens.

    blocks of 16   |..............X|XXXX ... XXXX|X..............|   the window begins inside a block
                          1        +   7  x 16   +        1           127 + 1 tokens: 9 blocks at most
    """
    one_layer = 18 * 2048
    assert figures(shapes.GPT_OSS, tokens=128).bytes_per_token == one_layer
    young, full = figures(shapes.GPT_OSS, tokens=127), figures(shapes.GPT_OSS, tokens=1000)
    assert young.bytes_per_token == 2 * one_layer
    assert young.bytes_per_request == 2 * 8 * 16 * one_layer
    assert full.bytes_per_token == one_layer
    assert full.bytes_per_sequence == 9 * 16 * one_layer
    assert full.bytes_per_request == (63 * 16 + 9 * 16) * one_layer


def test_a_chunk_is_bounded() -> None:
    found = figures(shapes.LLAMA4, tokens=100_000)
    assert found.bytes_per_token == 12 * 4096
    assert found.bytes_per_sequence == 36 * 8192 * 4096


def test_states_are_of_the_sequence_and_of_no_token() -> None:
    found = figures(shapes.MAMBA2, tokens=10**6)
    assert found.bytes_per_token == found.bytes_per_block == 0
    assert found.bytes_per_sequence == found.bytes_per_request == 64 * (61440 + 2097152)


def test_one_group_of_a_state_is_replicated_over_ranks() -> None:
    mamba = model_of(shapes.GRANITE_HYBRID).stack[0][0]
    inner, groups_of, state, heads = 8192, 1, 128, 128
    assert mamba.state_bytes(1) == ((inner + 2 * groups_of * state) * 3 + heads * 64 * state) * 2
    assert mamba.state_bytes(4) == ((inner + 2 * 4 * state) // 4 * 3 + heads // 4 * 64 * state) * 2


def test_shared_layers_take_nothing() -> None:
    rows = groups(model_of(shapes.GEMMA3N), Placement(), block_size=16, tokens=64)
    assert [(row.group, row.bytes_per_request) for row in rows] == [
        ("window", 16 * 64 * 2048), ("full", 4 * 64 * 2048), ("shared", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        (shapes.LLAMA_8B, {"tp": 3}, "--tp 3: num_attention_heads is 32"),
        (shapes.LLAMA_8B | {"num_key_value_heads": 6}, {"tp": 4}, "--tp 4: num_key_value_heads is 6"),
        (shapes.MAMBA2, {"tp": 3}, "--tp 3: does not divide"),
        (shapes.LLAMA_8B, {"tp": 0}, "--tp 0"),
        (shapes.LLAMA_8B, {"pp": 33}, "--pp 33: num_hidden_layers is 32"),
        (shapes.GEMMA3N, {"pp": 2}, "--pp 2: layers share"),
        (shapes.LLAMA_8B, {"block": 0}, "--block-size 0"),
        (shapes.LLAMA_8B, {"tokens": -1}, "--tokens -1"),
    ],
)  # fmt: skip
def test_what_cannot_be_spread_says_so(config: dict[str, Any], options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        figures(config, **options)


def test_numbers_that_no_machine_has_are_refused() -> None:
    with pytest.raises(InputError, match="exceed what any machine holds"):
        figures(shapes.LLAMA_8B | {"head_dim": 1 << 39}, tokens=1 << 39)


@pytest.mark.parametrize("sample", ["l1-reuse", "native-offload", "l2-loads", "concurrent"])
def test_real_transfers_carried_as_many_bytes_a_token(sample: str) -> None:
    expected = figures(tiny.configuration()).bytes_per_token
    rows = open_run(SAMPLES / sample).sql(
        "SELECT DISTINCT bytes / tokens AS each FROM span WHERE op IN ('load', 'store') "
        "AND bytes IS NOT NULL AND tokens > 0"
    )
    assert rows["each"].to_list() == [expected]
