"""What really written logs give: vLLM and LMCache's server while the server is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvtrace.importer.formats import decoders, format_of
from kvtrace.sources import lmcache_log, vllm_log
from tests.unit.sources.given import decoded, recorded

RECORDED = Path(__file__).parents[1] / "recorded"
VLLM, SERVER = RECORDED / "vllm-server-killed.log", RECORDED / "lmcache-server-killed.log"
SECOND_NS = 1_000_000_000


def test_each_is_told_by_looking_and_by_one_decoder_alone() -> None:
    assert (format_of(VLLM), format_of(SERVER)) == ("vllm-log", "lmcache-log")
    for path in (VLLM, SERVER):
        head = path.read_bytes()[: 1 << 16]
        assert sum(module.looks_like(head) for module in decoders().values()) == 1


@pytest.mark.parametrize("module", [vllm_log, lmcache_log])
def test_no_other_recorded_file_looks_like_a_log(module: object) -> None:
    heads = {path: path.read_bytes()[: 1 << 16] for path in RECORDED.iterdir() if path.is_file()}
    said = {path.name for path, head in heads.items() if module.looks_like(head)}  # type: ignore[attr-defined]
    assert all(name.startswith(("vllm", "lmcache")) and name.endswith(".log") for name in said)


def test_vllms_log_says_when_its_cache_was_degraded_and_that_one_inquiry_timed_out() -> None:
    found = recorded(vllm_log, VLLM)
    (late,) = found.table("span", op="lookup")
    assert late["end_ns"] - late["start_ns"] == 5 * SECOND_NS
    healthy, degraded = found.table("span", op="health")
    assert healthy["end_ns"] == degraded["start_ns"] == late["end_ns"]
    assert (healthy["reason"], degraded["reason"]) == ("healthy", "degraded")
    usage = {row["value"] for row in found.table("metric") if row["name"].endswith("kv_cache_usage_percent")}
    assert max(usage) == 92.3  # three prompts of 1,500 tokens in a pool of 40 blocks: held for stores
    assert found.losses == []


def test_the_servers_log_says_what_moved_and_for_whom_it_was_found() -> None:
    found = recorded(lmcache_log, SERVER)
    assert [(row["tokens"],) for row in found.table("span") if row["name"] == "Stored"] == [(1280,)] * 4
    assert [(row["tokens"],) for row in found.table("span") if row["name"] == "Retrieved"] == [(768,)] * 4
    asked = found.table("span", op="lookup")
    assert [row["found_by_tier"] for row in asked] == [{"host": 1280, "unknown": 0}] * 4
    assert [row["request_id"][:12] for row in asked] == [f"cmpl-req-00{number}" for number in range(4, 8)]
    assert {row["process"] for row in found.table("span")} == {"lmcache-server-killed.log/4747"}
    assert found.losses == []


def test_a_cut_anywhere_loses_no_row_before_it() -> None:
    whole = recorded(lmcache_log, SERVER).table("span")
    content = SERVER.read_bytes()
    for part in (3, 2):
        cut = decoded(lmcache_log, content[: len(content) * part // 4]).table("span")
        names = [(row["name"], row["end_ns"]) for row in whole]
        assert [(row["name"], row["end_ns"]) for row in cut] == names[: len(cut)]


def test_a_request_was_preempted_until_the_log_says_that_it_was_resumed() -> None:
    found = recorded(vllm_log, RECORDED / "vllm-preempted.log")
    (row,) = found.table("span", op="queue")
    assert (row["request_id"], row["reason"]) == ("cmpl-req-010-0-b670550e", "preempted")
    assert row["end_ns"] - row["start_ns"] == 35_420_000_000


def test_a_cache_whose_recovery_fails_stays_degraded_though_its_server_answers_again() -> None:
    """The heartbeat sees it 1.3 s before the inquiry that waits for the killed server times out."""
    found = recorded(vllm_log, RECORDED / "vllm-preempted.log")
    healthy, degraded = found.table("span", op="health")
    assert (healthy["reason"], degraded["reason"]) == ("healthy", "degraded")
    (late,) = found.table("span", op="lookup")
    assert late["end_ns"] - degraded["start_ns"] == 1_294_000_000
    again = [row for row in found.table("span") if row["name"].startswith("Failed to re-register")]
    assert len(again) == 4
    assert all(degraded["start_ns"] < row["end_ns"] < degraded["end_ns"] for row in again)


def test_lazy_stores_that_came_too_late_are_stale_and_the_engine_that_died_failed_its_request() -> None:
    found = recorded(vllm_log, RECORDED / "vllm-lazy-died.log")
    stale = [row["request_id"] for row in found.table("span", op="drop", reason="stale")]
    assert stale == ["cmpl-req-000-0-964c6dfb", "cmpl-req-002-0-91362510"]
    (died,) = [row for row in found.table("span") if row["name"] == "engine died"]
    (failed,) = found.table("span", op="request")
    assert (failed["request_id"], failed["status"]) == ("cmpl-req-006-0", "error")
    assert failed["end_ns"] == died["end_ns"]


def test_an_lmcache_inside_the_engine_tells_every_transfer_by_request() -> None:
    found = recorded(lmcache_log, RECORDED / "lmcache-inprocess.log")
    rows = [(row["op"], row["request_id"], row["tokens"], row["outcome"]) for row in found.table("span")]
    assert rows == [
        ("store", "cmpl-a", 1024, "ok"),
        ("load", "cmpl-b", 1024, "ok"),
        ("load", "cmpl-c", 1024, "partial"),
        ("store", "cmpl-d", 2560, "ok"),
        ("load", "cmpl-e", 0, "failed"),
    ]
    assert all(0 < row["end_ns"] - row["start_ns"] < 20_000_000 for row in found.table("span"))
