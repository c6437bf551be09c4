"""Ports and pages on this machine: what is free, who answers, what is counted, what can be reset."""

from __future__ import annotations

import http.client
import math
import re
import socket
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from kvtrace.experiment.running.children import Child

HOST = "127.0.0.1"
PAGE_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_MOST_BYTES = 64 << 20


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now; all are held until the last is known, so that they differ."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def asked(port: int, path: str, *, method: str = "GET") -> tuple[int, bytes] | None:
    """Status and body of a page; null: nobody answers."""
    connection = http.client.HTTPConnection(HOST, port, timeout=PAGE_SECONDS)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def wait_until_ready(child: Child, port: int, path: str | None, *, seconds: float) -> None:
    """Wait until a page answers 200, or, without one, until somebody listens.

    Raises:
        UsageError: the process ended, or did not answer in time.
    """
    deadline = time.monotonic() + seconds
    while not (_listens(port) if path is None else (asked(port, path) or (0, b""))[0] == http.client.OK):
        if not child.alive():
            raise child.failure(f"ended with {child.process.returncode} before it was ready")
        if time.monotonic() >= deadline:
            raise child.failure(f"was not ready within {seconds:g} s ({path or f'port {port}'})")
        time.sleep(_PAUSE_SECONDS)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=PAGE_SECONDS):
            return True
    except OSError:
        return False


def counted(port: int, name: str) -> float:
    """A counter of the engine's page of metrics, over all its labels; 0 where it has not counted yet.

    What is no finite number counts nothing.

    Raises:
        UsageError: there is no page.
    """
    page = asked(port, "/metrics")
    if page is None or page[0] != http.client.OK:
        raise UsageError(
            f"http://{HOST}:{port}/metrics: does not answer, so nobody can tell when a share of the load is "
            "answered; leave disconnect_at at 0, or name an engine with such a page."
        )
    found = re.findall(
        rf"^{re.escape(name)}(?:_total)?(?:\{{[^\n]*\}})? (\S+)",
        page[1].decode("utf-8", "replace"),
        re.MULTILINE,
    )
    values = []
    for word in found:
        with suppress(ValueError):
            values.append(float(word))
    return sum(value for value in values if math.isfinite(value))
