"""The engines' own numbers of the real recordings: which agree, which do not, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.golden.truths import numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.run import Run

CACHED = ("concurrent", "l1-reuse", "l2-loads", "server-killed", "stores-dropped")
"""VLLM with LMCache."""


@pytest.mark.parametrize("name", [*CACHED, "native-offload"])
def test_what_vllm_counts_in_tokens_and_requests_agrees(sample: Callable[[str], Run], name: str) -> None:
    numbers.what_vllm_counts_agrees(sample(name))


@pytest.mark.parametrize("name", [*CACHED, "native-offload"])
def test_vllms_queue_time_holds_loads_and_lookups(sample: Callable[[str], Run], name: str) -> None:
    numbers.the_queue_time_holds_loads_and_lookups(sample(name))


@pytest.mark.parametrize("name", CACHED)
def test_lmcaches_numbers_are_explained(sample: Callable[[str], Run], name: str) -> None:
    numbers.lmcaches_numbers_are_explained(sample(name))


def test_the_queue_time_of_the_killed_server_is_a_lookup_of_five_seconds_and_more(
    sample: Callable[[str], Run],
) -> None:
    row = numbers.numbers(sample("server-killed"))["vllm:request_queue_time_seconds_sum"]
    assert row["reason"] == "46.4 ms in it are loads of 4 requests; 5.08 s in it are lookups of 9 requests"


def test_a_hit_of_lmcaches_is_no_load(sample: Callable[[str], Run]) -> None:
    row = numbers.numbers(sample("l1-reuse"))["lmcache_mp.lookup_hit"]
    assert (row["reported"], row["measured"]) == (11_520, 5_632)
    assert row["reason"] == "5,888 tokens were found which the GPU had as well"


def test_a_finished_store_of_lmcaches_may_have_kept_nothing(sample: Callable[[str], Run]) -> None:
    row = numbers.numbers(sample("stores-dropped"))["lmcache_mp.num_finished_stores"]
    assert (row["reported"], row["measured"], row["reason"]) == (7, 2, "5 stores kept nothing")


def test_the_load_time_of_the_native_offloading_is_half_of_what_loads_took(
    sample: Callable[[str], Run],
) -> None:
    """Loads wait for each other, and for the step under way, before anybody may use them."""
    row = numbers.numbers(sample("native-offload"))["vllm:kv_offload_load_time_total"]
    assert (row["reported"], row["measured"]) == (316_632_862, 635_789_292)
    assert row["reason"].startswith("319 ms between order and copy")
