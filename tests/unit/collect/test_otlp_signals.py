"""Metrics and logs over both transports: OpenTelemetry's own exporters as peers, bodies that are neither."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.json_format import MessageToJson
from kvtrace.collect.otlp.signals import LOGS, METRICS
from kvtrace.run import open_run
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import Counter, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from tests.unit.collect.collecting import FREE, NEAR, collector, loads
from tests.unit.collect.test_otlp_grpc import call
from tests.unit.collect.test_otlp_http import BINARY, TEXT, post

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.collect.collecting import Collector

TRANSPORTS = ("grpc", "http")
SECRET = "what somebody wrote"


def started(folder: Path, transport: str, **settings: Any) -> Collector:
    return collector(folder, **{f"otlp_{transport}": FREE}, **settings)


def measuring(collecting: Collector, transport: str, *, delta: bool) -> MeterProvider:
    """OpenTelemetry's metrics with an exporter that sends to the collector."""
    preferred: dict[type, AggregationTemporality] = {Counter: AggregationTemporality.DELTA} if delta else {}
    where = f"http://{collecting.address(f'otlp-{transport}')}"
    exporter = (
        GrpcMetrics(where, insecure=True, preferred_temporality=preferred)
        if transport == "grpc"
        else HttpMetrics(f"{where}/v1/metrics", preferred_temporality=preferred)
    )
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=1e9)
    resource = Resource({"service.name": "engine", "service.instance.id": "engine-1"})
    return MeterProvider([reader], resource, shutdown_on_exit=False)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("delta", [False, True])
def test_what_the_exporter_of_opentelemetry_sends_becomes_rows_of_metrics(
    tmp_path: Path, transport: str, *, delta: bool
) -> None:
    with started(tmp_path, transport) as collecting:
        provider = measuring(collecting, transport, delta=delta)
        counter = provider.get_meter("scope").create_counter("hits", unit="tokens")
        for number in (3, 2):
            counter.add(number, {"tier": "host"})
            assert provider.force_flush()
        provider.shutdown()
    found = collecting.sql(
        "SELECT name, kind, value, process, labels['tier'], labels['otel.unit'], time_ns IS NOT NULL "
        "FROM metric WHERE name = 'hits' AND value > 0 ORDER BY time_ns LIMIT 2"
    )
    assert found.rows() == [
        ("hits", "counter", value, "engine-1", "host", "tokens", True) for value in (3.0, 5.0)
    ]
    assert collecting.lost() == {}
    assert collecting.report is not None
    (source,) = collecting.report.sources
    assert (source.spans, source.other_rows) == (0, collecting.sql("SELECT count(*) FROM metric").item())
    assert collecting.sql("SELECT process, product FROM process").rows() == [("engine-1", "engine")]


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_logs_are_counted_and_nothing_of_them_is_kept(tmp_path: Path, transport: str) -> None:
    with started(tmp_path, transport) as collecting:
        where = f"http://{collecting.address(f'otlp-{transport}')}"
        exporter = GrpcLogs(where, insecure=True) if transport == "grpc" else HttpLogs(f"{where}/v1/logs")
        provider = LoggerProvider(shutdown_on_exit=False)
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
        for _ in range(7):
            provider.get_logger("engine").emit(LogRecord(timestamp=NEAR, body=SECRET))
        provider.shutdown()
    assert collecting.report is not None
    (source,) = collecting.report.sources
    assert (source.spans, source.other_rows, source.lost) == (0, 0, {})
    assert source.notes == ("7 log records came: what they say is content, counted and not kept",)
    assert open_run(collecting.settings.out).meta["content_dropped"] == {"otlp.logs": 7}
    assert SECRET.encode() not in b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


def points(*times: int, content: str = "") -> bytes:
    """An export of a gauge at these times."""
    request = ExportMetricsServiceRequest()
    gauge = request.resource_metrics.add().scope_metrics.add().metrics.add(name="usage").gauge
    for time in times:
        point = gauge.data_points.add(time_unix_nano=time, as_double=0.5)
        if content:
            point.attributes.add(key="gen_ai.prompt").value.string_value = content
    return request.SerializeToString()


def as_json(body: bytes) -> bytes:
    return MessageToJson(ExportMetricsServiceRequest.FromString(body)).encode()


def test_points_that_cannot_be_are_a_partial_success_and_a_loss(tmp_path: Path) -> None:
    body = points(NEAR, 0, 2**63)
    with collector(tmp_path, otlp_grpc=FREE, otlp_http=FREE) as collecting:
        said = ExportMetricsServiceResponse.FromString(
            call(collecting.address("otlp-grpc"), body, METRICS.call)
        )
        where = collecting.address("otlp-http")
        _code, _headers, text = post(where, as_json(body), TEXT, path=METRICS.path)
    assert said.partial_success.rejected_data_points == 2
    assert "outside of 64-bit nanoseconds" in said.partial_success.error_message
    assert json.loads(text)["partialSuccess"]["rejectedDataPoints"] == "2"
    assert collecting.lost() == {"impossible_time": 4}
    assert collecting.sql("SELECT time_ns, value FROM metric").rows() == [(NEAR, 0.5)] * 2


def test_content_in_labels_is_dropped_in_both_encodings(tmp_path: Path) -> None:
    body = points(NEAR, content=SECRET)
    with collector(tmp_path, otlp_http=FREE) as collecting:
        where = collecting.address("otlp-http")
        assert post(where, body, path=METRICS.path)[0] == 200
        assert post(where, as_json(body), TEXT, path=METRICS.path)[0] == 200
    assert open_run(collecting.settings.out).meta["content_dropped"] == {"gen_ai.prompt": 2}
    assert SECRET.encode() not in b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())


NEITHER = {
    "cut": (b"\x0a\xff\xff\xff", BINARY),
    "no json": (b"{", TEXT),
    "empty": (b"", TEXT),
    "of another shape": (b'{"resourceMetrics": 5, "resourceLogs": 5}', TEXT),
    "nested": (b"[" * 200_000, TEXT),
    "many empty objects": (b'{"resourceMetrics": [' + b"{}," * 400_000 + b"{}]}", TEXT),
    "many empty messages": (b"\x0a\x02\x12\x00" * 400_000, BINARY),
}


@pytest.mark.parametrize("path", [METRICS.path, LOGS.path])
@pytest.mark.parametrize("what", NEITHER)
def test_what_is_neither_is_refused_and_counted(tmp_path: Path, path: str, what: str) -> None:
    body, headers = NEITHER[what]
    with collector(tmp_path, otlp_http=FREE) as collecting:
        where = collecting.address("otlp-http")
        assert post(where, body, headers, path=path)[0] == 400
        assert post(where, loads(2))[0] == 200
    assert collecting.lost() == {"undecodable": 1}


def test_a_histogram_of_many_small_counts_is_no_body_of_empty_messages(tmp_path: Path) -> None:
    """10 as 64 bits is the two bytes of an empty message and six zeros."""
    request = ExportMetricsServiceRequest()
    histogram = request.resource_metrics.add().scope_metrics.add().metrics.add(name="wait").histogram
    for number in range(700):
        point = histogram.data_points.add(time_unix_nano=NEAR + number, count=2_000, sum=1.0)
        point.explicit_bounds.extend(map(float, range(199)))
        point.bucket_counts.extend([10] * 200)
    body = request.SerializeToString()
    assert len(body) > 1 << 20
    with collector(tmp_path, otlp_http=FREE) as collecting:
        assert post(collecting.address("otlp-http"), body, path=METRICS.path)[0] == 200
    assert collecting.lost() == {}
    assert collecting.sql("SELECT count(*) FROM metric").item() == 700 * 202
