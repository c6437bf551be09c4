"""KVBM's recorder, drawn from its source: calls of the scheduler into the connector, in ms of its own clock.

CreateSlot 10   GetNum... 10   GetNum... 30   UpdateState... 50   BuildConnectorMeta 60   Finished 200
|               |----- lookup: asked twice -----|                 | step, no end           |
|------------------------------------- request ------------------------------------------|
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.hit_funnel import hit_funnel
from kvtrace.importer import import_files
from kvtrace.run import open_run
from kvtrace.sources import kvbm_recorder
from kvtrace.sources.kvbm_recorder import actions
from kvtrace.sources.kvbm_recorder.actions import ASKED_ITSELF, CLOCK, LOSSY, RECORDER_START_NS
from tests.unit.sources.given import Found, decoded, given

if TYPE_CHECKING:
    from pathlib import Path

SECRET = 987_654_321
NS = 1_700_000_000_000_000_000


def call(ms: int, name: str, asked: dict[str, Any], answered: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"timestamp": ms, "event": {name: [asked, answered or {}]}}


def created(ms: int, request: str = "r", tokens: int = 100) -> dict[str, Any]:
    about = {"request_id": request, "lora_name": None, "salt_hash": 7}
    return call(ms, "CreateSlot", {"request": about, "tokens": [SECRET] * tokens})


def asked(ms: int, computed: int = 16, matched: int = 48, request: str = "r") -> dict[str, Any]:
    return call(
        ms, "GetNumNewMatchedTokens",
        {"request_id": request, "request_num_tokens": 100, "num_computed_tokens": computed},
        {"num_new_matched_tokens": matched, "has_matched": matched > 0},
    )  # fmt: skip


def admitted(ms: int, external: int = 48, request: str = "r") -> dict[str, Any]:
    return call(ms, "UpdateStateAfterAlloc",
                {"request_id": request, "block_ids": [1, 2], "num_external_tokens": external})  # fmt: skip


def scheduled(ms: int, computed: int = 64, tokens: int = 36, request: str = "r") -> dict[str, Any]:
    new = {"request_id": request, "prompt_token_ids": [SECRET] * 100, "block_ids": [1],
           "num_computed_tokens": computed, "priorities": None}  # fmt: skip
    output = {"new_requests": [new], "cached_requests": [], "num_scheduled_tokens": {request: tokens}}
    operations = [
        {"request_id": request, "uuid": "u", "transfer_type": kind, "request_type": "Immediate"}
        for kind in ("Load", "Store", "Store")
    ]
    metadata = {"iteration": 3, "new_slots": [], "operations": operations}
    return call(ms, "BuildConnectorMeta", {"scheduler_output": output}, {"metadata": metadata})


def finished(ms: int, request: str = "r") -> dict[str, Any]:
    asked_of = {"request_id": request, "block_ids": [1, 2]}
    return call(ms, "RequestFinished", asked_of, {"is_finished": True})


def ms_of(ns: int) -> float:
    """Milliseconds of the recorder's own clock."""
    return (ns - RECORDER_START_NS) / 1e6


def one(found: Found, op: str) -> dict[str, Any]:
    assert found.losses == []
    (row,) = found.table("span", op=op)
    return row


LIFE = [created(10), asked(10), asked(30), admitted(50), scheduled(60), finished(200)]


def test_a_request_lasts_from_its_slot_to_its_finish() -> None:
    row = one(given(kvbm_recorder, *LIFE), "request")
    assert (ms_of(row["start_ns"]), ms_of(row["end_ns"])) == (10, 200)
    assert (row["prompt_tokens"], row["gpu_hit_tokens"], row["selected_tokens"]) == (100, 16, 48)
    assert "status" not in row
    assert row["attributes"] == {"blocks_held": "true"}


def test_a_question_that_is_asked_again_before_there_are_blocks_is_one_lookup() -> None:
    row = one(given(kvbm_recorder, *LIFE), "lookup")
    assert (ms_of(row["start_ns"]), ms_of(row["end_ns"]), row["attempt"]) == (10, 10, 1)
    assert (row["requested_tokens"], row["found_tokens"], row["outcome"]) == (100, 64, "ok")
    assert row["attributes"] == {
        "calls": "2", "returned_tokens": "48", "asked_from_tokens": "16", "asynchronous": "true",
    }  # fmt: skip
    assert "found_by_tier" not in row


def test_of_answers_that_differ_the_last_one_before_the_admission_counts() -> None:
    row = one(given(kvbm_recorder, asked(10, 16, 48), asked(30, 32, 0), admitted(40, 0)), "lookup")
    assert (ms_of(row["end_ns"]), row["found_tokens"], row["outcome"]) == (30, 0, "miss")


def test_a_question_after_an_admission_is_the_next_attempt_and_leaves_the_first_hit() -> None:
    found = given(kvbm_recorder, *LIFE[:-1], asked(90, 0, 96), admitted(95, 96), finished(200))
    assert [(row["attempt"], row["found_tokens"]) for row in found.table("span", op="lookup")] == [
        (1, 64), (2, 96),
    ]  # fmt: skip
    assert one(found, "request")["selected_tokens"] == 48


def test_an_admission_after_the_load_has_arrived_selects_nothing_new() -> None:
    found = given(kvbm_recorder, *LIFE[:4], admitted(55, 0), finished(200))
    assert one(found, "request")["selected_tokens"] == 48


def test_a_pass_is_a_step_without_an_end_that_says_what_was_there_before() -> None:
    row = one(given(kvbm_recorder, *LIFE), "step")
    assert (ms_of(row["start_ns"]), "end_ns" in row, row["tokens"]) == (60, False, 36)
    assert row["members"] == [
        {"request_id": "r", "phase": "prefill", "scheduled_tokens": 36, "output_tokens": None,
         "computed_before": 64},
    ]  # fmt: skip
    assert row["attributes"] == {"iteration": "3", "loads": "1", "stores": "2"}


def test_no_transfer_is_claimed_because_none_is_timed() -> None:
    found = given(kvbm_recorder, *LIFE)
    assert {row["op"] for row in found.table("span")} == {"request", "lookup", "step"}


def test_a_pass_that_does_nothing_is_no_step() -> None:
    idle = call(70, "BuildConnectorMeta", {"scheduler_output": {"num_scheduled_tokens": {}}},
                {"metadata": {"iteration": 4, "operations": []}})  # fmt: skip
    assert given(kvbm_recorder, idle).rows == {}


def test_a_request_that_is_not_finished_is_open() -> None:
    row = one(given(kvbm_recorder, *LIFE[:-1]), "request")
    assert (row["status"], "end_ns" in row) == ("open", False)


def test_token_ids_are_counted_and_nowhere_in_a_row() -> None:
    found = given(kvbm_recorder, *LIFE)
    assert found.content == {"token_ids": 200}
    assert str(SECRET) not in str(found.rows)


def test_a_cleared_cache_is_an_eviction_by_what_was_answered() -> None:
    calls = (call(ms, "ResetCache", {}, {"result": went}) for ms, went in ((5, True), (6, False)))
    rows = given(kvbm_recorder, *calls).table("span", op="evict", reason="cleared")
    assert [row["outcome"] for row in rows] == ["ok", "failed"]


def test_notes_say_what_the_clock_is_and_that_calls_may_be_missing_unsaid() -> None:
    has_slot = call(1, "HasSlot", {"request_id": "r"}, {"result": True})
    found = given(kvbm_recorder, has_slot, *LIFE)
    assert found.notes == [f"{ASKED_ITSELF}: 1", f"{CLOCK}: 7", f"{LOSSY}: 7"]


def test_requests_beyond_the_limit_end_as_open_rows_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(actions, "MAX_LIVE", 3)
    found = given(kvbm_recorder, *(created(1, f"r{number}", 0) for number in range(5)))
    rows = found.table("span", op="request", status="open")
    assert len(rows) == 5
    assert [row["request_id"] for row in rows[:2]] == ["r0", "r1"]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ({"timestamp": 1}, "undecodable"), ({"timestamp": -1, "event": {"HasSlot": []}}, "undecodable"),
        ({"timestamp": 1, "event": {"HasSlot": [], "ResetCache": []}}, "undecodable"),
        ({"timestamp": 1, "event": {"Unheard": [{}, {}]}}, "undecodable"),
        (asked(1, -1), "undecodable"), (asked(1, matched=-5), "undecodable"),
        (asked(1, request=""), "undecodable"),
        (call(1, "BuildConnectorMeta", {"scheduler_output": 7}), "undecodable"), (7, "undecodable"),
    ],
)  # fmt: skip
def test_what_is_no_call_costs_itself_alone(line: Any, cause: str) -> None:
    found = given(kvbm_recorder, line, *LIFE)
    assert found.lost() == {cause: 1}
    assert len(found.table("span", op="request", request_id="r")) == 1


def test_a_first_line_is_recognised_also_where_it_is_cut() -> None:
    assert kvbm_recorder.looks_like(json.dumps(scheduled(60)).encode()[:90])
    assert kvbm_recorder.looks_like(json.dumps(created(1), separators=(",", ":")).encode())
    assert not kvbm_recorder.looks_like(b'{"timestamp": 1, "event": {"schema": "dynamo.request.trace.v1"}}')
    assert not kvbm_recorder.looks_like(b'{"timestamp": 1, "event": {"HasSlots": [')


def test_lines_that_are_cut_are_counted() -> None:
    content = b"\n".join(json.dumps(line).encode() for line in LIFE)
    assert decoded(kvbm_recorder, content[:-9]).lost() == {"undecodable": 1}


def test_a_run_of_it_answers_where_the_tokens_of_a_prompt_came_from(tmp_path: Path) -> None:
    """gpu_hit 16 + loaded 48 + computed 36 = prompt 100."""
    (tmp_path / "records.jsonl").write_text("\n".join(map(json.dumps, LIFE)))
    report = import_files([tmp_path / "records.jsonl"], tmp_path / "run")
    assert report.inputs[0].format == "kvbm-recorder"
    (row,) = hit_funnel(open_run(tmp_path / "run")).to_dicts()
    wanted = {
        "request_id": "r", "prompt_tokens": 100, "gpu_hit_tokens": 16, "found_tokens": 64,
        "selected_tokens": 48, "loaded_tokens": 48, "computed_tokens": 36, "moved_tokens": None,
    }  # fmt: skip
    assert {name: row[name] for name in wanted} == wanted


def test_beside_a_client_that_has_a_date_a_request_keeps_its_times_and_gets_its_tokens(
    tmp_path: Path,
) -> None:
    """The recorder's own 0 is in 1970; the time to the first token is the client's alone."""
    request = "cmpl-req-1-0-abcdef01"
    life = [created(10, request), asked(10, request=request), admitted(50, request=request),
            scheduled(60, request=request), finished(200, request)]  # fmt: skip
    (tmp_path / "records.jsonl").write_text("\n".join(map(json.dumps, life)))
    seen = {
        "request_id": "req-1", "response_id": "cmpl-req-1", "status": 200, "started_ns": NS,
        "first_token_ns": NS + 5, "ended_ns": NS + 9, "usage": {"prompt_tokens": 100},
    }  # fmt: skip
    (tmp_path / "responses.jsonl").write_text(json.dumps(seen) + "\n")
    import_files([tmp_path / "records.jsonl", tmp_path / "responses.jsonl"], tmp_path / "run")
    query = "SELECT request_id, start_ns, end_ns, selected_tokens, gpu_hit_tokens, observers FROM request"
    assert open_run(tmp_path / "run").sql(query).rows() == [(request, NS, NS + 9, 48, 16, 2)]
