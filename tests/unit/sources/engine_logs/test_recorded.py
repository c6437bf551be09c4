"""What really written logs give: vLLM and LMCache's server while the server is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvtrace.importer.formats import decoders, format_of
from kvtrace.sources import lmcache_log, vllm_log
from tests.unit.sources.engine_logs.logged import spans
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
    assert spans(found, "tokens", op="store") == [(1280,)] * 4
    assert spans(found, "tokens", op="load") == [(768,)] * 4
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
