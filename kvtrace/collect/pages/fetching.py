"""One page over HTTP, whatever its server does: slow, dead, endless or lying, it costs SECONDS and MAX_BYTES.

Redirects are not followed, and no compression is asked for: a page that comes compressed is refused.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from kvtrace.errors import UsageError

SECONDS = 5.0
MAX_BYTES = 4 << 20
"""The metrics of a large engine take a tenth of it."""
_CHUNK_BYTES = 1 << 16
_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "kvtrace", "Connection": "close"}
_NO_HTTP, _ABSENT = "is no HTTP, or was cut", "cannot be reached"
UNREACHABLE, UNREADABLE, CUT = "exporter_failure", "undecodable", "dropped"


class Place(NamedTuple):
    """A URL in its parts; `shown` is how a person and the run know it."""

    secure: bool
    host: str
    port: int | None
    target: str
    shown: str


@dataclass(frozen=True, slots=True)
class Page:
    """A page as it came, and when (unix ns): between asking for it and its last byte."""

    content: bytes
    time_ns: int


@dataclass(frozen=True, slots=True)
class Missed:
    """Why there is no page: a cause of LOSS_CAUSES, and what happened."""

    cause: str
    detail: str
    time_ns: int

    @classmethod
    def absent(cls, time_ns: int) -> Missed:
        """Nobody listens there."""
        return cls(UNREACHABLE, f"page that {_ABSENT}", time_ns)

    @property
    def is_absence(self) -> bool:
        """Whether nobody listens there."""
        return self == Missed.absent(self.time_ns)


def place(url: str, option: str, default_path: str) -> Place:
    """A URL as a person writes it; without a path it is the usual one.

    Raises:
        UsageError: no http:// or https:// URL, or one that names a user.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{option} {url}: is no URL ({error}).") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or not url.isprintable() or " " in url:
        raise UsageError(f"{option} {url}: is no http:// or https:// URL; write it as http://127.0.0.1:8000.")
    if "@" in parts.netloc:
        raise UsageError(
            f"{option}: a URL with a user or a password does not belong into a run; leave it out."
        )
    path = parts.path if parts.path not in {"", "/"} else default_path
    target = f"{path}?{parts.query}" if parts.query else path
    shown = f"{parts.scheme}://{parts.netloc}{path}"
    return Place(parts.scheme == "https", parts.hostname, port, target, shown)


def fetch(where: Place) -> Page | Missed:
    """Ask for a page once; never raises for what the other side does."""
    began = time.time_ns()
    kind = http.client.HTTPSConnection if where.secure else http.client.HTTPConnection
    connection = kind(where.host, where.port, timeout=SECONDS)
    over = threading.Event()
    watchdog = threading.Timer(SECONDS, _cut, (connection, over))  # a timeout of sockets is one of each read
    watchdog.daemon = True
    watchdog.start()
    try:
        connection.request("GET", where.target, headers=_HEADERS)
        found = _read(connection.getresponse(), began)
    except (OSError, http.client.HTTPException, ValueError) as error:
        late = over.is_set() or isinstance(error, TimeoutError)
        reason = "took too long" if late else _NO_HTTP if _spoke(error) else _ABSENT
        found = Missed(UNREACHABLE, f"page that {reason}", began)
    finally:
        watchdog.cancel()
        connection.close()
    if over.is_set() and isinstance(found, Page):
        return Missed(UNREACHABLE, "page that took too long", began)
    return found


def _cut(connection: http.client.HTTPConnection, over: threading.Event) -> None:
    """End a connection that has had its time, in whatever it is."""
    over.set()
    with suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)


def _spoke(error: Exception) -> bool:
    return isinstance(error, http.client.HTTPException | ValueError | ConnectionResetError | BrokenPipeError)


def _read(answer: http.client.HTTPResponse, began: int) -> Page | Missed:
    if answer.status != http.client.OK:
        return Missed(UNREACHABLE, f"page that was answered with status {answer.status}", began)
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        return Missed(UNREADABLE, "page that came compressed, which nobody asked for", began)
    parts: list[bytes] = []
    size = 0
    while part := answer.read(_CHUNK_BYTES):
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            return Missed(CUT, f"page longer than {MAX_BYTES:,} bytes", began)
    if answer.length:  # less than its head promised, which read(n) does not complain of
        return Missed(UNREACHABLE, f"page that {_NO_HTTP}", began)
    return Page(b"".join(parts), (began + time.time_ns()) // 2)
