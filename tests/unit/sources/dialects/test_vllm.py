"""vLLM's llm_request: a request, and a queue row made of the seconds that it sums up.

llm_request  10 |-----------------------| 100        first token at 50, queue 5 ms
queue           |--| 15                              derived, reason unknown
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.importer.drawn import EXTERNAL, MS, Sent, llm_request, op, span, word, words


def test_a_request_has_its_tokens_and_its_first_token() -> None:
    row = word(llm_request(EXTERNAL, 10, 100, first_ms=40))
    assert row["op"] == "request"
    assert (row["request_id"], row["id_kind"]) == (EXTERNAL, "external")
    assert (row["start_ns"], row["first_token_ns"], row["end_ns"]) == (10 * MS, 50 * MS, 100 * MS)
    assert (row["prompt_tokens"], row["output_tokens"]) == (1500, 12)
    assert (row["observer"], row["evidence"], row["attribution"]) == ("api", "native", "request")
    assert row["attributes"] == {}


def named(**attributes: Any) -> Sent:
    spelled = {f"gen_ai.{key.replace('__', '.')}": value for key, value in attributes.items()}
    return span("llm_request", 10, 100, {"gen_ai.request.id": EXTERNAL, **spelled})


@pytest.mark.parametrize(
    ("sent", "column", "value"),
    [
        (named(usage__prompt_tokens=5), "prompt_tokens", 5),
        (named(usage__input_tokens=5), "prompt_tokens", 5),
        (named(usage__prompt_tokens=5, usage__input_tokens=6), "prompt_tokens", 5),
        (named(usage__completion_tokens=7), "output_tokens", 7),
        (named(usage__output_tokens=7), "output_tokens", 7),
        (named(usage__cached_tokens=8), "reported_cached_tokens", 8),
        (named(**{"usage__cache_read.input_tokens": 8}), "reported_cached_tokens", 8),
        (named(latency__time_to_first_token=0.04), "first_token_ns", 50 * MS),
        (named(response__time_to_first_chunk=0.04), "first_token_ns", 50 * MS),
        (
            named(latency__time_to_first_token=0.04, response__time_to_first_chunk=0.05),
            "first_token_ns",
            50 * MS,
        ),
    ],
)
def test_old_and_new_attribute_names_say_the_same(sent: Sent, column: str, value: int) -> None:
    assert word(sent)[column] == value


@pytest.mark.parametrize(("first_ms", "end_ms"), [(90.001, 100), (-1, 100), (1e13, 100), (float("nan"), 100)])
def test_a_first_token_after_the_end_is_not_believed(first_ms: float, end_ms: float) -> None:
    row = word(llm_request(EXTERNAL, 10, end_ms, first_ms=first_ms))
    assert "first_token_ns" not in row
    assert row["end_ns"] == 100 * MS


def test_a_first_token_that_is_not_believed_stays_an_attribute() -> None:
    row = word(llm_request(EXTERNAL, 10, 100, first_ms=120))
    assert row["attributes"] == {"gen_ai.latency.time_to_first_token": "0.12"}


def test_a_first_token_at_the_very_end_is_believed() -> None:
    assert word(llm_request(EXTERNAL, 10, 100, first_ms=90))["first_token_ns"] == 100 * MS


def test_an_open_request_keeps_its_first_token() -> None:
    row = word(llm_request(EXTERNAL, 10, None, first_ms=40))
    assert row["first_token_ns"] == 50 * MS
    assert "end_ns" not in row


@pytest.mark.parametrize(("code", "status"), [(0, None), (1, "ok"), (2, "error")])
def test_the_spans_status_is_the_requests(code: int, status: str | None) -> None:
    assert word(llm_request(EXTERNAL, 10, 100, status=code)).get("status") == status


def test_the_queues_seconds_are_a_derived_row_of_unknown_reason() -> None:
    rows, lost = words(llm_request(EXTERNAL, 10, 100, queue_ms=5))
    request, queue = rows
    assert (queue["op"], queue["reason"], queue["evidence"]) == ("queue", "unknown", "derived")
    assert (queue["start_ns"], queue["end_ns"]) == (10 * MS, 15 * MS)
    assert (queue["request_id"], queue["id_kind"]) == (EXTERNAL, "external")
    assert queue["parent_span_id"] == request["span_id"] != queue["span_id"]
    assert queue["trace_id"] == request["trace_id"]
    assert lost == []


@pytest.mark.parametrize("queue_ms", [0, 90])
def test_a_queue_may_be_empty_or_as_long_as_its_request(queue_ms: float) -> None:
    rows, lost = words(llm_request(EXTERNAL, 10, 100, queue_ms=queue_ms))
    assert rows[1]["end_ns"] == (10 + queue_ms) * MS
    assert lost == []


@pytest.mark.parametrize("queue_ms", [-894_000.0, 90.001, 1e15, -1e15])
def test_a_queue_that_is_negative_or_longer_than_its_request_is_dropped_and_counted(queue_ms: float) -> None:
    rows, lost = words(
        llm_request(EXTERNAL, 10, 100, queue_ms=queue_ms), llm_request("cmpl-good-0", 20, 30, queue_ms=1)
    )
    assert [(row["op"], row["request_id"]) for row in rows] == [
        ("request", EXTERNAL), ("request", "cmpl-good-0"), ("queue", "cmpl-good-0"),
    ]  # fmt: skip
    assert lost == [("negative_duration", "queue", 1)]


def test_other_spans_of_vllm_stay_without_an_operation() -> None:
    rows, _ = words(
        span("Load model", 1, 2, {"code.function": "load"}, scope="vllm.model_executor"),
        span("llm_request", 1, 2, {"no": "id"}, scope="vllm.tracing.otel"),
    )
    assert [("op" in row, row["name"]) for row in rows] == [(False, "Load model"), (False, "llm_request")]
    assert dict(rows[0]["attributes"]) == {"code.function": "load"}


def test_a_request_of_ours_is_read_as_ours_whatever_its_name() -> None:
    row = word(
        span(
            "llm_request",
            1,
            2,
            {"gen_ai.request.id": "a", "kvtrace.op": "request", "kvtrace.request.id": "b"},
        )
    )
    assert row["request_id"] == "b"
    assert "id_kind" not in row


def test_dialects_share_a_batch_without_mixing() -> None:
    rows, _ = words(
        op("load", 1, 2, tokens=1),
        llm_request(EXTERNAL, 10, 100, first_ms=40),
        span("other", 1, 2, {"session_id": "s"}),
    )
    assert [row.get("op") for row in rows] == ["load", "request", None]
    assert [row.get("request_id") for row in rows] == ["r0", EXTERNAL, None]
