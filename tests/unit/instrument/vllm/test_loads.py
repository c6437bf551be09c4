"""Asynchronous loads as the scheduler sees them.

ms   10         20             30
     submitted  reported       promoted
     |--- load ---|   usable: 30
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.vllm import loads
from tests.unit.instrument.vllm.stand_in import Block, Request, connector_class, made, output
from tests.unit.instrument.vllm.test_lookups import ask

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

MS = 1_000_000
START = 10**12


@pytest.fixture
def scheduler(told: Told) -> Any:
    """Request a has 16 tokens in the GPU and loads 48 more."""
    found = made(connector=connector_class())
    found.add_request(Request("a", 100))
    found.connector.answer = (48, True)
    ask(told, found, 10, hit=16)
    return found


def report(told: Told, scheduler: Any, ms: int, **transfers: Any) -> None:
    told.clock = START + ms * MS
    scheduler.next_pass = lambda _: {}
    scheduler.update_from_output(scheduler.schedule(), output(**transfers))


def promote(told: Told, scheduler: Any, ms: int) -> None:
    told.clock = START + ms * MS

    def pass_(scheduler: Any) -> dict[str, int]:
        request = scheduler.requests["a"]
        request.state = "WAITING"
        scheduler._update_waiting_for_remote_kv(request)
        return {}

    scheduler.next_pass = pass_
    scheduler.update_from_output(scheduler.schedule(), output())


def load(told: Told) -> dict[str, Any]:
    (opened,) = [row for row in told.parts("open") if row["op"] == "load"]
    merged = dict(opened)
    for row in told.rows:
        if row.get("span_id") == opened["span_id"]:
            merged |= {name: value for name, value in row.items() if value is not None}
    return merged


def test_it_lasts_from_the_allocation_to_its_report_and_is_usable_when_promoted(
    told: Told, scheduler: Any
) -> None:
    report(told, scheduler, 20, finished_recving={"a"})
    promote(told, scheduler, 30)
    row = load(told)
    times = [(row[name] - START) // MS for name in ("submit_ns", "start_ns", "end_ns", "usable_ns")]
    assert times == [10, 10, 20, 30]
    assert (row["tokens"], row["blocks"], row["outcome"], row["purpose"]) == (48, 3, "ok", "reuse")
    assert (row["tier_to"], row["component"], row["transfer_id"]) == ("gpu", "fake", "a/load/1")


def test_the_first_admission_says_what_the_gpu_had_and_what_was_chosen(told: Told, scheduler: Any) -> None:
    report(told, scheduler, 20, finished_recving={"a"})
    promote(told, scheduler, 30)
    (row,) = [row for row in told.parts("update") if "gpu_hit_tokens" in row]
    assert (row["gpu_hit_tokens"], row["selected_tokens"]) == (16, 48)


def test_a_failed_load_is_never_usable_and_what_follows_is_a_new_attempt(told: Told, scheduler: Any) -> None:
    report(told, scheduler, 20, finished_recving={"a"}, failed_recving={"a"})
    scheduler.requests["a"].num_computed_tokens = 0
    promote(told, scheduler, 30)
    row = load(told)
    assert (row["outcome"], row.get("usable_ns"), row["end_ns"]) == ("failed", None, START + 20 * MS)
    assert (row["attributes.usable_tokens"], row["attributes.failed_by"]) == (0, "request")
    scheduler.connector.answer = (0, False)
    ask(told, scheduler, 40)
    assert [row["attempt"] for row in told.rows if row.get("op") == "lookup"] == [1, 2]


def test_of_a_load_with_invalid_blocks_the_valid_prefix_is_usable(told: Told, scheduler: Any) -> None:
    told.clock = START + 20 * MS
    scheduler.next_pass = lambda _: {}
    done = scheduler.schedule()
    inner = type(scheduler).update_from_output.__wrapped__

    def truncates(self: Any, scheduler_output: Any, model_runner_output: Any) -> Any:
        self.requests["a"].num_computed_tokens = 32
        return inner(self, scheduler_output, model_runner_output)

    type(scheduler).update_from_output.__wrapped__ = truncates
    scheduler.requests["a"].num_computed_tokens = 32
    scheduler.update_from_output(done, output(finished_recving={"a"}, invalid_block_ids={7}))
    promote(told, scheduler, 30)
    row = load(told)
    assert (row["outcome"], row["attributes.usable_tokens"], row["tokens"]) == ("partial", 16, 48)
    assert row["attributes.failed_by"] == "blocks"
    assert row["usable_ns"] == START + 30 * MS


def test_what_is_left_is_noted_before_its_request_fails_for_it(told: Told, scheduler: Any) -> None:
    """The policy is to fail: the request is gone when the engine has handled the output."""
    tracks, request = scheduler._kvtrace_tracks, scheduler.requests["a"]
    tracks.loads["a"].computed = 64
    request.num_computed_tokens = 32
    loads.cut_back(tracks, scheduler, {7})
    request.state = "FINISHED_ERROR"
    type(scheduler.connector).delay = True
    scheduler._free_request(request)
    request.num_computed_tokens = 0
    report(told, scheduler, 20, finished_recving={"a"}, invalid_block_ids={7})
    row = load(told)
    assert (row["outcome"], row["attributes.usable_tokens"]) == ("partial", 16)
    assert (row["attributes.failed_by"], row.get("usable_ns")) == ("blocks", None)


def test_a_load_that_was_named_and_has_invalid_blocks_says_both(told: Told, scheduler: Any) -> None:
    tracks = scheduler._kvtrace_tracks
    scheduler.kv_cache_manager.tables["a"] = [Block(7)]
    tracks.loads["a"].computed = 64
    scheduler.requests["a"].num_computed_tokens = 0
    report(told, scheduler, 20, finished_recving={"a"}, failed_recving={"a"}, invalid_block_ids={7})
    promote(told, scheduler, 30)
    assert load(told)["attributes.failed_by"] == "request blocks"


def test_a_load_whose_request_was_aborted_is_cancelled_when_it_ends(told: Told, scheduler: Any) -> None:
    request = scheduler.requests["a"]
    request.state = "FINISHED_ABORTED"
    type(scheduler.connector).delay = True
    scheduler._free_request(request)
    (hold,) = [row for row in told.parts("open") if row["op"] == "hold"]
    assert hold["reason"] == "load"
    assert "outcome" not in load(told)
    report(told, scheduler, 20, finished_recving={"a"})
    assert (load(told)["outcome"], load(told)["end_ns"]) == ("cancelled", START + 20 * MS)
    assert not scheduler._kvtrace_tracks.loads


def test_the_connector_may_say_from_which_medium_it_comes(told: Told, scheduler: Any) -> None:
    scheduler.connector.get_external_cache_hit_sources(scheduler.requests["a"], 48)
    row = load(told)
    assert (row["tier_from"], row["attributes.sources"]) == ("disk", "disk=48")


def test_state_that_another_engine_computed_for_this_request_is_a_handoff(told: Told) -> None:
    scheduler = made(connector=connector_class("NixlConnector"))
    request = Request("a", 100)
    request.kv_transfer_params = {"do_remote_prefill": True}
    scheduler.add_request(request)
    scheduler.connector.answer = (48, True)
    ask(told, scheduler, 10)
    assert (load(told)["purpose"], load(told)["tier_from"]) == ("handoff", "peer")


def test_a_load_inside_a_step_is_selected_but_no_row_of_the_scheduler(told: Told) -> None:
    scheduler = made(connector=connector_class())
    scheduler.add_request(Request("a", 100))
    scheduler.connector.answer = (48, False)
    ask(told, scheduler, 10, hit=16)
    assert not [row for row in told.rows if row.get("op") == "load"]
    (row,) = [row for row in told.parts("update") if "gpu_hit_tokens" in row]
    assert (row["gpu_hit_tokens"], row["selected_tokens"]) == (16, 48)
