"""Engine iterations, their members and their tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.instrument.vllm.stand_in import Request, made, output

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

MS = 1_000_000


def steps(told: Told) -> list[dict[str, Any]]:
    return [row for row in told.parts("whole") if row["op"] == "step"]


@pytest.fixture
def scheduler(told: Told) -> Any:  # noqa: ARG001 - the recorder is told's
    found = made()
    found.add_request(Request("a", 40))
    return found


def scheduled(scheduler: Any, **tokens: int) -> Any:
    scheduler.next_pass = lambda _: tokens
    return scheduler.schedule()


def test_a_step_has_its_members_and_what_they_had_before_it(told: Told, scheduler: Any) -> None:
    first = scheduled(scheduler, a=30)
    told.clock += 5 * MS
    scheduler.update_from_output(first, output())
    scheduler.update_from_output(scheduled(scheduler, a=10), output({"a": [7]}))
    scheduler.update_from_output(scheduled(scheduler, a=1), output({"a": [8]}))
    assert [row["members"] for row in steps(told)] == [
        (("a",), ("prefill",), (30,), (0,), (0,)),
        (("a",), ("prefill",), (10,), (1,), (30,)),
        (("a",), ("decode",), (1,), (1,), (40,)),
    ]
    assert steps(told)[0]["end_ns"] - steps(told)[0]["start_ns"] == 5 * MS


def test_steps_that_overlap_keep_their_own_times_and_tokens(told: Told, scheduler: Any) -> None:
    first = scheduled(scheduler, a=40)
    told.clock += MS
    second = scheduled(scheduler, a=1)
    told.clock += MS
    scheduler.update_from_output(first, output({"a": [7]}))
    told.clock += MS
    scheduler.update_from_output(second, output({"a": [8]}))
    one, two = steps(told)
    assert (one["end_ns"] - one["start_ns"], two["end_ns"] - two["start_ns"]) == (2 * MS, 2 * MS)
    assert two["start_ns"] - one["start_ns"] == MS
    assert (one["members"][4], two["members"][4]) == ((0,), (40,))


def test_a_pass_without_members_is_no_step_and_is_counted_in_the_next(told: Told, scheduler: Any) -> None:
    for _ in range(3):
        scheduler.update_from_output(scheduled(scheduler), output())
    scheduler.update_from_output(scheduled(scheduler, a=40), output({"a": [7]}))
    (row,) = steps(told)
    assert row["attributes.idle_passes"] == 3


def test_what_drafts_lost_is_taken_back_when_the_step_before_has_ended(told: Told) -> None:
    scheduler = made()
    scheduler._kvtrace_tracks.speculative = True
    request = Request("a", 40)
    scheduler.add_request(request)
    scheduler.update_from_output(scheduled(scheduler, a=40), output({"a": [7]}))
    first = scheduled(scheduler, a=3)
    second = scheduled(scheduler, a=3)
    scheduler.update_from_output(first, output({"a": [8]}))
    request.num_computed_tokens -= 2  # two of three drafts were rejected
    scheduler.update_from_output(second, output({"a": [9, 10, 11]}))
    assert [row["members"][4] for row in steps(told)] == [(0,), (40,), (41,)]


def test_output_of_a_request_that_lost_its_blocks_meanwhile_keeps_what_it_had(told: Told) -> None:
    scheduler = made()
    scheduler._kvtrace_tracks.speculative = True
    request = Request("a", 40)
    scheduler.add_request(request)
    flying = scheduled(scheduler, a=40)
    scheduler._preempt_request(request, 0.0)
    request.num_stale_output_tokens = 40
    scheduler.update_from_output(flying, output())
    (row,) = steps(told)
    assert row["members"][4] == (0,)


def test_a_step_whose_output_the_engine_could_not_handle_has_failed(told: Told, scheduler: Any) -> None:
    flying = scheduled(scheduler, a=40)
    with pytest.raises(AttributeError):
        scheduler.update_from_output(flying, SimpleNamespace(kv_connector_output=None))
    (row,) = steps(told)
    assert (row["outcome"], row["members"][3]) == ("failed", (None,))


def test_a_resumed_request_computes_its_own_output_again_as_prefill(told: Told, scheduler: Any) -> None:
    scheduler.update_from_output(scheduled(scheduler, a=40), output({"a": [7, 8, 9]}))
    request = scheduler.requests["a"]
    scheduler._preempt_request(request, 0.0)
    scheduler.update_from_output(scheduled(scheduler, a=41), output())
    scheduler.update_from_output(scheduled(scheduler, a=2), output({"a": [7]}))
    assert [row["members"][1] for row in steps(told)] == [("prefill",), ("prefill",), ("prefill",)]


def test_without_a_connector_nothing_was_selected(told: Told, scheduler: Any) -> None:
    scheduler.requests["a"].num_computed_tokens = 16
    scheduler.update_from_output(scheduled(scheduler, a=24), output({"a": [7]}))
    (row,) = told.parts("update")
    assert (row["gpu_hit_tokens"], row["selected_tokens"]) == (16, 0)


def test_a_request_has_its_callers_trace(told: Told, scheduler: Any) -> None:
    request = Request("b", 16)
    request.trace_headers = {"traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"}
    scheduler.add_request(request)
    assert [row["trace_id"] for row in told.parts("open")] == [None, "ab" * 16]


def test_a_scheduler_that_calls_its_parents_pass_makes_one_pass(told: Told) -> None:
    from kvtrace.instrument.vllm import scheduler as hooks

    scheduler = made()
    base = type(scheduler)

    class Custom(base):  # type: ignore[misc, valid-type]
        def schedule(self, throttle_prefills: bool = False) -> Any:  # noqa: FBT001, FBT002
            return super().schedule(throttle_prefills)

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            return super().update_from_output(scheduler_output, model_runner_output)

    hooks.instrument(Custom)
    scheduler.__class__ = Custom
    scheduler.add_request(Request("a", 40))
    scheduler.update_from_output(scheduled(scheduler, a=40), output({"a": [7]}))
    assert scheduler._kvtrace_tracks.passes == 1
    assert len(steps(told)) == 1


def test_passes_without_members_are_counted_once(told: Told, scheduler: Any) -> None:
    scheduler.update_from_output(scheduled(scheduler), output())
    scheduler.update_from_output(scheduled(scheduler, a=30), output())
    scheduler.update_from_output(scheduled(scheduler, a=10), output({"a": [7]}))
    assert [row["attributes.idle_passes"] for row in steps(told)] == [1, 0]
