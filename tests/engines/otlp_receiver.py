"""Run by the engines' python: takes OTLP/gRPC and keeps every request body as it came.

Written as the OpenTelemetry Collector's file exporter does: 4 bytes of length, big endian, then the
body. A file is opened anew for every body, so whoever renames it starts the next one.
"""

from __future__ import annotations

import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

FILES = {
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": "otlp.binpb",
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": "otlp-metrics.binpb",
}
EMPTY_RESPONSE = b""  # of both services: nothing was refused


class Keep(grpc.GenericRpcHandler):
    """One unary call for every path in FILES, bytes in and bytes out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        name = FILES.get(call.method)
        if name is None:
            return None

        def export(body: bytes, _context: grpc.ServicerContext) -> bytes:
            with self._lock, (self._folder / name).open("ab") as output:
                output.write(len(body).to_bytes(4, "big") + body)
            return EMPTY_RESPONSE

        return grpc.unary_unary_rpc_method_handler(export)


def main() -> None:
    """Prints the port it chose on one line, then serves until SIGTERM."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    # Without so_reuseport=0 two receivers can share one port and each sees half of the spans.
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((Keep(Path(sys.argv[1])),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    stopped.wait()
    server.stop(1).wait()


if __name__ == "__main__":
    main()
