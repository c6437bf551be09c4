"""A pool that breaks its contract with a hold, and all the ways of giving back that do not.

a holds b1 b2   |------ hold ------|
the pool           hands out b1, or gets b1 back from somebody else
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.vllm import pool_checks
from tests.unit.instrument.vllm.stand_in import connector_class, made, output
from tests.unit.instrument.vllm.test_holds import finish, given

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.unit.instrument.conftest import Told
    from tests.unit.instrument.vllm.stand_in import Block


@pytest.fixture
def scheduler(told: Told, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ARG001 - the recorder is told's
    monkeypatch.setattr(pool_checks, "counted", pool_checks.Counted())
    return made(connector=connector_class())


def broken(told: Told) -> list[tuple[str, str | None, str]]:
    """Reason, request and block of each violation."""
    rows = told.table("block")
    assert all(row["event"] == "failed" and row["component"] == "vllm.gpu" for row in rows)
    return [(row["reason"], row["request_id"], row["key"]) for row in rows]


def held(scheduler: Any, name: str = "a", *numbers: int) -> Any:
    """The pool, in which a finished request holds these blocks (1 and 2)."""
    given(scheduler, name, *(numbers or (1, 2)))
    type(scheduler.connector).delay = True
    finish(scheduler, name)
    return scheduler.kv_cache_manager.block_pool


def sent(scheduler: Any, *names: str) -> None:
    scheduler.update_from_output(scheduler.schedule(), output(finished_sending=set(names)))


def checked(told: Told) -> list[int]:
    return [facts["checked_allocations"] for facts in told.described if "checked_allocations" in facts]


def test_a_held_block_that_is_handed_out_is_a_violation_told_once(told: Told, scheduler: Any) -> None:
    pool = held(scheduler)
    pool.next = [7, 2, 2]
    pool.get_new_blocks(2)
    pool.get_new_blocks(1)
    assert broken(told) == [("held_block_reused", "a", "2")]
    (hold,) = [row for row in told.parts("open") if row["op"] == "hold"]
    assert told.table("block")[0]["span_id"] == hold["span_id"]


def test_of_two_holds_one_after_the_other_each_is_told(told: Told, scheduler: Any) -> None:
    pool = held(scheduler)
    pool.next = [2, 2]
    pool.get_new_blocks(1)
    sent(scheduler, "a")
    held(scheduler, "b", 2, 3)
    pool.get_new_blocks(1)
    reused = [row for row in broken(told) if row[0] == "held_block_reused"]
    assert reused == [("held_block_reused", "a", "2"), ("held_block_reused", "b", "2")]


def test_a_hold_is_over_as_soon_as_the_manager_has_freed_its_request(told: Told, scheduler: Any) -> None:
    pool = held(scheduler)
    scheduler.kv_cache_manager.free(scheduler.requests["a"])
    pool.next = [1, 2]
    pool.get_new_blocks(2)
    assert broken(told) == []


def test_blocks_handed_out_beside_and_after_a_hold_are_no_violation(told: Told, scheduler: Any) -> None:
    pool = held(scheduler)
    pool.next = [7, 8, 1, 2]
    pool.get_new_blocks(2)
    sent(scheduler, "a")
    pool.get_new_blocks(2)
    assert broken(told) == []
    assert scheduler._kvtrace_tracks.holds.checks.idle


def test_a_block_that_somebody_else_gives_back_is_freed_twice(told: Told, scheduler: Any) -> None:
    pool = held(scheduler)
    pool.free_blocks([pool.blocks[1], pool.blocks[9]])
    assert broken(told) == [("freed_twice", "a", "1")]
    sent(scheduler, "a")
    assert broken(told) == [("freed_twice", "a", "1")]


def test_a_block_given_back_again_after_its_hold_is_freed_twice(told: Told, scheduler: Any) -> None:
    pool = held(scheduler)
    sent(scheduler, "a")
    assert broken(told) == []
    pool.free_blocks(reversed([pool.blocks[1]]))
    assert broken(told) == [("freed_twice", "a", "1")]


def test_a_block_taken_anew_is_no_longer_the_holds(told: Told, scheduler: Any) -> None:
    pool = held(scheduler)
    sent(scheduler, "a")
    pool.next = [1, 2]
    pool.get_new_blocks(2)
    pool.free_blocks([pool.blocks[1], pool.blocks[2]])
    pool.free_blocks([pool.blocks[1]])
    assert broken(told) == []


def test_a_request_that_shares_a_held_block_gives_its_own_reference_back(told: Told, scheduler: Any) -> None:
    held(scheduler)
    type(scheduler.connector).delay = False
    given(scheduler, "b", 1, 2, 5)
    finish(scheduler, "b")
    assert broken(told) == []


def test_two_holds_of_one_block_end_one_after_the_other(told: Told, scheduler: Any) -> None:
    pool = held(scheduler, "a", 1, 2)
    held(scheduler, "b", 2, 3)
    sent(scheduler, "a")
    pool.next = [1]
    pool.get_new_blocks(1)
    sent(scheduler, "b")
    assert broken(told) == []


def test_a_block_freed_while_two_hold_it_is_a_violation(told: Told, scheduler: Any) -> None:
    pool = held(scheduler, "a", 1, 2)
    held(scheduler, "b", 2, 3)
    pool.free_blocks((pool.blocks[2],))
    assert broken(told) == [("freed_twice", "a", "2")]


def reversed_of(blocks: list[Block]) -> Iterable[Block]:
    return reversed(blocks)


def generated(blocks: list[Block]) -> Iterable[Block]:
    return (block for block in blocks)


@pytest.mark.parametrize("form", [list, tuple, reversed_of, generated])
def test_what_a_connector_gives_back_in_any_form_ends_its_hold(
    told: Told, scheduler: Any, form: Callable[[list[Block]], Iterable[Block]]
) -> None:
    pool = scheduler.kv_cache_manager.block_pool
    taken = [pool.blocks[4], pool.blocks[5]]
    scheduler.connector.during = lambda: pool.touch(taken)
    scheduler.connector.build_connector_meta(None)
    scheduler.connector.during = lambda: pool.free_blocks(form(taken))
    scheduler.connector.update_connector_output(None)
    assert not scheduler._kvtrace_tracks.holds.holders
    pool.next = [4, 5]
    pool.get_new_blocks(2)
    assert broken(told) == []


@pytest.mark.parametrize("form", [list, reversed_of, generated])
def test_references_taken_and_given_back_in_one_call_are_no_hold_in_any_form(
    told: Told, scheduler: Any, form: Callable[[list[Block]], Iterable[Block]]
) -> None:
    pool = scheduler.kv_cache_manager.block_pool

    def both() -> None:
        pool.touch([pool.blocks[4]])
        pool.free_blocks(form([pool.blocks[4]]))

    scheduler.connector.during = both
    scheduler.connector.build_connector_meta(None)
    assert not [row for row in told.rows if row.get("op") == "hold"]


def test_a_connector_that_gives_back_in_a_call_that_nobody_wraps_breaks_nothing(
    told: Told, scheduler: Any
) -> None:
    pool = scheduler.kv_cache_manager.block_pool
    scheduler.connector.during = lambda: pool.touch([pool.blocks[4]])
    scheduler.connector.build_connector_meta(None)
    pool.free_blocks([pool.blocks[4]])
    assert broken(told) == []
    assert not scheduler._kvtrace_tracks.holds.holders
    pool.free_blocks([pool.blocks[4]])
    assert broken(told) == [("freed_twice", None, "4")]


def test_a_connector_that_gives_back_what_a_request_holds_is_a_violation(told: Told, scheduler: Any) -> None:
    pool = held(scheduler)
    scheduler.connector.during = lambda: pool.free_blocks([pool.blocks[1]])
    scheduler.connector.update_connector_output(None)
    assert broken(told) == [("freed_twice", "a", "1")]


def test_unpinned_blocks_stay_readable_and_may_be_reused(told: Told, scheduler: Any) -> None:
    pool = scheduler.kv_cache_manager.block_pool
    scheduler.connector.during = lambda: pool.touch([pool.blocks[4]])
    scheduler.connector.build_connector_meta(None)
    pool.unpin_blocks([pool.blocks[4]], lambda _: None)
    pool.next = [4]
    pool.get_new_blocks(1)
    assert broken(told) == []


def test_a_block_of_another_pool_is_not_the_one_with_the_same_number(told: Told, scheduler: Any) -> None:
    pool = held(scheduler)
    other = type(pool.blocks[1])(1)
    other.pool = object()  # type: ignore[attr-defined]
    pool.free_blocks([other])
    assert broken(told) == []


def test_compared_allocations_are_told_at_most_once_a_second(told: Told, scheduler: Any) -> None:
    pool = held(scheduler)
    pool.next = [7] * 50
    for _ in range(20):
        pool.get_new_blocks(1)
    assert checked(told) == [1]
    told.clock += 1_000_000_000
    pool.get_new_blocks(1)
    assert checked(told) == [1, 21]


def test_without_a_hold_nothing_is_compared(told: Told, scheduler: Any) -> None:
    pool = scheduler.kv_cache_manager.block_pool
    pool.next = [7]
    pool.get_new_blocks(1)
    pool.free_blocks([pool.blocks[7], pool.blocks[8]])
    assert checked(told) == []
    assert broken(told) == []
    assert told.losses == []
