"""What the front end writes of a request.

1000 s          +2 ms           +5 ms
arrival         first token     finish
"""

from __future__ import annotations

import contextvars
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.vllm import api, names
from tests.unit.instrument.vllm.engine import Output, Request, module

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

MS = 1_000_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-f0f067aa0ba902b7-01"


@pytest.fixture
def processor(told: Told, monkeypatch: pytest.MonkeyPatch) -> Any:
    engine = module()
    api.install(engine)
    monkeypatch.setattr(time, "time", lambda: told.clock / 1e9)
    names._call.set(None)
    monkeypatch.setattr(names, "_recent", {})
    return engine.OutputProcessor()


def request(told: Told, name: str = "cmpl-a7-0-92cea7c0", **other: Any) -> Request:
    return Request(name, name.rsplit("-", 1)[0], told.clock / 1e9, **other)


def test_a_request_is_open_at_arrival_and_closed_at_its_end(processor: Any, told: Told) -> None:
    arrived = told.clock
    processor.add_request(request(told), None)
    told.clock += 2 * MS
    processor.process_outputs([Output("cmpl-a7-0-92cea7c0")])
    told.clock += 3 * MS
    processor.process_outputs([Output("cmpl-a7-0-92cea7c0", finish_reason="length")])
    opened, first, closed = (told.parts(part) for part in ("open", "update", "close"))
    assert [(row["op"], row["observer"], row["request_id"]) for row in opened] == [
        ("request", "api", "cmpl-a7-0-92cea7c0")
    ]
    assert abs(opened[0]["start_ns"] - arrived) < MS
    assert opened[0]["prompt_tokens"] == 7
    assert [row["first_token_ns"] for row in first] == [arrived + 2 * MS]
    (end,) = closed
    assert end["span_id"] == first[0]["span_id"] == opened[0]["span_id"]
    assert (end["end_ns"], end["first_token_ns"]) == (arrived + 5 * MS, arrived + 2 * MS)
    assert (end["output_tokens"], end["reported_cached_tokens"], end["status"]) == (2, 4, "ok")
    assert (end["reason"], end["attributes.finish_reason"]) == (None, "length")
    assert not api.requests_of(processor).open
    assert not api.requests_of(processor).waiting


def test_a_request_that_ends_with_its_first_token_has_both(processor: Any, told: Told) -> None:
    processor.add_request(request(told), None)
    processor.process_outputs([Output("cmpl-a7-0-92cea7c0", finish_reason="stop")])
    assert told.parts("update") == []
    assert told.parts("close")[0]["first_token_ns"] == told.clock


def test_an_output_without_tokens_is_no_first_token(processor: Any, told: Told) -> None:
    processor.add_request(request(told), None)
    processor.process_outputs([Output("cmpl-a7-0-92cea7c0", [], "error")])
    (end,) = told.parts("close")
    assert (end["first_token_ns"], end["output_tokens"]) == (None, 0)
    assert (end["status"], end["reason"]) == ("error", "error")


def test_the_first_token_is_that_of_the_first_output_with_one(processor: Any, told: Told) -> None:
    processor.add_request(request(told), None)
    processor.process_outputs([Output("cmpl-a7-0-92cea7c0", [])])
    assert told.parts("update") == []
    told.clock += MS
    processor.process_outputs([Output("cmpl-a7-0-92cea7c0")])
    assert [row["first_token_ns"] for row in told.parts("update")] == [told.clock]


def test_a_pooling_request_has_no_token(processor: Any, told: Told) -> None:
    processor.add_request(request(told), None)
    processor.request_states["cmpl-a7-0-92cea7c0"].detokenizer = None
    processor.process_outputs([Output("cmpl-a7-0-92cea7c0", [], "stop")])
    assert told.parts("close")[0]["output_tokens"] is None


def test_later_tokens_write_nothing(processor: Any, told: Told) -> None:
    processor.add_request(request(told), None)
    for _ in range(5):
        processor.process_outputs([Output("cmpl-a7-0-92cea7c0")])
    assert len(told.parts("update")) == 1


def test_an_aborted_request_ends_aborted_without_cached_tokens(processor: Any, told: Told) -> None:
    processor.add_request(request(told), None)
    processor.abort_requests(iter(["cmpl-a7-0-92cea7c0", "unknown"]), internal=True)
    (end,) = told.parts("close")
    assert (end["status"], end["reason"], end["reported_cached_tokens"]) == ("aborted", "aborted", None)


def test_a_dead_engine_ends_every_open_request_with_its_error(processor: Any, told: Told) -> None:
    for name in ("a-00000001", "b-00000002"):
        processor.add_request(request(told, name), None)
    processor.propagate_error(OSError("dead"))
    assert [(row["status"], row["attributes.error"]) for row in told.parts("close")] == [
        ("error", "OSError")
    ] * 2
    processor.abort_requests(["a-00000001"], internal=True)
    assert len(told.parts("close")) == 2


def test_a_resumed_request_stays_one_row(processor: Any, told: Told) -> None:
    for _ in range(2):
        processor.add_request(request(told), None)
    assert len(told.parts("open")) == 1
    processor.add_request(request(told, prompt_token_ids=[]), None)
    assert [row["status"] for row in told.parts("close")] == ["ok"]


def test_children_name_their_parent_and_share_the_external_name(processor: Any, told: Told) -> None:
    parent = SimpleNamespace(request_id="cmpl-a7-0-92cea7c0")
    for index in range(2):
        child = Request(f"{index}_cmpl-a7-0-92cea7c0", "cmpl-a7-0", told.clock / 1e9)
        processor.add_request(child, None, parent, index)
    assert {row["parent_request_id"] for row in told.parts("open")} == {"cmpl-a7-0-92cea7c0"}
    external = [row for row in told.table("alias") if row["kind"] == "external"]
    assert [(row["alias"], row["request_id"]) for row in external] == [
        ("cmpl-a7-0", "0_cmpl-a7-0-92cea7c0"),
        ("cmpl-a7-0", "1_cmpl-a7-0-92cea7c0"),
    ]


def test_prompts_of_one_call_are_requests_of_their_own_under_its_callers_name(
    processor: Any, told: Told
) -> None:
    """Each with its own tokens: what `usage` sums up is theirs together (importer/several_prompts.py)."""
    names.asked("a7", SimpleNamespace(headers={}))
    for number in range(2):
        one = f"cmpl-a7-{number}-0000000{number}"
        processor.add_request(request(told, one), None)
        processor.process_outputs([Output(one, [5] * (number + 1), "length")])
    told_of = {(row["kind"], row["alias"], row["request_id"]) for row in told.table("alias")}
    assert told_of == {
        (kind, alias, f"cmpl-a7-{number}-0000000{number}")
        for number in range(2)
        for kind, alias in (("client", "a7"), ("external", f"cmpl-a7-{number}"))
    }
    assert [row["output_tokens"] for row in told.parts("close")] == [1, 2]


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_a_clock_that_was_set_moves_no_arrival(processor: Any, told: Told, ahead_s: float) -> None:
    processor.add_request(Request("a-00000001", "a", told.clock / 1e9 + ahead_s), None)
    assert told.parts("open")[0]["start_ns"] == told.clock


def test_tokenizing_belongs_to_the_request(processor: Any, told: Told) -> None:
    processor.add_request(Request("a-00000001", "a", told.clock / 1e9 - 0.5), None)
    assert abs(told.parts("open")[0]["start_ns"] - (told.clock - 500 * MS)) < MS


def aliases(told: Told) -> list[tuple[str, str, str]]:
    return sorted((row["kind"], row["alias"], row["evidence"]) for row in told.table("alias"))


def test_names_come_from_the_call_that_the_task_serves(processor: Any, told: Told) -> None:
    names.asked("a7", SimpleNamespace(headers={"traceparent": TRACEPARENT}))
    processor.add_request(request(told), None)
    assert aliases(told) == [
        ("client", "a7", "shim"),
        ("external", "cmpl-a7-0", "shim"),
        ("trace", TRACE, "shim"),
    ]
    assert told.parts("open")[0]["trace_id"] == TRACE
    assert told.parts("open")[0]["parent_span_id"] == 0xF0F067AA0BA902B7


def test_a_streamed_answers_call_is_found_from_another_task(processor: Any, told: Told) -> None:
    headers = {"traceparent": TRACEPARENT}
    contextvars.copy_context().run(names.asked, "a7", SimpleNamespace(headers=headers))
    processor.add_request(request(told), None)
    assert ("client", "a7", "shim") in aliases(told)
    assert told.parts("open")[0]["trace_id"] == TRACE


def test_only_recent_calls_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "RECENT", 2)
    monkeypatch.setattr(names, "_recent", {})
    for name in ("a", "b", "a", "c"):
        names.asked(name)
    assert list(names._recent) == ["a", "c"]


def test_without_a_call_the_clients_name_follows_from_the_rule(processor: Any, told: Told) -> None:
    names.asked("of another call", None)
    processor.add_request(request(told), None)
    processor.add_request(request(told, "chatcmpl-b8-92cea7c1"), None)
    processor.add_request(request(told, "17-92cea7c2"), None)
    assert [each for each in aliases(told) if each[0] == "client"] == [
        ("client", "a7", "derived"),
        ("client", "b8", "derived"),
    ]


@pytest.mark.parametrize(
    "given", ["", "nonsense", f"00-{'0' * 32}-00f067aa0ba902b7-01", TRACEPARENT[:-3], TRACEPARENT.upper()]
)
def test_what_is_no_traceparent_names_no_trace(processor: Any, told: Told, given: str) -> None:
    processor.add_request(request(told, trace_headers={"traceparent": given}), None)
    assert told.parts("open")[0]["trace_id"] is None


def test_vllms_own_trace_headers_name_the_trace(processor: Any, told: Told) -> None:
    processor.add_request(request(told, trace_headers={"traceparent": TRACEPARENT}), None)
    assert told.parts("open")[0]["trace_id"] == TRACE


@pytest.mark.parametrize(
    ("transfer", "user"),
    [
        ({"do_remote_decode": True}, "cmpl-a7-0-92cea7c0"),
        ({"do_remote_prefill": True, "remote_request_id": "cmpl-a7-0-11111111"}, "cmpl-a7-0-11111111"),
        ({}, None),
    ],
)
def test_prefill_and_decode_of_one_call_have_one_user_request(
    processor: Any, told: Told, transfer: dict[str, Any], user: str | None
) -> None:
    params = SimpleNamespace(extra_args={"kv_transfer_params": transfer})
    processor.add_request(request(told, sampling_params=params), None)
    assert told.parts("open")[0]["user_request_id"] == user


def test_where_ends_cannot_be_seen_nothing_is_kept(told: Told) -> None:
    engine = module()
    del engine.OutputProcessor._update_stats_from_finished
    api.install(engine)
    processor = engine.OutputProcessor()
    processor.add_request(request(told), None)
    assert len(told.parts("open")) == 1
    assert not api.requests_of(processor).open
