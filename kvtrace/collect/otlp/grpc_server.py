"""OTLP over gRPC: Export of every signal with raw bodies: nothing is decoded before it is looked at.

gRPC itself bounds a message, also when it decompresses one; connections, streams and calls are bounded here.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from kvtrace.collect import addresses
from kvtrace.collect.otlp import answers
from kvtrace.collect.otlp.door import UNFINISHED
from kvtrace.collect.otlp.signals import BY_CALL

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # a port that is taken is said by us, in one sentence
import grpc  # after the variable, which it reads

if TYPE_CHECKING:
    from kvtrace.collect.addresses import Address
    from kvtrace.collect.otlp.door import Door
    from kvtrace.collect.otlp.signals import Signal

MAX_CONNECTIONS = 128
MAX_CALLS = 16
"""Exports on their way in at once, of all connections: each may be as long as a message."""
THREADS = 4
IDLE_MS = 300_000


class GrpcServer:
    """Serves until it is stopped."""

    def __init__(self, where: Address, door: Door, *, secret: str | None, max_message_bytes: int) -> None:
        """Bind.

        Raises:
            UsageError: the address cannot be had.
        """
        addresses.bound(where, "--otlp-grpc").close()  # gRPC's own words for a taken port are several lines
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_concurrent_streams", MAX_CALLS),
            ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
            ("grpc.max_connection_idle_ms", IDLE_MS),
        ]
        self._calls = _Calls(door, secret)
        self._server = grpc.server(
            ThreadPoolExecutor(THREADS, "kvtrace-grpc"), [self._calls],
            options=options, maximum_concurrent_rpcs=MAX_CALLS, compression=grpc.Compression.NoCompression,
        )  # fmt: skip
        try:
            port = self._server.add_insecure_port(str(where))
        except RuntimeError as error:
            raise addresses.taken(where, "--otlp-grpc", "gRPC cannot bind it") from error
        self.address = where._replace(port=port)
        self._server.start()

    def stop(self) -> None:
        """Answer what is under way, for two seconds at most, and listen no more."""
        self._calls.closing = True
        self._server.stop(2).wait()
        self._calls.settle()


class _Calls(grpc.GenericRpcHandler):  # type: ignore[misc] # grpc ships no types
    """Which call is answered how; counts those that begin and never become a message."""

    def __init__(self, door: Door, secret: str | None) -> None:
        self._door = door
        self._secret = secret
        self.closing = False
        self._open = 0
        self._lock = threading.Lock()

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """How a call is answered, before its message is read; None: nothing of ours."""
        signal = BY_CALL.get(call.method)
        if signal is None:
            return None
        shown = {key: value for key, value in call.invocation_metadata or () if key == "authorization"}
        if not addresses.permitted(shown.get("authorization"), self._secret):
            # taken for a stream of messages, so that none is read from a stranger
            return grpc.stream_unary_rpc_method_handler(_stranger)
        with self._lock:
            self._open += 1
        return grpc.unary_unary_rpc_method_handler(partial(self._export, signal))

    def _export(self, signal: Signal, body: bytes, context: grpc.ServicerContext) -> bytes:
        with self._lock:
            self._open -= 1
        answer = self._door.admit(body, text=False, signal=signal)
        if answer.judged.mistake is not None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, answer.judged.mistake)
        if not answer.taken:
            if self.closing:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the collector is stopping")
            context.set_trailing_metadata((("grpc-status-details-bin", answers.full()),))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full; send it again")
        return answers.success(answer)

    def settle(self) -> None:
        """Calls that began and brought no message are counted."""
        if self._open > 0:
            self._door.lose("dropped", UNFINISHED, self._open)
            self._open = 0


def _stranger(_messages: object, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "send the collector's token: authorization: Bearer TOKEN")
    raise AssertionError  # abort raises
