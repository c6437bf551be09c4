"""Responses as clients keep them: a row a request, seen by the client (others.md 1.4, 1.5).

notes    started |------first----| ended     the client's own clock
tap      t0      |---------------| t0 + wall_s
bare     created |                           whole seconds of the server, no end
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from kvtrace.sources import openai_responses
from tests.samples import SAMPLES
from tests.unit.sources.given import Found, decoded, given, recorded

S = 1_000_000_000
UUID = "45a01fec-68d0-4edf-901e-f101d6a94d94"
TRACE = "0000000000000000000000000abc0004"
HARNESS = ["concurrent", "l1-reuse", "l2-loads", "server-killed", "stores-dropped"]


def usage(cached: int | None = 528) -> dict[str, Any]:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return {"prompt_tokens": 542, "completion_tokens": 8, "total_tokens": 550, **details}


def body(**changed: Any) -> dict[str, Any]:
    found = {"id": f"chatcmpl-{UUID}", "object": "chat.completion", "created": 7, "model": "tiny",
             "choices": [{"index": 0, "message": {"role": "assistant", "content": "an answer"},
                          "finish_reason": "length"}], "usage": usage()}  # fmt: skip
    return {name: value for name, value in (found | changed).items() if value is not None}


def tap(response: Any, **changed: Any) -> dict[str, Any]:
    return {"path": "/v1/chat/completions", "status": 200, "t0": 5.5, "wall_s": 0.25,
            "hdr": {"X-Request-Id": "tier-r1-p0", "traceparent": f"00-{TRACE}-0000000000000005-01"},
            "resp_headers": {"date": "Thu, 01 Jan 1970 00:00:09 GMT"},
            "resp": response if isinstance(response, str) else json.dumps(response), **changed}  # fmt: skip


def notes(**changed: Any) -> dict[str, Any]:
    return {"request_id": "req-000", "response_id": "cmpl-req-000", "status": 200, "started_ns": 10 * S,
            "first_token_ns": 11 * S, "ended_ns": 12 * S, "usage": usage(0), "prompt": 0,
            "prompt_tokens": 1500,
            "max_tokens": 12, "answer_digest": "e9", **changed}  # fmt: skip


def only(*records: Any) -> dict[str, Any]:
    found = given(openai_responses, *records)
    assert found.losses == []
    (row,) = found.rows["span"]
    return row


def test_a_clients_notes_are_a_request_on_its_own_clock() -> None:
    row = only(notes())
    assert (row["op"], row["observer"], row["evidence"], row["name"]) == (
        "request", "client", "native", "response",
    )  # fmt: skip
    assert (row["start_ns"], row["first_token_ns"], row["end_ns"]) == (10 * S, 11 * S, 12 * S)
    assert (row["request_id"], row["status"]) == ("cmpl-req-000", "ok")
    assert (row["prompt_tokens"], row["output_tokens"], row["reported_cached_tokens"]) == (542, 8, 0)
    assert "id_kind" not in row


def test_cached_tokens_that_are_absent_are_unknown_and_not_none() -> None:
    assert "reported_cached_tokens" not in only(notes(usage=usage(None)))
    assert only(notes(usage=usage(0)))["reported_cached_tokens"] == 0
    assert "reported_cached_tokens" not in only(notes(usage=None))
    assert only(notes(usage=None))["prompt_tokens"] == 1500


def test_the_callers_name_is_an_alias_of_the_answers_name() -> None:
    found = given(openai_responses, notes(), tap(body()))
    assert found.rows["alias"] == [
        {"alias": "req-000", "kind": "client", "request_id": "cmpl-req-000", "source": "given",
         "evidence": "native"},
        {"alias": "tier-r1-p0", "kind": "client", "request_id": f"chatcmpl-{UUID}", "source": "given",
         "evidence": "native"},
    ]  # fmt: skip


def test_a_request_without_an_answer_keeps_the_callers_name() -> None:
    found = given(openai_responses, notes(response_id=None, usage=None, status=500))
    assert (found.rows["span"][0]["request_id"], found.rows["span"][0]["status"]) == ("req-000", "error")
    assert "alias" not in found.rows


def test_a_tap_has_the_callers_clock_and_its_trace() -> None:
    row = only(tap(body()))
    assert (row["start_ns"], row["end_ns"]) == (5.5 * S, 5.75 * S)
    assert row["trace_id"] == TRACE
    assert "first_token_ns" not in row
    assert "start" not in dict(row["attributes"])


def test_a_tap_without_a_clock_starts_where_the_server_says() -> None:
    row = only(tap(body(), t0=None))
    assert (row["start_ns"], "end_ns" in row) == (7 * S, False)
    assert dict(row["attributes"])["start"] == "created, whole seconds of the server"
    row = only(tap({"error": {"message": "no"}}, t0=None, status=503))
    assert (row["start_ns"], row["status"]) == (9 * S, "error")
    assert dict(row["attributes"])["start"] == "date header, whole seconds of the server"


def test_a_bare_response_starts_at_its_creation_and_says_so() -> None:
    row = only(body())
    assert (row["start_ns"], "end_ns" in row, "first_token_ns" in row) == (7 * S, False, False)
    assert dict(row["attributes"])["start"] == "created, whole seconds of the server"
    assert (row["request_id"], row["reported_cached_tokens"]) == (f"chatcmpl-{UUID}", 528)


def test_an_answer_of_the_responses_api_says_the_same_by_other_names() -> None:
    """Drawn from its documented names: none was recorded."""
    counted = {"input_tokens": 542, "output_tokens": 8, "input_tokens_details": {"cached_tokens": 528}}
    answer = {"id": "resp_1", "object": "response", "created_at": 7, "output": [{}, {}], "usage": counted}
    found = given(openai_responses, answer)
    (row,) = found.rows["span"]
    assert (row["request_id"], row["start_ns"]) == ("resp_1", 7 * S)
    assert (row["prompt_tokens"], row["output_tokens"], row["reported_cached_tokens"]) == (542, 8, 528)
    assert (found.content, found.notes) == ({"output": 2}, [])


def chunks(*streams: str, usage_in_last: bool = True) -> bytes:
    lines = []
    for text in ("Hel", "lo", None):
        for stream in streams:
            last = text is None
            said = usage() if last and usage_in_last else None
            parts = [] if last else [{"delta": {"content": text}}]
            lines.append(body(id=stream, object="chat.completion.chunk", usage=said, choices=parts))
    sent = "".join(f"data: {json.dumps(line)}\n\n" for line in lines)
    return (": ping\nevent: message\n" + sent + "data: [DONE]\n").encode()


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_chunks_of_a_stream_are_one_request_with_the_usage_of_the_last(piece: int) -> None:
    found = decoded(openai_responses, chunks("chatcmpl-a", "chatcmpl-b"), piece=piece)
    assert [(row["request_id"], row["reported_cached_tokens"]) for row in found.rows["span"]] == [
        ("chatcmpl-a", 528), ("chatcmpl-b", 528),
    ]  # fmt: skip
    assert (found.content, found.losses) == ({"choices": 4}, [])


def test_a_stream_without_usage_says_nothing_of_tokens() -> None:
    (row,) = decoded(openai_responses, chunks("chatcmpl-a", usage_in_last=False)).rows["span"]
    assert {"prompt_tokens", "reported_cached_tokens"} & set(row) == set()


def test_of_usage_in_every_chunk_the_last_counts_and_a_chunk_without_it_unsays_nothing() -> None:
    said = [usage(None), usage(16), usage(32), None]
    sent = [body(object="chat.completion.chunk", usage=each, choices=[]) for each in said]
    assert only(*sent)["reported_cached_tokens"] == 32


def test_a_stream_inside_of_a_tap_is_the_same_request() -> None:
    streamed, whole = only(tap(chunks("chatcmpl-a").decode())), only(tap(body(id="chatcmpl-a")))
    assert streamed.pop("attributes") != whole.pop("attributes")  # a chunk does not say why it ended
    assert streamed == whole


def test_streams_that_are_too_many_end_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvtrace.sources.openai_responses.forms.MAX_OPEN_STREAMS", 1)
    found = decoded(openai_responses, chunks("chatcmpl-a", "chatcmpl-b"))
    assert len(found.rows["span"]) == 6


@pytest.mark.parametrize(
    ("record", "status"),
    [
        (tap(body()), "ok"),
        (tap(body(), status=499), "aborted"),
        (tap(body(choices=[{"finish_reason": "abort"}])), "aborted"),
        (tap(body(), status=400), "error"),
        (notes(status=None), None),
        (notes(status=200, error="gone"), "error"),
        (body(choices=[{"finish_reason": "abort"}]), "aborted"),
        (body(error={"message": "x"}), "error"),
        (body(), "ok"),
        (body(choices=[{"finish_reason": None}]), None),
        (body(object="response", choices=None, status="in_progress"), None),
        (body(object="response", choices=None, status="cancelled"), "aborted"),
        (body(object="response", choices=None, status="incomplete"), "ok"),
    ],
)
def test_status_follows_the_answer(record: dict[str, Any], status: str | None) -> None:
    assert only(record).get("status") == status


def test_nothing_that_was_asked_or_answered_is_in_any_row() -> None:
    secret = "the secret"
    answered = body(choices=[{"message": {"content": secret}}, {"text": secret}], system_fingerprint=secret)
    found = given(openai_responses, tap(answered), answered, notes(prompt=secret, answer=secret))
    assert secret not in str(found)
    assert found.content == {"choices": 4, "prompt": 1}


@pytest.mark.parametrize(
    ("record", "cause"),
    [
        ([1], "undecodable"),
        ({"error": {"message": "x"}}, "undecodable"),
        (body(created=None), "impossible_time"),
        (body(created=1e300), "impossible_time"),
        (notes(started_ns=-1), "impossible_time"),
        (notes(ended_ns=9 * S), "negative_duration"),
        (body(id=None), "undecodable"),
    ],
)
def test_what_cannot_be_a_row_is_one_loss(record: Any, cause: str) -> None:
    found = given(openai_responses, record, body())
    assert (found.lost(), len(found.rows["span"])) == ({cause: 1}, 1)


def test_a_first_token_outside_of_its_request_is_not_believed() -> None:
    found = given(openai_responses, notes(first_token_ns=13 * S))
    assert "first_token_ns" not in found.rows["span"][0]
    assert found.lost() == {"negative_duration": 1}


def test_fields_of_later_versions_are_ignored_and_counted() -> None:
    found = given(openai_responses, body(later=1), body(later=2))
    assert found.notes == ["fields of responses that this version does not read: 'later' (2)"]
    assert len(found.rows["span"]) == 2


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (json.dumps(notes()).encode(), True),
        (json.dumps(tap(body())).encode(), True),
        (json.dumps(body()).encode(), True),
        (chunks("chatcmpl-a"), True),
        (json.dumps({"error": {}}).encode() + b"\n" + json.dumps(body()).encode(), True),
        (json.dumps({"error": {}}).encode(), False),
        (json.dumps({"event": body()}).encode(), False),
        (json.dumps(body()).encode() + b"\n" + json.dumps({"resourceSpans": []}).encode(), False),
        (b'{"id": "chatcmpl-x", "object": "chat.completion", "choices": [{"message": {"content": "cut', True),
        (b"data: something\n", False),
        (b"", False),
    ],
)
def test_responses_are_known_by_their_first_lines(head: bytes, is_one: bool) -> None:  # noqa: FBT001 - a table
    assert openai_responses.looks_like(head) is is_one


def sample(name: str) -> Found:
    return recorded(openai_responses, SAMPLES / name / "raw" / "responses.jsonl")


@pytest.mark.parametrize("name", HARNESS)
def test_recorded_responses_of_vllm_are_read_whole(name: str) -> None:
    found = sample(name)
    lines = (SAMPLES / name / "raw" / "responses.jsonl").read_text().count("\n")
    assert (len(found.rows["span"]), len(found.rows["alias"]), found.losses, found.notes) == (
        lines,
        lines,
        [],
        [],
    )
    assert {row["observer"] for row in found.rows["span"]} == {"client"}


def test_workers_report_what_the_front_ends_metric_sums_up() -> None:
    """dynamo_frontend_cached_tokens_sum of the same run is 3696 (others.md 0.1)."""
    found = sample("dynamo-hosttier")
    assert sum(row["reported_cached_tokens"] for row in found.rows["span"]) == 3696
    page = (SAMPLES / "dynamo-hosttier" / "raw" / "frontend-metrics.txt").read_text()
    assert 'dynamo_frontend_cached_tokens_sum{model="tiny"} 3696\n' in page


def test_streamed_and_whole_answers_of_dynamo_report_alike() -> None:
    cached = [row["reported_cached_tokens"] for row in sample("dynamo-1.5.1").rows["span"]]
    assert cached == [0, 544, 544, 544, 544, 576, 624, 576, 0]
