"""OTLP over gRPC: OpenTelemetry's own exporter as the peer, and peers that mean no good."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from kvtrace.collect.addresses import Address
from kvtrace.collect.intake import Intake
from kvtrace.collect.otlp import grpc_server
from kvtrace.collect.otlp.door import Door
from kvtrace.collect.otlp.grpc_server import GrpcServer
from kvtrace.collect.otlp.received import Otlp
from kvtrace.collect.otlp.signals import TRACES
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from tests.unit.collect.collecting import FREE, NEAR, collector, export, loads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def call(address: str, body: bytes, method: str = TRACES.call, **options: object) -> bytes:
    """One unary call with raw bytes."""
    with grpc.insecure_channel(address) as channel:
        answer: bytes = channel.unary_unary(method)(body, timeout=20, **options)
        return answer


def refusal(address: str, body: bytes, method: str = TRACES.call, **options: object) -> grpc.RpcError:
    """How a call is refused."""
    with pytest.raises(grpc.RpcError) as caught:
        call(address, body, method, **options)
    return caught.value


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_what_the_exporter_of_opentelemetry_sends_becomes_rows_without_content(
    tmp_path: Path, compression: grpc.Compression
) -> None:
    with collector(tmp_path, otlp_grpc=FREE) as collecting:
        exporter = OTLPSpanExporter(
            f"http://{collecting.address('otlp-grpc')}", insecure=True, compression=compression
        )
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        tracer = provider.get_tracer("test")
        for number in range(1500):
            said = {"kvtrace.op": "load", "kvtrace.request.id": f"r{number}", "gen_ai.prompt": "the secret"}
            tracer.start_span("load", attributes=said).end()
        provider.shutdown()
    rows = collecting.sql("SELECT op, count(*) AS n, count(DISTINCT request_id) AS r FROM span GROUP BY 1")
    assert rows.rows() == [("load", 1500, 1500)]
    assert collecting.lost() == {}
    assert collecting.sql("SELECT count(*) FROM span WHERE attributes::VARCHAR LIKE '%secret%'").item() == 0
    assert b"secret" not in b"".join(p.read_bytes() for p in tmp_path.rglob("*") if p.is_file())
    assert collecting.report is not None
    assert [(s.spans, s.lost) for s in collecting.report.sources] == [(1500, {})]


def test_spans_that_cannot_be_are_a_partial_success_and_a_loss(tmp_path: Path) -> None:
    with collector(tmp_path, otlp_grpc=FREE) as collecting:
        body = export((NEAR, NEAR + 5), (NEAR, NEAR - 5), (0, NEAR), (NEAR, 0))
        answer = ExportTraceServiceResponse.FromString(call(collecting.address("otlp-grpc"), body))
    assert answer.partial_success.rejected_spans == 2
    assert "end before they start" in answer.partial_success.error_message
    assert collecting.sql("SELECT request_id FROM span ORDER BY 1")["request_id"].to_list() == ["r1", "r4"]
    assert collecting.lost() == {"negative_duration": 1, "impossible_time": 1}


def test_what_is_no_otlp_is_refused_and_counted(tmp_path: Path) -> None:
    with collector(tmp_path, otlp_grpc=FREE) as collecting:
        where = collecting.address("otlp-grpc")
        assert refusal(where, b"\x0a\xff\xff\xff\xff\xff").code() is grpc.StatusCode.INVALID_ARGUMENT
        assert call(where, b"") == b""
    assert collecting.lost() == {"undecodable": 1}


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_longer_than_the_limit_is_refused_and_counted(
    tmp_path: Path, compression: grpc.Compression
) -> None:
    with collector(tmp_path, otlp_grpc=FREE, max_message_bytes=1 << 20) as collecting:
        where = collecting.address("otlp-grpc")
        long = b"\0" * (64 << 20)
        assert len(gzip.compress(long)) < 1 << 20
        assert refusal(where, long, compression=compression).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        call(where, loads(3))
    assert collecting.sql("SELECT count(*) FROM span").item() == 3
    assert collecting.lost() == {"dropped": 1}


def test_what_is_not_taken_is_said_to_be_unimplemented(tmp_path: Path) -> None:
    with collector(tmp_path, otlp_grpc=FREE) as collecting:
        method = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
        refused = refusal(collecting.address("otlp-grpc"), b"", method)
    assert refused.code() is grpc.StatusCode.UNIMPLEMENTED
    assert collecting.report is not None
    assert collecting.report.sources[0].notes == ("nothing came: no exporter sent anything",)


def test_connections_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "MAX_CONNECTIONS", 2)
    with collector(tmp_path, otlp_grpc=FREE) as collecting:
        where = collecting.address("otlp-grpc")
        apart = (("grpc.use_local_subchannel_pool", 1),)  # else all channels of a process share a connection
        held = [grpc.insecure_channel(where, apart) for _ in range(2)]
        for channel in held:
            channel.unary_unary(TRACES.call)(loads(1), timeout=20)
        with grpc.insecure_channel(where, apart) as third, pytest.raises(grpc.RpcError) as caught:
            third.unary_unary(TRACES.call)(loads(1), timeout=5)
        assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
        for channel in held:
            channel.close()
    assert collecting.sql("SELECT count(*) FROM span").item() >= 1


@pytest.fixture
def narrow() -> Iterator[tuple[GrpcServer, Door]]:
    """A server whose queue has room for one small export, and nobody who empties it."""
    door = Door(Otlp("otlp-grpc", "otlp-grpc"), Intake(limit_bytes=2_000))
    server = GrpcServer(Address("127.0.0.1", 0), door, secret=None, max_message_bytes=1 << 20)
    yield server, door
    server.stop()


def test_a_full_queue_says_when_to_come_again_and_counts_what_does_not(
    narrow: tuple[GrpcServer, Door],
) -> None:
    server, door = narrow
    where = str(server.address)
    call(where, loads(1))
    refused = refusal(where, loads(40))
    assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    details = dict(refused.trailing_metadata())["grpc-status-details-bin"]
    assert b"google.rpc.RetryInfo" in details
    retry = AnyMessage.FromString(details[details.index(b"\x0a\x28type") :])
    assert retry.value == b"\x0a\x02\x08\x01"  # retry_delay { seconds: 1 }
    refusal(where, loads(40))  # the same again: refused twice, missing once
    assert [(loss.cause, loss.count) for loss in door.losses()] == [("dropped", 40)]
    door.intake.take()
    call(where, loads(40))
    assert list(door.losses()) == []


def test_a_server_that_stops_is_unavailable_not_full(narrow: tuple[GrpcServer, Door]) -> None:
    server, door = narrow
    door.intake.close()
    server._calls.closing = True
    assert refusal(str(server.address), loads(1)).code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("shown", [None, "Bearer wrong", "Basic right", "right"])
def test_without_the_token_nothing_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str | None
) -> None:
    monkeypatch.setenv("KVTRACE_COLLECT_TOKEN", "right")
    with collector(tmp_path, otlp_grpc=FREE) as collecting:
        where = collecting.address("otlp-grpc")
        metadata = (("authorization", shown),) if shown else ()
        assert refusal(where, loads(2), metadata=metadata).code() is grpc.StatusCode.UNAUTHENTICATED
        call(where, loads(1), metadata=(("authorization", "Bearer right"),))
    assert collecting.sql("SELECT count(*) FROM span").item() == 1
    assert collecting.lost() == {}
