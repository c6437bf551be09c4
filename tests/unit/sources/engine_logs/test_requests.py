"""Requests, where vLLM logs them: a row only when a line ends it, and never what was asked or answered."""

from __future__ import annotations

import pytest
from kvtrace.sources.engine_logs import log
from tests.unit.sources.engine_logs.logged import BEGINS, T0_NS, read, spans, vllm

RECEIVED = "Received request cmpl-1-0: params: SamplingParams(n=1), lora_request: None."


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("Generated response cmpl-1-0: output: 'SECRET', finish_reason: length", "ok"),
        ("Generated response cmpl-1-0 (streaming complete): output: 'SECRET', finish_reason: stop", "ok"),
        ("Generated response cmpl-1-0: output: 'SECRET', finish_reason: abort", "aborted"),
        ("Request cmpl-1-0 aborted.", "aborted"),
        ("Request cmpl-1-0 failed (bad request): SECRET.", "error"),
        ("Request cmpl-1-0 failed due to ValueError: SECRET.", "error"),
    ],
)
def test_a_request_is_from_received_to_the_line_that_ends_it(end: str, status: str) -> None:
    found = read(BEGINS, vllm(3, RECEIVED), vllm(9, end))
    assert spans(found, "op", "request_id", "status", "start_ns", "end_ns", "observer") == [
        ("request", "cmpl-1-0", status, T0_NS + 3_000_000_000, T0_NS + 9_000_000_000, None),
    ]
    assert "SECRET" not in str(found)


def test_a_request_that_no_line_ends_has_no_row_because_it_may_have_ended_all_the_same() -> None:
    found = read(BEGINS, vllm(3, RECEIVED))
    assert found.table("span") == []
    assert "requests without a line that ends them: no rows: 1" in found.notes


def test_parts_of_an_answer_end_nothing_and_are_counted_as_content() -> None:
    part = "Generated response cmpl-1-0 (streaming delta): output: 'SECRET', finish_reason: streaming"
    found = read(BEGINS, vllm(3, RECEIVED), vllm(4, part), vllm(5, part))
    assert found.table("span") == []
    assert found.content == {"output texts": 2}


def test_a_prompt_in_a_debug_line_is_counted_and_dropped() -> None:
    found = read(BEGINS, vllm(3, "Request cmpl-1 details: prompt: 'SECRET', prompt_token_ids: [1], ..."))
    assert found.content == {"prompt texts": 1}
    assert "SECRET" not in str(found)


def test_an_end_without_a_beginning_has_no_row() -> None:
    found = read(BEGINS, vllm(9, "Request cmpl-1-0 aborted."))
    assert found.table("span") == []


def test_of_more_requests_than_may_wait_the_oldest_are_given_up_and_that_is_no_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without `--enable-log-outputs` none of them ever ends."""
    monkeypatch.setattr(log, "MAX_OPEN", 2)
    received = [RECEIVED.replace("cmpl-1-0", f"cmpl-{number}") for number in range(5)]
    found = read(BEGINS, *(vllm(3, line) for line in received), vllm(4, "Request cmpl-4 aborted."))
    assert spans(found, "request_id") == [("cmpl-4",)]
    assert found.losses == []
    assert "requests that waited too long for such a line: no rows: 3" in found.notes
