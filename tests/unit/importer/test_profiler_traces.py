"""Traces of profilers beside a client's notes: a copy is a transfer of the request that its scope names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from kvtrace import open_run
from kvtrace.errors import KvtraceError
from kvtrace.importer import import_files
from tests.unit.sources.profilers import BASE_NS, Export, annotation, call, copy, event, trace

if TYPE_CHECKING:
    from pathlib import Path

HOP = "SELECT request_id, op, tier_from, tier_to, bytes, submit_ns FROM transfer ORDER BY start_ns"
EVENTS = (
    annotation("kvtrace:cmpl-7:load", 1000, 9000), call(1500, 41), copy(2000, 4000, 41, bytes=64),
    copy(20_000, 21_000, 42, "DtoH", bytes=32), copy(20_000, 21_000, 42, "DtoH", bytes=32),
)  # fmt: skip
NOTE = {
    "request_id": "req-7", "response_id": "cmpl-7", "status": 200, "started_ns": BASE_NS + 500,
    "first_token_ns": BASE_NS + 50_000, "ended_ns": BASE_NS + 90_000,
}  # fmt: skip


def test_copies_are_transfers_of_the_requests_that_their_scopes_name(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "trace.json").write_bytes(trace(*EVENTS))
    (folder / "client.jsonl").write_text(json.dumps(NOTE) + "\n")
    Export(folder / "report.sqlite").range("request:other", 0, 90).call(10, 1).copy(20, 30, 1).done()
    report = import_files([folder], tmp_path / "run")
    formats = {each.name: each.format for each in report.inputs}
    assert (formats["trace.json"], formats["report.sqlite"]) == ("kineto", "nsight-sqlite")
    run = open_run(tmp_path / "run")
    assert run.sql(HOP).rows() == [
        ("cmpl-7", "load", "host", "gpu", 64, BASE_NS + 1500),
        (None, "store", "gpu", "host", 32, None), (None, "store", "gpu", "host", 32, None),
        ("other", "load", "host", "gpu", 4096, run.sql("SELECT max(submit_ns) FROM span").item()),
    ]  # fmt: skip
    assert run.sql("SELECT count(*) FROM request WHERE request_id = 'cmpl-7'").item() == 1


def test_a_trace_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        (tmp_path / name).write_bytes(trace(*EVENTS))
    import_files([tmp_path / "one.json", tmp_path / "two.json"], tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert run.sql("SELECT count(*) FROM transfer").item() == 3
    assert run.sql("SELECT sum(count)::BIGINT FROM loss WHERE cause = 'duplicate'").item() == 4


def test_a_trace_without_copies_and_ranges_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(trace(event("kernel", "k", 1, 2)))
    with pytest.raises(KvtraceError, match=r"no record could be read from trace\.json"):
        import_files([path], tmp_path / "run")
