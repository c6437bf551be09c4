"""Tiny OTLP receivers of the tests' own: keep every request body as the Collector's file exporter would."""

from __future__ import annotations

import gzip
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


@dataclass
class Received:
    """What came in: bodies, the paths and headers of HTTP requests; `url` to send to."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def write(self, path: Path) -> Path:
        """The bodies as length-prefixed frames."""
        path.write_bytes(b"".join(len(body).to_bytes(4, "big") + body for body in self.bodies))
        return path


@contextmanager
def http(*, status: int = 200, delay_seconds: float = 0.0) -> Iterator[Received]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(delay_seconds)
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if status == 200:
                received.bodies.append(body)
            received.paths.append(self.path)
            received.headers.append(dict(self.headers.items()))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Tests print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def grpc_server() -> Iterator[Received]:
    received = Received()

    def export(body: bytes, _context: grpc.ServicerContext) -> bytes:
        received.bodies.append(body)
        return b""

    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    handler = grpc.method_handlers_generic_handler(
        SERVICE, {"Export": grpc.unary_unary_rpc_method_handler(export)}
    )
    server.add_generic_rpc_handlers((handler,))
    received.url = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield received
    finally:
        server.stop(0).wait()
