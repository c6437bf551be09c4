"""An offline replay is a simulation: nothing in its report happened (others.md 1.7)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kvtrace.sources.dynamo import replay_report
from kvtrace.sources.dynamo.replay_report import SIMULATION_START_NS
from tests.samples import SAMPLES
from tests.unit.sources.given import Found, decoded, recorded

MS = 1_000_000


def request(**changed: Any) -> dict[str, Any]:
    return {
        "uuid": "u", "arrival_time_ms": 0.0, "first_admit_ms": 5.0, "terminal_time_ms": 30.0,
        "first_token_ms": 10.0,
        "input_length": 1000, "output_length": 20, "reused_input_tokens": 512, "decode_worker_idx": 1,
        "terminal_status": "completed",
        "routing_history": [
            {"outcome": "queued", "queue_entered_at_ms": 1.0, "queue_wait_ms": 2.0, "logical_worker_id": 1,
             "dp_rank": 0, "reported_overlap_tokens": 512, "selected_overlap_blocks": 1,
             "best_available_overlap_blocks": 2, "overlap_regret_blocks": 1},
            {"outcome": "immediate", "logical_worker_id": 0, "dp_rank": 2, "reported_overlap_tokens": 0},
        ],
        **changed,
    }  # fmt: skip


def report(*requests: Any) -> Found:
    document = {
        "summary": {"completed_requests": 1, "prefix_cache_reused_ratio": 0.1},
        "per_request": requests,
    }
    assert replay_report.looks_like(json.dumps(document).encode())
    return decoded(replay_report, json.dumps(document, indent=1).encode())


def test_a_simulated_request_is_a_forecast_and_no_result() -> None:
    (row,) = report(request()).table("span", op="request")
    assert (row["evidence"], row["predicted_tokens"], row["request_id"]) == ("predicted", 512, "u")
    assert {"reported_cached_tokens", "observer"} & set(row) == set()


def test_a_simulation_begins_where_no_run_does() -> None:
    (row,) = report(request()).table("span", op="request")
    times = [row[name] - SIMULATION_START_NS for name in ("start_ns", "first_token_ns", "end_ns")]
    assert times == [0, 10 * MS, 30 * MS]
    assert SIMULATION_START_NS > 0


def test_every_routing_is_an_attempt() -> None:
    first, second = report(request()).table("span", op="route")
    assert (first["attempt"], first["engine"], second["attempt"], second["engine"]) == (1, "1", 2, "0/2")
    assert (first["start_ns"], first["end_ns"]) == (SIMULATION_START_NS + MS, SIMULATION_START_NS + 3 * MS)
    assert (first["requested_tokens"], first["found_tokens"], first["predicted_tokens"]) == (1000, 512, 512)
    assert (first["evidence"], first["observer"]) == ("predicted", "router")
    assert dict(first["attributes"])["overlap_regret_blocks"] == "1"


@pytest.mark.parametrize(
    ("changed", "status"),
    [({}, "ok"), ({"terminal_status": "failed"}, "error"), ({"terminal_time_ms": None}, "open"),
     ({"terminal_status": "strange"}, None)],
)  # fmt: skip
def test_a_request_that_does_not_end_is_open(changed: dict[str, Any], status: str | None) -> None:
    (row,) = report(request(**changed)).table("span", op="request")
    assert (row.get("status"), "end_ns" in row) == (status, status != "open")


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (4, "undecodable"),
        (request(uuid=None), "undecodable"),
        (request(arrival_time_ms=-1), "undecodable"),
        (request(arrival_time_ms=31.0), "negative_duration"),
        (request(routing_history=[5]), "undecodable"),
    ],
)
def test_a_bad_request_costs_only_itself(bad: Any, cause: str) -> None:
    found = report(bad, request(uuid="v"))
    assert found.lost() == {cause: 1}
    assert len(found.table("span", op="request", request_id="v")) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"summary": {}, "per_request": {}}', b"[" * 100_000])
def test_a_document_that_is_no_report_is_one_loss(content: bytes) -> None:
    assert decoded(replay_report, content).lost() == {"undecodable": 1}


def test_a_document_that_is_too_long_is_one_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_report, "MAX_BYTES", 100)
    found = decoded(replay_report, json.dumps({"per_request": [request()]}).encode())
    assert (found.rows, found.lost()) == ({}, {"undecodable": 1})


def test_a_recorded_report_reuses_as_its_summary_says() -> None:
    path = SAMPLES / "dynamo-replay" / "raw" / "replay-report.json"
    found = recorded(replay_report, path)
    rows, summary = found.table("span", op="request"), json.loads(path.read_text())["summary"]
    assert (len(rows), found.losses) == (summary["num_requests"], [])
    done = [row for row in rows if row["status"] == "ok"]
    assert len(done) == summary["completed_requests"]
    assert sum(row["prompt_tokens"] for row in done) == summary["total_input_tokens"]
    reused = sum(row["predicted_tokens"] for row in done)
    assert reused == pytest.approx(summary["prefix_cache_reused_ratio"] * summary["total_input_tokens"])
    assert found.notes == [f"{replay_report.SIMULATED}: 60"]
