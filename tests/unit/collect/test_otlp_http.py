"""OTLP over HTTP: OpenTelemetry's own exporter, JSON as browsers and JavaScript send it, and bad peers."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest
from google.protobuf.json_format import MessageToDict
from kvtrace.collect.addresses import Address
from kvtrace.collect.intake import Intake
from kvtrace.collect.otlp import http_server, requests
from kvtrace.collect.otlp.door import Door
from kvtrace.collect.otlp.http_server import HttpServer
from kvtrace.collect.otlp.received import Otlp
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from tests.unit.collect.collecting import FREE, NEAR, collector, export, loads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

BINARY = {"Content-Type": "application/x-protobuf"}
TEXT = {"Content-Type": "application/json"}
Reply = tuple[int, dict[str, str], bytes]


def post(
    address: str,
    body: bytes | Iterable[bytes],
    headers: dict[str, str] = BINARY,
    *,
    path: str = "/v1/traces",
    method: str = "POST",
) -> Reply:
    """One request; a body in parts goes out in chunks, without a length."""
    host, port = address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request(method, path, body, headers, encode_chunked=not isinstance(body, bytes))
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def as_json(body: bytes) -> bytes:
    """An export as OTLP's JSON writes it: ids in hexadecimal."""
    said = MessageToDict(ExportTraceServiceRequest.FromString(body))
    for number, span in enumerate(said["resourceSpans"][0]["scopeSpans"][0]["spans"], 1):
        span["traceId"], span["spanId"] = f"{1:032x}", f"{number:016x}"
    return json.dumps(said).encode()


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_what_the_exporter_of_opentelemetry_sends_becomes_rows(
    tmp_path: Path, compression: Compression
) -> None:
    with collector(tmp_path, otlp_http=FREE) as collecting:
        url = f"http://{collecting.address('otlp-http')}/v1/traces"
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url, compression=compression)))
        tracer = provider.get_tracer("test")
        for number in range(1200):
            said = {"kvtrace.op": "load", "kvtrace.request.id": f"r{number}"}
            tracer.start_span("load", attributes=said).end()
        provider.shutdown()
    assert collecting.sql("SELECT count(*), count(DISTINCT request_id) FROM span").rows() == [(1200, 1200)]
    assert collecting.lost() == {}


def test_json_comes_whole_and_in_chunks_and_is_answered_in_json(tmp_path: Path) -> None:
    body = as_json(export((NEAR, NEAR + 5), (NEAR, NEAR + 7), content="the secret"))
    with collector(tmp_path, otlp_http=FREE) as collecting:
        where = collecting.address("otlp-http")
        plain = post(where, body, TEXT)
        chunked = post(where, [body[:40], body[40:]], {"Content-Type": "application/json; charset=utf-8"})
    assert (plain[0], plain[1]["content-type"], plain[2]) == (200, "application/json", b"{}")
    assert (chunked[0], chunked[2]) == (200, b"{}")
    assert collecting.sql("SELECT request_id, end_ns - start_ns AS ns FROM span ORDER BY 1").rows() == [
        ("r1", 5),
        ("r2", 7),
    ]
    assert collecting.lost() == {"duplicate": 2}
    assert collecting.sql("SELECT count(*) FROM span WHERE attributes::VARCHAR LIKE '%secret%'").item() == 0


def test_spans_that_cannot_be_are_a_partial_success_in_both_forms(tmp_path: Path) -> None:
    body = export((NEAR, NEAR + 5), (NEAR, NEAR - 5))
    with collector(tmp_path, otlp_http=FREE) as collecting:
        where = collecting.address("otlp-http")
        binary, text = post(where, body), post(where, as_json(body), TEXT)
    found = ExportTraceServiceResponse.FromString(binary[2])
    assert (binary[0], found.partial_success.rejected_spans) == (200, 1)
    said = json.loads(text[2])["partialSuccess"]
    assert (text[0], said["rejectedSpans"]) == (200, "1")
    assert "end before they start" in said["errorMessage"]


BOMB = gzip.compress(b"\0" * (64 << 20))
GZIP = {"Content-Encoding": "gzip"}


@pytest.mark.parametrize(
    ("body", "headers", "code", "lost"),
    [
        (b"\x0a\xff\xff\xff\xff\xff", BINARY, 400, {"undecodable": 1}),
        (b'{"resourceSpans": 5}', TEXT, 400, {"undecodable": 1}),
        (b"", TEXT, 400, {"undecodable": 1}),
        (b"no gzip", BINARY | GZIP, 400, {"undecodable": 1}),
        (gzip.compress(loads(1))[:-4], BINARY | GZIP, 400, {"undecodable": 1}),
        (BOMB, BINARY | GZIP, 413, {"dropped": 1}),
        (b"\0" * (2 << 20), BINARY, 413, {"dropped": 1}),
        ([b"\0" * (600 << 10)] * 2, BINARY, 413, {"dropped": 1}),
        (loads(1), {"Content-Type": "text/plain"}, 415, {}),
        (loads(1), BINARY | {"Content-Encoding": "br"}, 415, {}),
    ],
)
def test_what_cannot_be_taken_is_refused_in_the_words_of_otlp_and_counted(
    tmp_path: Path, body: bytes | list[bytes], headers: dict[str, str], code: int, lost: dict[str, int]
) -> None:
    with collector(tmp_path, otlp_http=FREE, max_message_bytes=1 << 20) as collecting:
        where = collecting.address("otlp-http")
        refused = post(where, body, headers)
        assert post(where, loads(2))[0] == 200
    assert refused[0] == code
    is_text = headers is TEXT
    assert refused[1]["content-type"] == ("application/json" if is_text else "application/x-protobuf")
    assert (json.loads(refused[2])["message"] if is_text else refused[2][2:].decode()) != ""
    assert collecting.lost() == lost
    assert collecting.sql("SELECT count(*) FROM span").item() == 2


@pytest.mark.parametrize(
    ("path", "method", "code"),
    [("/v1/profiles", "POST", 404), ("/", "POST", 404), ("/v1/traces", "GET", 405), ("/v1/logs", "GET", 405)],
)
def test_a_signal_has_one_place_and_one_method(tmp_path: Path, path: str, method: str, code: int) -> None:
    with collector(tmp_path, otlp_http=FREE) as collecting:
        assert post(collecting.address("otlp-http"), b"", path=path, method=method)[0] == code


@pytest.mark.parametrize(
    "shown", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer r\xefght"}]
)
def test_without_the_token_nothing_is_taken(tmp_path: Path, shown: dict[str, str]) -> None:
    (tmp_path / "token").write_text("right\n")
    with collector(tmp_path, otlp_http=FREE, token_file=tmp_path / "token") as collecting:
        where = collecting.address("otlp-http")
        refused = post(where, loads(2), BINARY | shown)
        assert post(where, loads(1), BINARY | {"Authorization": "bearer right"})[0] == 200
    assert (refused[0], refused[1]["www-authenticate"]) == (401, "Bearer")
    assert collecting.sql("SELECT count(*) FROM span").item() == 1


@pytest.fixture
def narrow() -> Iterator[tuple[HttpServer, Door]]:
    """A server whose queue has room for one small export, and nobody who empties it."""
    door = Door(Otlp("otlp-http", "otlp-http"), Intake(limit_bytes=2_000))
    server = HttpServer(Address("127.0.0.1", 0), door, secret=None, max_message_bytes=1 << 20)
    yield server, door
    server.stop()


def test_a_full_queue_says_when_to_come_again_and_counts_what_does_not(
    narrow: tuple[HttpServer, Door],
) -> None:
    server, door = narrow
    where = str(server.address)
    assert post(where, loads(1))[0] == 200
    refused = post(where, loads(40))
    assert (refused[0], refused[1]["retry-after"]) == (429, "1")
    assert [(loss.cause, loss.count) for loss in door.losses()] == [("dropped", 40)]
    door.intake.take()
    assert post(where, loads(40))[0] == 200
    assert list(door.losses()) == []
    server.requests.closing = True
    door.intake.close()
    stopping = post(where, loads(1))
    assert (stopping[0], stopping[1]["retry-after"]) == (503, "1")


def test_bodies_on_their_way_in_have_a_bound_together(
    narrow: tuple[HttpServer, Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _door = narrow
    monkeypatch.setattr(requests, "RECEIVING_BYTES", 1_000)
    assert post(str(server.address), loads(40))[0] == 429
    assert server.requests.receiving_bytes == 0
    assert post(str(server.address), loads(1))[0] == 200


HEAD = (
    b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
    b"Content-Length: 100\r\n\r\n"
)


def over(connection: socket.socket) -> bool:
    """Whether the other side ended a connection, gently or not."""
    connection.settimeout(10)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_who_never_ends_a_request_is_cut_off_and_disturbs_nobody(
    narrow: tuple[HttpServer, Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, door = narrow
    monkeypatch.setattr(http_server, "HEAD_SECONDS", 0.5)
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.5)
    with socket.create_connection(server.address) as silent, socket.create_connection(server.address) as slow:
        dripping = threading.Thread(target=_drip, args=(slow,))
        dripping.start()
        with socket.create_connection(server.address) as stuck:
            stuck.sendall(HEAD + b"\0" * 50)
            assert post(str(server.address), loads(1))[0] == 200
            assert stuck.recv(4096).startswith(b"HTTP/1.1 408")
        assert over(silent)
        assert over(slow)
        dripping.join()
    assert [(loss.cause, loss.count) for loss in door.losses()] == [("dropped", 1)]


def _drip(connection: socket.socket) -> None:
    """Send the head of a request a byte at a time."""
    try:
        for byte in HEAD:
            connection.sendall(bytes([byte]))
            time.sleep(0.05)
    except OSError:
        return


def test_an_exporter_that_dies_in_the_middle_of_an_export_is_a_loss(tmp_path: Path) -> None:
    with collector(tmp_path, otlp_http=FREE) as collecting:
        host, port = collecting.address("otlp-http").split(":")
        assert post(f"{host}:{port}", loads(5))[0] == 200
        with socket.create_connection((host, int(port))) as dying:
            dying.sendall(HEAD + b"\0" * 50)
        time.sleep(0.3)
    assert collecting.sql("SELECT count(*) FROM span").item() == 5
    assert collecting.lost() == {"dropped": 1}


def test_who_still_writes_when_it_is_too_long_already_reads_why(tmp_path: Path) -> None:
    """Cut off in the middle he would see a broken pipe, and try the same again."""
    chunk = b"%x\r\n" % (1 << 20) + b"\0" * (1 << 20) + b"\r\n"
    head = b"POST /v1/traces HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"
    with collector(tmp_path, otlp_http=FREE, max_message_bytes=1 << 20) as collecting:
        host, port = collecting.address("otlp-http").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as writing:
            writing.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + chunk)
            for rest in (chunk, b"0\r\n\r\n"):
                time.sleep(0.3)
                writing.sendall(rest)
            assert writing.recv(1 << 16).startswith(b"HTTP/1.1 413 ")
    assert collecting.lost() == {"dropped": 1}


def test_connections_have_a_bound(narrow: tuple[HttpServer, Door], monkeypatch: pytest.MonkeyPatch) -> None:
    server, _door = narrow
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 3)
    held = [socket.create_connection(server.address) for _ in range(3)]
    with socket.create_connection(server.address) as fourth:
        assert over(fourth)
    for connection in held:
        connection.close()
