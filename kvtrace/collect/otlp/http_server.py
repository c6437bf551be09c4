"""OTLP over HTTP: POST /v1/traces, /v1/metrics or /v1/logs, protobuf or JSON, gzip or plain, also in chunks.

HTTP itself is uvicorn's. Everything that a client can stretch has an end: connections, the head of a request
(HEAD_SECONDS), its body (BODY_SECONDS), its length before and after decompression, and all bodies on their
way in together.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvtrace.collect import addresses
from kvtrace.collect.otlp.requests import Requests

if TYPE_CHECKING:
    from kvtrace.collect.addresses import Address
    from kvtrace.collect.otlp.door import Door

MAX_CONNECTIONS = 128
HEAD_SECONDS = 10.0
HEAD_BYTES = 16 << 10
CLOSING_SECONDS = 2


class HttpServer:
    """Serves in a thread of its own until it is stopped."""

    def __init__(self, where: Address, door: Door, *, secret: str | None, max_message_bytes: int) -> None:
        """Bind.

        Raises:
            UsageError: the address cannot be had.
        """
        self._socket = addresses.bound(where, "--otlp-http")
        self.address = where._replace(port=self._socket.getsockname()[1])
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # who sends nonsense is counted by us
        self.requests = Requests(door, secret, max_message_bytes)
        config = Config(
            self.requests.answer, interface="asgi3", http=_Bounded, ws="none", lifespan="off", loop="asyncio",
            log_config=None, log_level="critical", access_log=False, server_header=False, proxy_headers=False,
            timeout_keep_alive=60, timeout_graceful_shutdown=CLOSING_SECONDS,
            h11_max_incomplete_event_size=HEAD_BYTES,
        )  # fmt: skip
        self._server = Server(config)
        self._thread = threading.Thread(target=self._serve, name="kvtrace-http", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def stop(self) -> None:
        """Answer what is under way, for two seconds at most, and listen no more."""
        self.requests.closing = True
        self._server.should_exit = True
        self._thread.join()


class _Bounded(H11Protocol):
    """One connection: one too many is closed, and so is one whose request does not get on."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._expect()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        waiting = self.cycle is None or self.cycle.response_complete
        if not waiting or self.timeout_keep_alive_task is not None:
            self._calm()
        elif self._deadline is None:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._calm()
        super().connection_lost(exc)

    def _expect(self) -> None:
        """The head of a request is due."""
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._late)

    def _calm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        self.transport.abort()
