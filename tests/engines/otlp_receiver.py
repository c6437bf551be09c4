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
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable

FILES = {
    "opentelemetry.proto.collector.trace.v1.TraceService": "otlp.binpb",
    "opentelemetry.proto.collector.metrics.v1.MetricsService": "otlp-metrics.binpb",
}
EMPTY_RESPONSE = b""  # of both services: nothing was refused


def keeper(output: Path) -> Callable[[bytes, grpc.ServicerContext], bytes]:
    """What answers one service's Export calls: appends the body to `output`."""
    lock = threading.Lock()

    def export(body: bytes, _context: grpc.ServicerContext) -> bytes:
        with lock, output.open("ab") as file:
            file.write(len(body).to_bytes(4, "big") + body)
        return EMPTY_RESPONSE

    return export


def main() -> None:
    """Prints the port it chose on one line, then serves until SIGTERM."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    # Without so_reuseport=0 two receivers can share one port and each sees half of the spans.
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
    for service, name in FILES.items():
        export = grpc.unary_unary_rpc_method_handler(keeper(Path(sys.argv[1]) / name))
        handler = grpc.method_handlers_generic_handler(service, {"Export": export})
        server.add_generic_rpc_handlers((handler,))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    stopped.wait()
    server.stop(1).wait()


if __name__ == "__main__":
    main()
