"""One file with all signals, as OpenTelemetry's Collector writes: spans and metrics are rows."""

from __future__ import annotations

import json
from itertools import permutations
from typing import TYPE_CHECKING

import pytest
from google.protobuf.json_format import MessageToJson
from kvtrace.importer import import_files
from kvtrace.run import open_run
from kvtrace.sources.otlp.sniffing import signal_of
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from tests.unit.collect.collecting import NEAR, loads
from tests.unit.sources.test_otlp_metrics import METRICS, TEXT, framed

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "what somebody wrote"
SPAN = {
    "traceId": f"{1:032x}",
    "spanId": f"{1:016x}",
    "name": "s",
    "startTimeUnixNano": "5",
    "endTimeUnixNano": "9",
}


def logs() -> ExportLogsServiceRequest:
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for number in range(3):
        records.add(time_unix_nano=NEAR + number).body.string_value = SECRET
    return request


PAYLOADS = {"spans": loads(2), "metrics": METRICS, "logs": logs().SerializeToString()}
LINES = {
    "spans": json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]}).encode(),
    "metrics": TEXT,
    "logs": MessageToJson(logs(), indent=None).encode(),
}


@pytest.mark.parametrize("order", list(permutations(PAYLOADS)), ids=" ".join)
@pytest.mark.parametrize("form", ["frames", "lines"])
def test_every_signal_of_a_file_is_read_whatever_comes_first(
    tmp_path: Path, order: tuple[str, ...], form: str
) -> None:
    (tmp_path / "all").write_bytes(
        framed(*(PAYLOADS[name] for name in order))
        if form == "frames"
        else b"\n".join(LINES[name] for name in order) + b"\n"
    )
    report = import_files([tmp_path / "all"], tmp_path / "run")
    run = open_run(report.run)
    spans, rows = run.sql("SELECT (SELECT count(*) FROM span), (SELECT count(*) FROM metric)").rows()[0]
    assert (spans, rows) == (2 if form == "frames" else 1, 3)
    assert run.sql("SELECT * FROM loss").is_empty()
    (entry,) = run.meta["inputs"]
    assert (entry["spans"], entry["other_rows"]) == (spans, rows)
    assert "3 log records came: what they say is content, counted and not kept" in entry["notes"]
    assert run.meta["content_dropped"] == {"otlp.logs": 3}
    assert SECRET.encode() not in b"".join(p.read_bytes() for p in report.run.rglob("*") if p.is_file())


@pytest.mark.parametrize("name", PAYLOADS)
def test_the_signal_of_a_payload_is_told_by_looking(name: str) -> None:
    assert signal_of(PAYLOADS[name], text=False) == name
    assert signal_of(LINES[name], text=True) == name


def test_what_is_nothing_that_we_know_is_the_trace_decoders_to_count(tmp_path: Path) -> None:
    (tmp_path / "all").write_bytes(b"\n".join([LINES["spans"], b'{"resourceProfiles": []}', b"5", b"{"]))
    run = open_run(import_files([tmp_path / "all"], tmp_path / "run").run)
    assert run.sql("SELECT cause, sum(count)::BIGINT FROM loss GROUP BY 1").rows() == [("undecodable", 3)]
