"""Blocks that nobody can reuse, and whose they are.

block    1  2  3  4  5
a holds  x  x  x           of one block the earliest hold counts it,
b holds        x  x  x     and only when nothing but holds refers to it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.vllm.holds import Holds
from tests.unit.instrument.vllm.stand_in import Block, Request, connector_class, made, output

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told


def counts(told: Told, name: str | None) -> list[int]:
    """The counts that a request's hold had, in time order."""
    return [row["blocks"] for row in told.parts("open") if row["op"] == "hold" and row["request_id"] == name]


def blocks(*references: int) -> list[Block]:
    made = [Block(number) for number in range(len(references))]
    for block, count in zip(made, references, strict=True):
        block.ref_cnt = count
    return made


def test_a_hold_counts_the_blocks_that_it_alone_refers_to(told: Told) -> None:
    Holds().open_request("a", "store", "fake", blocks(1, 1, 2), 10)
    (row,) = told.parts("open")
    assert (row["blocks"], row["attributes.blocks_total"], row["reason"]) == (2, 3, "store")


def test_of_two_holds_of_one_block_the_earlier_counts_it(told: Told) -> None:
    holds = Holds()
    shared = blocks(1, 1, 2, 1, 1)  # block 2: a holds it, b runs on it
    holds.open_request("a", "store", "fake", shared[:3], 10)
    holds.open_request("b", "store", "fake", shared[2:], 20)
    assert counts(told, "a") == [2, 3]
    assert counts(told, "b") == [2]


def test_when_the_earlier_ends_the_later_counts_it(told: Told) -> None:
    holds = Holds()
    shared = blocks(1, 2, 1)
    holds.open_request("a", "store", "fake", shared[:2], 10)
    holds.open_request("b", "store", "fake", shared[1:], 20)
    for block in shared[:2]:
        block.ref_cnt -= 1
    holds.close_request("a", 30)
    assert counts(told, "b") == [1, 2]
    assert [row["end_ns"] for row in told.parts("close")] == [20, 30, 30]


def test_a_cut_hold_names_its_first_row(told: Told) -> None:
    holds = Holds()
    shared = blocks(2)
    holds.open_request("a", "store", "fake", shared, 10)
    shared[0].ref_cnt = 1
    holds.moved(shared, 20)
    first, second = told.parts("open")
    assert second["attributes.hold"] == first["attributes.hold"] == first["span_id"]
    assert (first["blocks"], second["blocks"]) == (0, 1)


def test_nothing_stays_when_all_holds_are_over(told: Told) -> None:
    holds = Holds()
    shared = blocks(1, 2, 1)
    holds.open_request("a", "store", "fake", shared[:2], 10)
    holds.open_request("b", "store", "fake", shared[1:], 20)
    for block in shared:
        block.ref_cnt = 0
    holds.close_request("b", 30)
    holds.close_request("a", 40)
    assert not holds.holders
    assert not holds.counted
    assert len(told.parts("open")) == len(told.parts("close"))


@pytest.fixture
def scheduler(told: Told) -> Any:  # noqa: ARG001 - the recorder is told's
    return made(connector=connector_class())


def finish(scheduler: Any, name: str) -> None:
    request = scheduler.requests[name]
    request.state = "FINISHED_STOPPED"
    scheduler._free_request(request)


def given(scheduler: Any, name: str, *numbers: int) -> None:
    """A request with these blocks of the pool."""
    scheduler.add_request(Request(name, 16))
    pool = scheduler.kv_cache_manager.block_pool
    taken = [pool.blocks[number] for number in numbers]
    pool.touch(taken)
    scheduler.kv_cache_manager.tables[name] = taken


def test_a_finished_request_whose_transfer_goes_on_holds_its_blocks(told: Told, scheduler: Any) -> None:
    given(scheduler, "a", 1, 2, 3)
    type(scheduler.connector).delay = True
    finish(scheduler, "a")
    assert counts(told, "a") == [3]
    told.clock += 50
    scheduler.update_from_output(scheduler.schedule(), output(finished_sending={"a"}))
    hold = next(row for row in told.parts("open") if row["op"] == "hold")
    (closed,) = [row for row in told.parts("close") if row["span_id"] == hold["span_id"]]
    assert closed["end_ns"] - hold["start_ns"] == 50


def test_a_request_whose_blocks_are_freed_at_once_holds_none(told: Told, scheduler: Any) -> None:
    given(scheduler, "a", 1, 2)
    finish(scheduler, "a")
    assert counts(told, "a") == []


def test_a_prefix_hit_takes_blocks_from_a_holds_count_and_its_end_gives_them_back(
    told: Told, scheduler: Any
) -> None:
    given(scheduler, "a", 1, 2, 3)
    type(scheduler.connector).delay = True
    finish(scheduler, "a")
    type(scheduler.connector).delay = False
    given(scheduler, "b", 1, 2, 9)
    finish(scheduler, "b")
    assert counts(told, "a") == [3, 1, 3]


def test_references_that_a_connector_takes_are_a_hold_until_it_gives_them_back(
    told: Told, scheduler: Any
) -> None:
    pool = scheduler.kv_cache_manager.block_pool
    taken = [pool.blocks[4], pool.blocks[5]]
    scheduler.connector.during = lambda: pool.touch(taken)
    scheduler.connector.build_connector_meta(None)
    scheduler.connector.during = lambda: pool.free_blocks(taken)
    scheduler.connector.update_connector_output(None)
    (opened,) = [row for row in told.parts("open") if row["op"] == "hold"]
    assert (opened["blocks"], opened["reason"], opened["request_id"]) == (2, "store", None)
    assert [row["span_id"] for row in told.parts("close")] == [opened["span_id"]]
    assert not scheduler._kvtrace_tracks.holds.holders


def test_references_given_back_in_the_same_call_are_no_hold(told: Told, scheduler: Any) -> None:
    pool = scheduler.kv_cache_manager.block_pool

    def both() -> None:
        pool.touch([pool.blocks[4]])
        pool.free_blocks([pool.blocks[4]])

    scheduler.connector.during = both
    scheduler.connector.build_connector_meta(None)
    assert not [row for row in told.rows if row.get("op") == "hold"]


def test_lmcaches_lazy_offload_says_whose_blocks_it_holds(told: Told) -> None:
    from types import SimpleNamespace

    scheduler = made(connector=connector_class("LMCacheMPConnector"))
    pool = scheduler.kv_cache_manager.block_pool
    scheduler.connector._pending_store = SimpleNamespace(_request_block_ids={"a": [4], "b": [5]})
    scheduler.connector.during = lambda: pool.touch([pool.blocks[4], pool.blocks[5]])
    scheduler.connector.build_connector_meta(None)
    assert counts(told, "a") == [1]
    assert counts(told, "b") == [1]
