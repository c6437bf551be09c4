"""One HTTP request of an exporter: read within limits, answered as OTLP says (an ASGI application)."""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.collect import addresses
from kvtrace.collect.otlp import answers
from kvtrace.collect.otlp.door import TOO_LONG, UNFINISHED
from kvtrace.collect.otlp.signals import BY_PATH

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kvtrace.collect.otlp.door import Door

    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

TEXT, BINARY = "application/json", "application/x-protobuf"
BODY_SECONDS = 30.0
RECEIVING_BYTES = 64 << 20
"""Bodies on their way in, of all connections together."""
DISCARD_SECONDS = 2.0
DISCARDED_MESSAGES = 4
"""So long, and so many of the longest exports, a body that is too long is let come in before its answer."""
_RETRY = (b"retry-after", str(answers.RETRY_SECONDS).encode())


class RefusedError(Exception):
    """The request is answered with a status, and its body is not taken."""

    def __init__(
        self, code: int, words: str, *headers: tuple[bytes, bytes], still_coming: bool = False
    ) -> None:
        super().__init__(words)
        self.code = code
        self.headers = headers
        self.still_coming = still_coming


@dataclass
class Requests:
    """Answers requests, several at a time in one thread."""

    door: Door
    secret: str | None
    max_message_bytes: int
    closing: bool = False
    receiving_bytes: int = 0

    async def answer(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """One request from its head to its answer."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        is_text = _kind(headers) == TEXT
        try:
            self._welcome(scope, headers)
            body = await self._body(receive, headers)
            said = self._admit(body, scope["path"], is_text=is_text)
            await _reply(send, 200, said, is_text=is_text)
        except RefusedError as refused:
            if refused.still_coming and "expect" not in headers:
                await self._discard(receive)
            said = answers.status(str(refused), text=is_text)
            await _reply(send, refused.code, said, *refused.headers, is_text=is_text)

    def _welcome(self, scope: dict[str, Any], headers: dict[str, str]) -> None:
        """What can be said before the body is read."""
        if scope["path"] not in BY_PATH:
            raise RefusedError(404, f"only {', '.join(BY_PATH)} are here")
        if scope["method"] != "POST":
            raise RefusedError(405, "exports are POSTed", (b"allow", b"POST"))
        if not addresses.permitted(headers.get("authorization"), self.secret):
            raise RefusedError(401, "send the collector's token", (b"www-authenticate", b"Bearer"))
        if _kind(headers) not in (TEXT, BINARY):
            raise RefusedError(415, f"send {BINARY} or {TEXT}")
        if headers.get("content-encoding", "identity").lower() not in ("identity", "gzip"):
            raise RefusedError(415, "send it as it is, or with gzip")
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.max_message_bytes:
            self._too_long(still_coming=True)

    async def _body(self, receive: Receive, headers: dict[str, str]) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        self.door.lose("dropped", UNFINISHED)
                        raise RefusedError(400, "the request did not come whole")
                    part = message.get("body", b"")
                    size += len(part)
                    self.receiving_bytes += len(part)
                    if size > self.max_message_bytes:
                        self._too_long(still_coming=message.get("more_body", False))
                    if self.receiving_bytes > RECEIVING_BYTES:
                        raise RefusedError(429, "too many exports at once; send it again", _RETRY)
                    parts.append(part)
                    if not message.get("more_body"):
                        break
        except TimeoutError as error:
            self.door.lose("dropped", UNFINISHED)
            raise RefusedError(408, "the request took too long") from error
        finally:
            self.receiving_bytes -= size
        found = b"".join(parts)
        return self._expanded(found) if headers.get("content-encoding", "").lower() == "gzip" else found

    def _expanded(self, body: bytes) -> bytes:
        """A gzip body, not longer than a plain one may be; nothing may follow it."""
        reader = zlib.decompressobj(wbits=31)
        try:
            found = reader.decompress(body, self.max_message_bytes + 1)
        except zlib.error as error:
            self.door.lose("undecodable", "exports that are no gzip")
            raise RefusedError(400, "the body is no gzip") from error
        if len(found) > self.max_message_bytes:
            self._too_long()
        if not reader.eof or reader.unused_data:
            self.door.lose("undecodable", "exports that are no gzip")
            raise RefusedError(400, "the body is not one whole gzip")
        return found

    def _too_long(self, *, still_coming: bool = False) -> None:
        self.door.lose("dropped", TOO_LONG)
        words = f"an export is {self.max_message_bytes} bytes at most, decompressed"
        raise RefusedError(413, words, still_coming=still_coming)

    async def _discard(self, receive: Receive) -> None:
        """Let the rest of a body come in: who is cut off while he writes never reads why."""
        left = DISCARDED_MESSAGES * self.max_message_bytes
        try:
            async with asyncio.timeout(DISCARD_SECONDS):
                while left > 0:
                    message = await receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body"):
                        return
                    left -= len(message.get("body", b""))
        except TimeoutError:
            return

    def _admit(self, body: bytes, path: str, *, is_text: bool) -> bytes:
        answer = self.door.admit(body, text=is_text, signal=BY_PATH[path])
        if answer.judged.mistake is not None:
            raise RefusedError(400, answer.judged.mistake)
        if not answer.taken:
            code, words = (503, "the collector is stopping") if self.closing else (429, "the queue is full")
            raise RefusedError(code, words, _RETRY)
        return answers.success(answer, text=is_text)


def _kind(headers: dict[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


async def _reply(send: Send, code: int, body: bytes, *headers: tuple[bytes, bytes], is_text: bool) -> None:
    kind = (TEXT if is_text else BINARY).encode()
    own = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *headers]
    if code in (408, 413):  # the rest of the body may be on its way: nothing can follow it
        own.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": code, "headers": own})
    await send({"type": "http.response.body", "body": body})
