"""What SGLang's own writers wrote, without an engine (recorded/README.md), is read without a loss."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvtrace.importer import import_files
from kvtrace.importer.formats import decoders, format_of
from kvtrace.run import open_run
from kvtrace.sources import sglang_request_metrics, vllm_kv_events
from kvtrace.sources.stream import open_input
from tests.samples import SAMPLES
from tests.unit.sources.given import recorded

RECORDED = Path(__file__).parent / "recorded"
OWN = {"sglang-request-metrics", "sglang-log"}


@pytest.mark.parametrize("version", ["0.5.18", "0.5.23"])
def test_both_wire_forms_give_the_same_rows(version: str) -> None:
    found = recorded(vllm_kv_events, RECORDED / f"sglang-{version}-kv-events.msgpack")
    rows = found.rows["block"]
    assert (found.losses, found.content) == ([], {"token_ids": 28})
    chain = [(row["key"], row.get("parent_key")) for row in rows[1:5]]
    assert [parent for _, parent in chain[1:]] == [key for key, _ in chain[:-1]]
    told = [(row["event"], row["tier"], row.get("medium_raw"), row.get("tokens")) for row in rows]
    assert told == [
        ("cleared", "gpu", None, None), *[("stored", "gpu", "GPU", 4)] * 4, ("cleared", "gpu", None, None),
        ("stored", "host", "CPU_PINNED", 4), *[("stored", "gpu", "GPU", 4)] * 2,
        *[("removed", "host", "CPU_PINNED", None)] * 2, ("cleared", "gpu", None, None),
    ]  # fmt: skip


def test_the_exporters_file_says_what_each_tier_served() -> None:
    found = recorded(sglang_request_metrics, RECORDED / "sglang-request-metrics.jsonl")
    assert (found.losses, found.notes) == ([], [])
    assert found.content == {"text": 4, "finish_reason.message": 1}
    hits = [(row["request_id"], row["gpu_hit_tokens"]) for row in found.table("span", op="request")]
    assert hits == [("req-0", 0), ("req-1", 448), ("req-2", 128), ("req-3", 64)]
    loads = [(row["request_id"], row["tier_from"], row["tokens"]) for row in found.table("span", op="load")]
    assert loads == [
        ("req-2", "host", 320), ("req-2", "disk", 64), ("req-3", "host", 384), ("req-3", "disk", 384),
    ]  # fmt: skip
    for row, queue in zip(found.table("span", op="request"), found.table("span", op="queue"), strict=True):
        assert row["start_ns"] < queue["start_ns"] < queue["end_ns"] < row["first_token_ns"] < row["end_ns"]


def test_its_spans_are_two_requests_and_what_each_waited_for(tmp_path: Path) -> None:
    run = open_run(import_files([RECORDED / "sglang-spans.binpb"], tmp_path / "run").run)
    rows = run.sql(
        "SELECT request_id, prompt_tokens, reported_cached_tokens, status, user_request_id FROM request "
        "ORDER BY start_ns"
    ).rows()
    assert rows == [("00c0ffee" * 4, 512, 448, "ok", None), ("req_7", 512, 448, "ok", "0x1f")]
    assert run.sql("SELECT request_id FROM queue ORDER BY start_ns").rows() == [
        ("00c0ffee" * 4,), ("req_7",),
    ]  # fmt: skip
    assert run.sql("SELECT count(*) FROM span WHERE request_id NOT IN (FROM (SELECT request_id FROM request))"
                   ).rows() == [(0,)]  # fmt: skip


def test_no_other_recorded_file_looks_like_sglangs() -> None:
    own = {name: module for name, module in decoders().items() if name in OWN}
    assert set(own) == OWN
    for path in (file for place in (RECORDED, SAMPLES) for file in place.rglob("*") if file.is_file()):
        if path.name.startswith("sglang") or path.suffix in {".parquet", ".csv", ".md"}:
            continue
        with open_input(path) as stream:
            head = stream.peek(1 << 16)
        assert not any(module.looks_like(head) for module in own.values()), path.name


def test_each_of_them_is_of_one_format_alone() -> None:
    wanted = {"msgpack": "vllm-kv-events", "jsonl": "sglang-request-metrics", "binpb": "otlp-proto-body"}
    for path in RECORDED.glob("sglang-*"):
        with open_input(path) as stream:
            head = stream.peek(1 << 16)
        assert sum(module.looks_like(head) for module in decoders().values()) == (path.suffix != ".binpb")
        assert format_of(path) == wanted[path.suffix[1:]]
