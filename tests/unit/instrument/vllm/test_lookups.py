"""Inquiries outside the GPU: one row from the first call to the first answer.

pass      1      2      3      4      5      6
answer    None   None   48     48     48     48      blocks come with pass 6
          |-- lookup ---|      asked again: counted
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.unit.instrument.vllm.stand_in import Request, connector_class, made, output

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

MS = 1_000_000


class Adapter:
    """LMCache's client, as far as it is looked at."""

    lmcache_tokens_per_chunk = 32

    def __init__(self) -> None:
        self.healthy = True
        self._finished_lookup_results: dict[str, int] = {}

    @property
    def is_healthy(self) -> bool:
        return self.healthy


def ask(told: Told, scheduler: Any, ms: int, *, hit: int = 0, blocks: bool = True) -> None:
    """A pass in which request a is asked for, and admitted when the answer and the blocks are there."""
    told.clock = 10**12 + ms * MS

    def pass_(scheduler: Any) -> dict[str, int]:
        request = scheduler.requests["a"]
        scheduler._handle_blocked_waiting_request(request)
        tokens, asynchronous = scheduler.connector.get_num_new_matched_tokens(request, hit)
        if tokens is None or not blocks:
            return {}
        scheduler.connector.update_state_after_alloc(request, None, tokens)
        if asynchronous:
            request.state = "WAITING_FOR_REMOTE_KVS"
            request.num_computed_tokens = hit + tokens
            return {}
        scheduler.waiting.remove(request)
        request.num_computed_tokens = hit + tokens
        return {"a": request.num_tokens - hit - tokens}

    scheduler.next_pass = pass_
    scheduler.update_from_output(scheduler.schedule(), output())


def lookups(told: Told) -> list[dict[str, Any]]:
    """Finished rows, those in parts put together."""
    rows = {id(row): row for row in told.rows if row.get("op") == "lookup" and row["part"] == "whole"}
    opened = {row["span_id"]: row for row in told.rows if row.get("op") == "lookup" and row["part"] == "open"}
    for row in told.parts("close"):
        if row["span_id"] in opened:
            rows[id(row)] = opened[row["span_id"]] | {
                name: value for name, value in row.items() if value is not None
            }
    return sorted(rows.values(), key=lambda row: row["start_ns"])


@pytest.fixture
def scheduler(told: Told) -> Any:  # noqa: ARG001 - the recorder is told's
    found = made(connector=connector_class())
    found.add_request(Request("a", 100))
    return found


@pytest.fixture
def lmcache(told: Told) -> Any:  # noqa: ARG001 - the recorder is told's
    connector = connector_class("LMCacheMPConnector")
    connector.scheduler_adapter = Adapter()
    found = made(connector=connector)
    found.add_request(Request("a", 100))
    return found


def test_an_inquiry_is_one_row_however_often_it_was_asked(told: Told, scheduler: Any) -> None:
    scheduler.connector.answer = (None, False)
    for ms in range(10, 30):
        ask(told, scheduler, ms)
    scheduler.connector.answer = (48, False)
    ask(told, scheduler, 30)
    (row,) = lookups(told)
    assert (row["start_ns"], row["end_ns"]) == (10**12 + 10 * MS, 10**12 + 30 * MS)
    assert (row["outcome"], row["found_tokens"], row["requested_tokens"]) == ("ok", 48, 100)
    assert row["attributes.calls"] == 21
    assert row["attributes.returned_tokens"] == 48


def test_what_is_asked_again_for_want_of_blocks_is_no_new_inquiry(told: Told, scheduler: Any) -> None:
    scheduler.connector.answer = (0, False)
    for ms in range(10, 30):
        ask(told, scheduler, ms, blocks=False)
    ask(told, scheduler, 30)
    (row,) = lookups(told)
    assert (row["start_ns"], row["end_ns"]) == (10**12 + 10 * MS, 10**12 + 10 * MS)
    assert (row["outcome"], row["found_tokens"], row["attributes.calls"]) == ("miss", 0, 21)


def test_an_answer_whose_request_gets_no_blocks_is_not_lost_with_the_process(
    told: Told, scheduler: Any
) -> None:
    scheduler.connector.answer = (48, False)
    ask(told, scheduler, 10, blocks=False)
    (row,) = [row for row in told.parts("open") if row["op"] == "lookup"]
    assert (row["outcome"], row["found_tokens"], row["end_ns"]) == ("ok", 48, 10**12 + 10 * MS)


def test_one_that_stays_unanswered_is_told_as_open(told: Told, scheduler: Any) -> None:
    scheduler.connector.answer = (None, False)
    for ms in (10, 400, 800):
        ask(told, scheduler, ms)
    (row,) = [row for row in told.parts("open") if row["op"] == "lookup"]
    assert (row["outcome"], row["end_ns"], row["start_ns"]) == (None, None, 10**12 + 10 * MS)


def test_what_is_found_is_counted_from_the_first_token_of_the_prompt(told: Told, scheduler: Any) -> None:
    scheduler.connector.answer = (32, False)
    ask(told, scheduler, 10, hit=16)
    (row,) = lookups(told)
    assert (row["found_tokens"], row["attributes.asked_from_tokens"]) == (48, 16)


def test_a_request_that_waits_for_an_answer_says_so(told: Told, scheduler: Any) -> None:
    scheduler.connector.answer = (None, False)
    ask(told, scheduler, 10)
    scheduler.connector.answer = (0, False)
    ask(told, scheduler, 20)
    queues = [row for row in told.parts("whole") if row.get("op") == "queue"]
    assert [row["reason"] for row in queues] == ["unknown", "lookup"]


def test_after_a_preemption_it_is_a_new_inquiry(told: Told, scheduler: Any) -> None:
    scheduler.connector.answer = (48, False)
    ask(told, scheduler, 10)
    request = scheduler.requests["a"]
    scheduler._preempt_request(request, 0.0)
    scheduler.connector.answer = (0, False)
    ask(told, scheduler, 20)
    assert [(row["attempt"], row["outcome"]) for row in lookups(told)] == [(1, "ok"), (2, "miss")]


def test_an_inquiry_that_ends_with_its_request_is_cancelled(told: Told, scheduler: Any) -> None:
    scheduler.connector.answer = (None, False)
    ask(told, scheduler, 10)
    request = scheduler.requests["a"]
    told.clock += 5 * MS
    request.state = "FINISHED_ABORTED"
    scheduler._free_request(request)
    (row,) = lookups(told)
    assert (row["outcome"], row["found_tokens"]) == ("cancelled", None)
    assert row["end_ns"] - row["start_ns"] == 5 * MS


def test_lmcache_knows_what_it_found_even_where_the_gpu_has_more(told: Told, lmcache: Any) -> None:
    lmcache.connector.scheduler_adapter._finished_lookup_results["a"] = 64
    ask(told, lmcache, 10, hit=80)
    (row,) = lookups(told)
    assert (row["outcome"], row["found_tokens"], row["component"]) == ("ok", 64, "lmcache")


def test_the_call_in_which_the_server_was_given_up_is_a_timeout(told: Told, lmcache: Any) -> None:
    adapter = lmcache.connector.scheduler_adapter
    lmcache.connector.answer = (None, True)
    ask(told, lmcache, 10)
    lmcache.connector.answer = (0, False)
    lmcache.connector.during = lambda: setattr(adapter, "healthy", False)
    ask(told, lmcache, 5010)
    (row,) = lookups(told)
    assert (row["outcome"], row["reason"], row["found_tokens"]) == ("timeout", "timeout", None)
    assert row["end_ns"] - row["start_ns"] == 5000 * MS


def test_afterwards_it_is_degraded_and_does_not_ask(told: Told, lmcache: Any) -> None:
    lmcache.connector.scheduler_adapter.healthy = False
    told.clock += 7 * MS
    ask(told, lmcache, 10)
    (row,) = lookups(told)
    assert (row["outcome"], row["reason"]) == ("skipped", "unhealthy")
    states = [row for row in told.parts("open") if row["op"] == "health"]
    assert [row["reason"] for row in states] == ["healthy", "degraded"]
    (closed,) = [row for row in told.parts("close") if row["span_id"] == states[0]["span_id"]]
    assert closed["end_ns"] == states[1]["start_ns"]


def test_one_that_was_waiting_when_another_call_gave_the_server_up_has_failed(
    told: Told, lmcache: Any
) -> None:
    lmcache.connector.answer = (None, True)
    ask(told, lmcache, 10)
    lmcache.connector.scheduler_adapter.healthy = False
    lmcache._kvtrace_tracks.watches[0].poll()
    lmcache.connector.answer = (0, False)
    ask(told, lmcache, 20)
    (row,) = lookups(told)
    assert (row["outcome"], row["reason"]) == ("failed", "unhealthy")


def test_a_prompt_below_a_chunk_is_a_miss_that_says_why(told: Told) -> None:
    connector = connector_class("LMCacheMPConnector")
    connector.scheduler_adapter = Adapter()
    connector.scheduler_adapter._finished_lookup_results["a"] = 0
    scheduler = made(connector=connector)
    scheduler.add_request(Request("a", 20))
    ask(told, scheduler, 10)
    (row,) = lookups(told)
    assert (row["outcome"], row["reason"]) == ("miss", "below_chunk")


def test_of_nested_connectors_the_outermost_is_the_row(told: Told) -> None:
    first, second = connector_class("FirstConnector"), connector_class("SecondConnector")
    parent = connector_class("MultiConnector")
    parent._connectors = [first, second]
    second.answer = (48, False)
    scheduler = made(connector=parent)
    scheduler.add_request(Request("a", 100))

    def each() -> None:
        for child in (first, second):
            child.get_num_new_matched_tokens(scheduler.requests["a"], 0)

    parent.during = each
    parent.answer = (48, False)
    ask(told, scheduler, 10)
    (row,) = lookups(told)
    assert (row["component"], row["found_tokens"]) == ("vllm.multi", 48)
    assert row["attributes.children"] == "first=0 second=48"


def test_a_connector_that_raises_is_left_as_if_it_had_returned(told: Told, scheduler: Any) -> None:
    def fail() -> None:
        raise RuntimeError("the engine's own")

    scheduler.connector.during = fail
    with pytest.raises(RuntimeError, match="own"):
        ask(told, scheduler, 10)
    assert not scheduler._kvtrace_tracks.connectors
    scheduler.connector.during = lambda: None
    ask(told, scheduler, 20)
    assert len(lookups(told)) == 1


def test_a_connector_that_asks_its_own_base_class_is_asked_once(told: Told) -> None:
    from kvtrace.instrument.vllm import connector_hooks

    base = type(connector_class("BaseConnector"))

    class Derived(base):  # type: ignore[misc, valid-type]
        def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> Any:
            return super().get_num_new_matched_tokens(request, num_computed_tokens)

    connector_hooks.instrument(base)
    scheduler = made(connector=Derived())
    scheduler.add_request(Request("a", 100))
    ask(told, scheduler, 10)
    (row,) = lookups(told)
    assert (row["attributes.calls"], row["attributes.children"]) == (1, None)
