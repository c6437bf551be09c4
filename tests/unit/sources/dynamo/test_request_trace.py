"""Dynamo's request trace: the forecast is no result, one row a request (others.md 0.1, 1.5, 9).

request   100 ms |---------------------------| 125 ms     request_received_ms, total_time_ms
queue            |--| 102                                 prefill_wait_time_ms
first token             ^ 107                             ttft_ms
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from kvtrace.sources.dynamo import request_trace
from tests.samples import SAMPLES
from tests.unit.sources.given import Found, decoded, given, recorded

MS = 1_000_000
UUID = "45a01fec-68d0-4edf-901e-f101d6a94d94"
SECRET = "what the caller wrote"


def event(kind: str, **body: Any) -> dict[str, Any]:
    return {"timestamp": 1, "event": {"schema": "dynamo.request.trace.v1", "event_type": kind,
                                      "event_time_unix_ms": 125, **body}}  # fmt: skip


def end(**changed: Any) -> dict[str, Any]:
    found = {
        "request_id": UUID, "input_tokens": 40, "output_tokens": 8, "cached_tokens": 24, "kv_hit_rate": 0.6,
        "request_received_ms": 100, "prefill_wait_time_ms": 2.0, "prefill_time_ms": 5.0, "ttft_ms": 7.0,
        "total_time_ms": 25.0, "avg_itl_ms": 2.5, "queue_depth": 0,
        "worker": {"prefill_worker_id": 2**63 + 5, "prefill_dp_rank": 0, "decode_worker_id": 2**63 + 5,
                   "decode_dp_rank": 0},
        "replay": {"trace_block_size": 16, "input_length": 40, "input_sequence_hashes": [1, 2**64 - 1, 3]},
    }  # fmt: skip
    return event("request_end", request={k: v for k, v in (found | changed).items() if v is not None})


def payload(**changed: Any) -> dict[str, Any]:
    found = {
        "request_id": UUID, "endpoint": "openai.chat_completion", "model": "tiny",
        "request": {"messages": [{"role": "user", "content": SECRET}], "stream": False, "max_tokens": 8},
        "response": {
            "id": f"chatcmpl-{UUID}", "object": "chat.completion", "created": 9,
            "choices": [{"message": {"content": SECRET}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 40, "completion_tokens": 8,
                      "prompt_tokens_details": {"cached_tokens": 32}},
            "nvext": {"worker_id": {"decode_worker_id": 7, "decode_dp_rank": 1},
                      "timing": {"request_received_ms": 100, "ttft_ms": 7.0, "total_time_ms": 24.0}},
        },
    }  # fmt: skip
    return event("request_payload", payload=found | changed)


def request(*records: dict[str, Any]) -> dict[str, Any]:
    found = given(request_trace, *records)
    assert found.losses == []
    (row,) = found.table("span", op="request")
    return row


def test_cached_tokens_of_a_trace_are_a_forecast_and_no_result() -> None:
    row = request(end())
    assert row["predicted_tokens"] == 24
    assert "reported_cached_tokens" not in row
    assert dict(row["attributes"])["kv_hit_rate"] == "0.6"


def test_a_request_has_its_times_tokens_and_worker() -> None:
    row = request(end())
    assert (row["start_ns"], row["first_token_ns"], row["end_ns"]) == (100 * MS, 107 * MS, 125 * MS)
    assert (row["prompt_tokens"], row["output_tokens"], row["engine"]) == (40, 8, str(2**63 + 5))
    assert (row["request_id"], row["id_kind"], row["observer"], row["evidence"]) == (
        UUID, "internal", "api", "native",
    )  # fmt: skip


def test_the_wait_for_the_prefill_is_a_queue_of_unknown_reason() -> None:
    (queue,) = given(request_trace, end()).table("span", op="queue")
    assert (queue["start_ns"], queue["end_ns"]) == (100 * MS, 102 * MS)
    assert (queue["reason"], queue["evidence"], queue["request_id"]) == ("unknown", "derived", UUID)


@pytest.mark.parametrize("waited", [None, -1.0, 25.1, "2"])
def test_a_wait_that_cannot_be_is_no_queue(waited: Any) -> None:
    assert given(request_trace, end(prefill_wait_time_ms=waited)).table("span", op="queue") == []


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_both_records_of_a_request_are_one_row_in_either_order(order: list[int]) -> None:
    both = [payload(), end()]
    row = request(*(both[number] for number in order))
    assert (row["name"], row["predicted_tokens"], row["reported_cached_tokens"]) == ("request_end", 24, 32)
    assert (row["status"], row["engine"]) == ("ok", str(2**63 + 5))
    assert dict(row["attributes"])["endpoint"] == "openai.chat_completion"


def test_a_payload_alone_is_a_request_with_the_times_of_its_answer() -> None:
    row = request(payload())
    assert (row["name"], row["start_ns"], row["end_ns"]) == ("request_payload", 100 * MS, 124 * MS)
    assert (row["reported_cached_tokens"], row["engine"], "predicted_tokens" in row) == (32, "7/1", False)


def test_records_that_wait_in_vain_become_rows_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_trace, "MAX_WAITING", 1)
    monkeypatch.setattr(request_trace, "MAX_ENDED", 1)
    found = given(
        request_trace, payload(), payload(request_id="b"), end(request_id="c"), end(request_id="d"), end()
    )
    assert sorted(row["request_id"] for row in found.table("span", op="request")) == sorted(
        [UUID, UUID, "b", "c", "d"]
    )


def test_the_same_request_twice_is_two_rows() -> None:
    assert len(given(request_trace, end(), end()).table("span", op="request")) == 2


def test_keys_are_the_prompts_blocks_in_order_the_last_one_partial() -> None:
    rows = given(request_trace, end()).rows["request_key"]
    assert [(row["position"], row["key"], row["tokens"]) for row in rows] == [
        (0, "0000000000000001", 16), (1, "ffffffffffffffff", 16), (2, "0000000000000003", 8),
    ]  # fmt: skip
    assert {(row["request_id"], row["key_space"], row["attempt"], row["time_ns"]) for row in rows} == {
        (UUID, "dynamo:engine:unknown", 1, 100 * MS)
    }


def test_hashes_that_are_no_64_bit_numbers_are_counted() -> None:
    replay = {"trace_block_size": 16, "input_length": 64, "input_sequence_hashes": [1, "2", 2**64, True]}
    found = given(request_trace, end(replay=replay))
    assert len(found.rows["request_key"]) == 1
    assert found.lost() == {"undecodable": 3}


def test_other_names_are_seen_in_an_answer_and_else_follow_from_the_uuid() -> None:
    def names(found: Found) -> list[tuple[str, str, str]]:
        return [(row["alias"], row["kind"], row["evidence"]) for row in found.rows.get("alias", [])]

    assert names(given(request_trace, payload(), end())) == [(f"chatcmpl-{UUID}", "external", "native")]
    assert names(given(request_trace, end(x_request_id="tier-r1-p0"))) == [
        (f"chatcmpl-{UUID}", "external", "derived"),
        (f"cmpl-{UUID}", "external", "derived"),
        ("tier-r1-p0", "client", "native"),
    ]
    assert names(given(request_trace, end(request_id="not a uuid"))) == []


def test_content_is_counted_and_in_no_row() -> None:
    tool = event("tool", tool={"tool_name": "find", "arguments": SECRET, "duration_ms": 3})
    found = given(request_trace, payload(), end(), tool, event("later", thing={"said": SECRET, "count": 2}))
    assert SECRET not in str(found)
    assert found.content == {"messages": 1, "choices": 1, "tool": 1, "later": 1}


def test_tools_and_unknown_records_are_kept_without_an_operation() -> None:
    tool = event("tool", tool={"tool_name": "find", "duration_ms": 3})
    found = given(
        request_trace, tool, event("router_selection", selection={"request_id": UUID, "worker_id": 4})
    )
    assert [(row["name"], "op" in row, row["start_ns"]) for row in found.rows["span"]] == [
        ("tool", False, 125 * MS), ("router_selection", False, 125 * MS),
    ]  # fmt: skip
    assert dict(found.rows["span"][0]["attributes"]) == {"tool_name": "find", "duration_ms": "3"}
    assert found.rows["span"][1]["request_id"] == UUID
    assert found.notes == [
        "records of kind 'router_selection', which this version does not know, kept without op: 1"
    ]


def test_fields_that_are_known_from_later_versions_are_attributes() -> None:
    coverage = {
        "resident": 1,
        "eligible": 2,
        "selected": 3,
        "overload_gap_tokens": 4,
        "selection_gap_tokens": 5,
    }
    row = request(end(backend_actual_cached_tokens=30, routing_decision={"raw_cache_coverage": coverage}))
    said = dict(row["attributes"])
    assert said["backend_actual_cached_tokens"] == "30"
    assert {name: int(said[f"raw_cache_coverage.{name}"]) for name in coverage} == coverage
    assert "reported_cached_tokens" not in row  # only the usage of an answer says that


def test_fields_that_nobody_knows_are_counted_by_name() -> None:
    found = given(request_trace, end(new=1), end(new=2, newer=3))
    assert found.notes == ["fields of request_end that this version does not read: 'new' (2), 'newer' (1)"]


def test_a_record_without_its_wrapper_says_the_same() -> None:
    assert given(request_trace, end()["event"]).rows == given(request_trace, end()).rows


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b"not json", "undecodable"),
        (b"[" * 100_000, "undecodable"),
        (b'{"timestamp": 1}', "undecodable"),
        (json.dumps(end(request_received_ms=0)).encode(), "impossible_time"),
        (json.dumps(end(request_received_ms=1e300)).encode(), "impossible_time"),
        (json.dumps(end(request_id=None)).encode(), "impossible_time"),
        (json.dumps(event("request_end", request=4)).encode(), None),
    ],
)
def test_a_bad_record_costs_only_itself(line: bytes, cause: str | None) -> None:
    found = decoded(request_trace, line + b"\n" + json.dumps(end()).encode())
    assert found.lost() == ({} if cause is None else {cause: 1})
    assert len(found.table("span", op="request")) == 1


@pytest.mark.parametrize(
    ("head", "is_one"),
    [
        (json.dumps(end()).encode(), True),
        (json.dumps(end()["event"]).encode(), True),
        (json.dumps(payload()).encode()[:200], True),
        (b'{"resourceSpans": []}', False),
        (b"", False),
    ],
)
def test_a_trace_is_known_by_its_schema(head: bytes, is_one: bool) -> None:  # noqa: FBT001 - a table
    assert request_trace.looks_like(head) is is_one


def sample(name: str) -> Found:
    return recorded(request_trace, SAMPLES / name / "raw" / "request-trace.jsonl")


def test_a_router_that_sees_a_host_tier_credits_three_quarters_of_what_is_loaded() -> None:
    """528 * 0.75 = 396 (others.md 0.1); only where the copy is on the device do the two agree."""
    rows = sample("dynamo-eventplane").table("span", op="request")
    pairs = [(row["predicted_tokens"], row["reported_cached_tokens"]) for row in rows]
    assert pairs == [(0, 0)] * 4 + [(396, 528), (396, 528), (420, 560), (496, 496)] * 2
    assert dict(rows[4]["attributes"])["kv_hit_rate"].startswith("0.7279")


def test_a_blind_router_foresees_less_than_is_loaded() -> None:
    rows = sample("dynamo-hosttier").table("span", op="request")
    assert len(rows) == 12
    assert (560, 496) in [(row["reported_cached_tokens"], row["predicted_tokens"]) for row in rows]
    assert sum(row["reported_cached_tokens"] for row in rows) == 3696
    assert sum(row["predicted_tokens"] for row in rows) == 3312


def test_forecast_and_result_agree_where_there_is_no_tier_below() -> None:
    rows = sample("dynamo-1.5.1").table("span", op="request")
    assert all(row["predicted_tokens"] == row["reported_cached_tokens"] for row in rows[:8])
    assert (len(rows), "reported_cached_tokens" in rows[8]) == (9, False)  # a completion without a payload
