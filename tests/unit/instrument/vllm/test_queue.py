"""Intervals in which a request is not scheduled.

ms    0        10       20       30       40
      added    pass 1   pass 2   pass 3   pass 4
      |unknown-|capacity-----------------|step
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.instrument.vllm.stand_in import Request, made, output

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

MS = 1_000_000


def intervals(told: Told, name: str) -> list[tuple[Any, ...]]:
    """(reason, start ms, end ms, blocks, free, attempt) of a request, from the test's first instant."""
    return [
        (
            row["reason"], (row["start_ns"] - 10**12) // MS, (row["end_ns"] - 10**12) // MS, row["blocks"],
            row["free_blocks"], row["attempt"],
        )
        for row in told.parts("whole") if row.get("op") == "queue" and row["request_id"] == name
    ]  # fmt: skip


def at(told: Told, ms: int) -> None:
    told.clock = 10**12 + ms * MS


def refuse(*names: str) -> Any:
    """A pass that visits requests in order and finds no blocks for them."""

    def pass_(scheduler: Any) -> dict[str, int]:
        for name in names:
            request = scheduler.requests[name]
            scheduler._handle_blocked_waiting_request(request)
            scheduler.kv_cache_manager.allocate_slots(request, request.num_tokens)
        return {}

    return pass_


def step(told: Told, scheduler: Any, ms: int, pass_: Any) -> None:
    at(told, ms)
    scheduler.next_pass = pass_
    scheduler.update_from_output(scheduler.schedule(), output())


def admit(**tokens: int) -> Any:
    def pass_(scheduler: Any) -> dict[str, int]:
        for name in tokens:
            request = scheduler.requests[name]
            if request in scheduler.waiting:
                scheduler._handle_blocked_waiting_request(request)
                scheduler.waiting.remove(request)
                request.state = "RUNNING"
        return tokens

    return pass_


@pytest.fixture
def scheduler(told: Told) -> Any:  # noqa: ARG001 - the recorder is told's
    return made(blocks=20)


def test_a_request_that_no_pass_has_seen_waits_for_an_unknown_reason(told: Told, scheduler: Any) -> None:
    scheduler.add_request(Request("a", 40))
    step(told, scheduler, 10, admit(a=40))
    assert intervals(told, "a") == [("unknown", 0, 10, None, None, 1)]


def test_a_row_ends_only_when_reason_blocks_or_free_blocks_change(told: Told, scheduler: Any) -> None:
    scheduler.kv_cache_manager.block_pool.free = 2
    scheduler.add_request(Request("a", 40))
    for ms in (10, 20, 30):
        step(told, scheduler, ms, refuse("a"))
    scheduler.kv_cache_manager.block_pool.free = 1
    step(told, scheduler, 40, refuse("a"))
    scheduler.kv_cache_manager.block_pool.free = 5
    step(told, scheduler, 50, admit(a=40))
    assert intervals(told, "a") == [
        ("unknown", 0, 10, None, None, 1), ("capacity", 10, 40, 3, 2, 1), ("capacity", 40, 50, 3, 1, 1),
    ]  # fmt: skip


def test_the_sum_of_its_rows_is_the_time_a_request_is_not_scheduled(told: Told, scheduler: Any) -> None:
    scheduler.kv_cache_manager.block_pool.free = 0
    scheduler.add_request(Request("a", 40))
    for ms, free in ((7, 0), (9, 1), (13, 2), (14, 2), (21, 0)):
        scheduler.kv_cache_manager.block_pool.free = free
        step(told, scheduler, ms, refuse("a"))
    step(told, scheduler, 33, admit(a=40))
    rows = intervals(told, "a")
    assert sum(end - start for _, start, end, *_ in rows) == 33
    assert [row[1] for row in rows[1:]] == [row[2] for row in rows[:-1]]


def test_those_behind_the_head_need_what_all_before_them_need_too(told: Told, scheduler: Any) -> None:
    scheduler.kv_cache_manager.block_pool.free = 2
    for name, tokens in (("a", 40), ("b", 16), ("c", 17)):
        scheduler.add_request(Request(name, tokens))
    step(told, scheduler, 10, refuse("a"))
    scheduler.kv_cache_manager.block_pool.free = 9
    step(told, scheduler, 20, admit(a=40, b=16, c=17))
    found = [intervals(told, name)[-1] for name in "abc"]
    assert [(row[0], row[3], row[4]) for row in found] == [
        ("capacity", 3, 2), ("capacity", 4, 2), ("capacity", 6, 2),
    ]  # fmt: skip


def test_one_that_was_put_aside_waits_for_policy_unless_the_pass_did_not_come_to_it(
    told: Told, scheduler: Any
) -> None:
    scheduler.add_request(Request("a", 40))

    def put_aside(scheduler: Any) -> dict[str, int]:
        request = scheduler.requests["a"]
        scheduler._handle_blocked_waiting_request(request)
        scheduler.deferred_waiting.add(request)
        return {}

    step(told, scheduler, 10, put_aside)
    step(told, scheduler, 20, lambda _: {})
    step(told, scheduler, 30, admit(a=40))
    assert [row[0] for row in intervals(told, "a")] == ["unknown", "policy", "capacity"]


@pytest.mark.parametrize(
    ("state", "reason"),
    [("WAITING_FOR_REMOTE_KVS", "remote_kv"), ("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", "policy"),
     ("WAITING_FOR_STREAMING_REQ", "policy"), ("PREEMPTED", "preempted"), ("WAITING", "capacity")],
)  # fmt: skip
def test_the_engines_own_state_decides(told: Told, scheduler: Any, state: str, reason: str) -> None:
    request = Request("a", 40)
    scheduler.add_request(request)
    request.state = state
    step(told, scheduler, 10, lambda _: {})
    step(told, scheduler, 20, admit(a=40))
    assert intervals(told, "a")[-1][0] == reason


def test_a_paused_scheduler_is_policy(told: Told, scheduler: Any) -> None:
    from types import SimpleNamespace

    scheduler.add_request(Request("a", 40))
    scheduler._pause_state = SimpleNamespace(name="PAUSED_NEW")
    step(told, scheduler, 10, lambda _: {})
    scheduler._pause_state = SimpleNamespace(name="UNPAUSED")
    step(told, scheduler, 20, admit(a=40))
    assert intervals(told, "a")[-1][0] == "policy"


def test_after_a_preemption_it_waits_again_from_the_start_of_that_pass(told: Told, scheduler: Any) -> None:
    scheduler.add_request(Request("a", 40))
    step(told, scheduler, 10, admit(a=40))

    def preempt(scheduler: Any) -> dict[str, int]:
        told.clock += MS
        scheduler._preempt_request(scheduler.requests["a"], 0.0)
        return {}

    step(told, scheduler, 20, preempt)
    step(told, scheduler, 30, admit(a=40))
    reason, start, end, *_, attempt = intervals(told, "a")[-1]
    assert (reason, start, end, attempt) == ("preempted", 20, 30, 2)


def test_an_interval_that_lasts_is_told_as_open_and_then_closed(told: Told, scheduler: Any) -> None:
    scheduler.kv_cache_manager.block_pool.free = 0
    scheduler.add_request(Request("a", 40))
    for ms in (10, 400, 800):
        step(told, scheduler, ms, refuse("a"))
    (opened,) = [row for row in told.parts("open") if row["op"] == "queue"]
    assert (opened["reason"], opened["blocks"], opened["start_ns"]) == ("capacity", 3, 10**12 + 10 * MS)
    scheduler.kv_cache_manager.block_pool.free = 9
    step(told, scheduler, 900, admit(a=40))
    (closed,) = [row for row in told.parts("close") if row["span_id"] == opened["span_id"]]
    assert closed["end_ns"] == 10**12 + 900 * MS
    assert len(intervals(told, "a")) == 1


def test_an_abort_ends_the_wait_at_once(told: Told, scheduler: Any) -> None:
    request = Request("a", 40)
    scheduler.add_request(request)
    at(told, 5)
    request.state = "FINISHED_ABORTED"
    scheduler._free_request(request)
    assert intervals(told, "a") == [("unknown", 0, 5, None, None, 1)]
    (closed,) = told.parts("close")
    assert closed["status"] == "aborted"


def test_a_pass_in_which_nothing_moved_asks_for_no_blocks(told: Told, scheduler: Any) -> None:
    scheduler.kv_cache_manager.block_pool.free = 1
    for number in range(100):
        scheduler.add_request(Request(f"r{number}", 40))
    step(told, scheduler, 10, refuse("r0"))
    asked = scheduler.kv_cache_manager.asked
    step(told, scheduler, 11, refuse("r0"))
    assert scheduler.kv_cache_manager.asked == asked


def test_of_a_long_queue_only_the_first_are_looked_at(told: Told, scheduler: Any) -> None:
    scheduler.kv_cache_manager.block_pool.free = 1
    for number in range(100):
        scheduler.add_request(Request(f"r{number}", 40))
    step(told, scheduler, 10, refuse("r0"))
    scheduler.kv_cache_manager.block_pool.free = 0
    step(told, scheduler, 20, refuse("r0"))
    scheduler.kv_cache_manager.block_pool.free = 20
    step(told, scheduler, 30, admit(**{f"r{number}": 40 for number in range(100)}))
    assert [row[3] for row in intervals(told, "r63")] == [None, 192, 192]
    assert intervals(told, "r64")[1:] == [("capacity", 10, 30, None, None, 1)]


def test_nothing_of_a_request_stays_when_it_is_over(told: Told, scheduler: Any) -> None:
    for number in range(50):
        request = Request(f"r{number}", 16)
        scheduler.add_request(request)
        step(told, scheduler, number, admit(**{f"r{number}": 16}))
        request.state = "FINISHED_STOPPED"
        scheduler._free_request(request)
    tracks = scheduler._kvtrace_tracks
    assert not tracks.all
    assert not tracks.waiting
    assert not tracks.steps
    assert not tracks.fresh


def test_while_enough_blocks_are_free_their_number_cuts_no_row(told: Told, scheduler: Any) -> None:
    scheduler.add_request(Request("a", 40))
    for ms, free in ((10, 20), (20, 19), (30, 3), (40, 2), (50, 1), (60, 7)):
        scheduler.kv_cache_manager.block_pool.free = free
        step(told, scheduler, ms, lambda _: {})
    step(told, scheduler, 70, admit(a=40))
    assert intervals(told, "a")[1:] == [
        ("capacity", 10, 40, 3, 20, 1), ("capacity", 40, 50, 3, 2, 1), ("capacity", 50, 60, 3, 1, 1),
        ("capacity", 60, 70, 3, 7, 1),
    ]  # fmt: skip


def test_an_engine_whose_arithmetic_has_changed_leaves_blocks_unknown(told: Told, scheduler: Any) -> None:
    def changed(**_: Any) -> int:
        raise TypeError("unexpected keyword argument")

    scheduler.kv_cache_manager.get_num_blocks_to_allocate = changed
    scheduler.kv_cache_manager.block_pool.free = 1
    scheduler.add_request(Request("a", 40))
    for ms in (10, 20, 30):
        step(told, scheduler, ms, refuse("a"))
    step(told, scheduler, 40, admit(a=40))
    assert intervals(told, "a")[1:] == [("capacity", 10, 40, None, 1, 1)]
    assert told.losses == [("hook_failure", "vllm.needs: TypeError")]


def test_a_scheduler_without_an_end_of_requests_is_not_followed(told: Told) -> None:
    from kvtrace.instrument.vllm import scheduler as hooks

    class Other:
        def schedule(self) -> None:
            pass

    hooks.instrument(Other)
    Other().schedule()
    assert told.rows == []
    assert not hasattr(Other.schedule, "__wrapped__")


def test_requests_whose_end_no_hook_saw_are_forgotten(
    told: Told, scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvtrace.instrument.vllm.track.SPARE", 10)
    tracks = scheduler._kvtrace_tracks
    for number in range(30):
        scheduler.add_request(Request(f"r{number}", 16))
        del scheduler.requests[f"r{number}"]
    assert len(tracks.all) <= 12
    assert len(tracks.waiting) <= 12
    assert set(told.losses) == {("hook_failure", "ends of requests that no hook saw")}
