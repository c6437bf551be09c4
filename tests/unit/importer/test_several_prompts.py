"""A call of the completions API with several prompts: one answer, one `usage`, a request of the engine each.

client   cmpl-a7     |---------------------------|   usage: the prompts' sum; cached_tokens of one of them
engine   cmpl-a7-0-00000000  |-----------------|     its own tokens
         cmpl-a7-1-00000001  |-------------|         its own tokens
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.rows import write_run
from tests.unit.importer.drawn import MS, VLLM, imported, losses, query, span, written

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

TOKENS = ((100, 4, 0), (200, 6, 64))
"""Of each prompt: its tokens, those of its answer, and those that were cached."""
USAGE = {"prompt_tokens": 300, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 64}}


def note(at_ms: int = 10, client: str | None = "a7", **more: Any) -> dict[str, Any]:
    return {"request_id": client, "response_id": "cmpl-a7", "status": 200, "started_ns": at_ms * MS,
            "ended_ns": (at_ms + 80) * MS, "usage": USAGE, **more}  # fmt: skip


def internal(number: int, call: str = "a7", again: int = 0) -> str:
    return f"cmpl-{call}-{number}-{again}000000{number}"


def served(at_ms: int = 20, *, again: int = 0, counted: bool = True) -> list[dict[str, Any]]:
    """What the API server recorded of both prompts."""
    return [
        {"span_id": 10 * again + number + 1, "op": "request", "request_id": internal(number, again=again),
         "observer": "api", "evidence": "shim", "start_ns": at_ms * MS + number, "process": "h/1",
         "end_ns": (at_ms + 60 - 10 * number) * MS, "engine": "e",
         **(dict(zip(("prompt_tokens", "output_tokens", "reported_cached_tokens"), tokens, strict=True))
            if counted else {})}
        for number, tokens in enumerate(TOKENS)
    ]  # fmt: skip


def run_of(path: Path, rows: list[dict[str, Any]], *notes: dict[str, Any], alias: str | None = None) -> Run:
    names = [
        {"alias": alias or row["request_id"].rpartition("-")[0], "kind": "external",
         "request_id": row["request_id"], "source": "vllm", "evidence": "shim"}
        for row in rows
    ]  # fmt: skip
    recorded = write_run(path / "recorded", span=rows, alias=names)
    lines = "".join(json.dumps(each) + "\n" for each in notes).encode()
    return imported(path / "made", recorded.path, written(path / "responses.jsonl", lines))


REQUESTS = "SELECT request_id, prompt_tokens, output_tokens, reported_cached_tokens FROM request ORDER BY 1"
CALLS = """
    SELECT request_id, op, list_transform(members, lambda m: m.request_id), prompt_tokens, output_tokens
    FROM span WHERE observer = 'client' ORDER BY start_ns
"""


def test_every_prompt_is_a_request_with_its_own_tokens_and_the_call_is_none(tmp_path: Path) -> None:
    run = run_of(tmp_path, served(), note())
    assert query(run, REQUESTS) == [(internal(number), *tokens) for number, tokens in enumerate(TOKENS)]
    assert losses(run) == []


def test_the_calls_row_names_its_requests_whose_tokens_are_the_usage(tmp_path: Path) -> None:
    run = run_of(tmp_path, served(), note())
    (call,) = query(run, CALLS)
    assert call == ("cmpl-a7", None, [internal(0), internal(1)], 300, 10)
    sums = "SELECT sum(prompt_tokens), sum(output_tokens) FROM request"
    assert query(run, sums) == [call[3:]]


def test_the_usage_of_a_call_is_no_prompts_where_nobody_counted_it(tmp_path: Path) -> None:
    """The sum is not the first prompt's, and of the cached tokens nobody knows whose they are."""
    run = run_of(tmp_path, served(counted=False), note())
    assert query(run, REQUESTS) == [(internal(number), None, None, None) for number in range(2)]


def test_every_name_of_the_call_means_both_requests(tmp_path: Path) -> None:
    run = run_of(tmp_path, served(), note())
    found = query(
        run, "SELECT alias, request_id FROM alias WHERE kind IN ('response', 'client') ORDER BY ALL"
    )
    for name in ("a7", "cmpl-a7"):
        assert {request for alias, request in found if alias == name} >= {internal(0), internal(1)}


def test_a_call_that_was_sent_again_has_the_requests_of_its_own_time(tmp_path: Path) -> None:
    run = run_of(tmp_path, [*served(), *served(520, again=1)], note(), note(510))
    assert [row[2] for row in query(run, CALLS)] == [
        [internal(0), internal(1)], [internal(0, again=1), internal(1, again=1)]
    ]  # fmt: skip
    assert query(run, "SELECT count(*) FROM request") == [(4,)]


def test_a_call_with_one_prompt_is_its_request(tmp_path: Path) -> None:
    """Also when it was sent again under the same name."""
    rows = [served()[0], served(520, again=1)[0]]
    run = run_of(tmp_path, rows, note(), note(510))
    assert query(run, CALLS.replace("request_id, op,", "request_id, op IS NULL,")) == [
        (row["request_id"], False, None, 300, 10) for row in rows
    ]


def test_two_calls_of_one_caller_are_two_requests(tmp_path: Path) -> None:
    """A completion and a chat under the same X-Request-Id."""
    rows = [served()[0], served(520, again=1)[0] | {"request_id": "chatcmpl-a7-00000009"}]
    run = run_of(tmp_path, rows, note(), note(510, response_id="chatcmpl-a7"))
    assert [row[:2] for row in query(run, CALLS)] == [(row["request_id"], "request") for row in rows]


def test_several_answers_to_one_prompt_are_a_call_too(tmp_path: Path) -> None:
    """With n = 2 vLLM's children are 0_... and 1_... of one external name."""
    rows = [row | {"request_id": f"{number}_cmpl-a7-0-00000005"} for number, row in enumerate(served())]
    run = run_of(tmp_path, rows, note(), alias="cmpl-a7-0")
    assert [row[:3] for row in query(run, CALLS)] == [("cmpl-a7", None, [row["request_id"] for row in rows])]
    assert query(run, "SELECT output_tokens FROM request ORDER BY request_id") == [(4,), (6,)]


def test_it_holds_for_spans_alone_and_when_the_run_is_imported_again(tmp_path: Path) -> None:
    spans = [
        span("llm_request", 20, 80, {"gen_ai.request.id": f"cmpl-a7-{number}",
             "gen_ai.usage.prompt_tokens": 100 * (number + 1), "gen_ai.usage.completion_tokens": 5},
             resource=VLLM, scope="vllm.llm_engine", trace=number + 1)
        for number in range(2)
    ]  # fmt: skip
    made = imported(tmp_path / "made", spans, written(tmp_path / "r.jsonl", json.dumps(note()).encode()))
    for run in (made, imported(tmp_path / "again", made.path)):
        assert query(run, REQUESTS) == [("cmpl-a7-0", 100, 5, None), ("cmpl-a7-1", 200, 5, None)]
        assert query(run, CALLS) == [("cmpl-a7", None, ["cmpl-a7-0", "cmpl-a7-1"], 300, 10)]


@pytest.mark.parametrize("count", [0, 1])
def test_a_call_whose_requests_nobody_recorded_is_a_request(tmp_path: Path, count: int) -> None:
    run = run_of(tmp_path, served()[:count], note())
    assert query(run, "SELECT count(*) FROM request") == [(1,)]
