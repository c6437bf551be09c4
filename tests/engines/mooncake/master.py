"""Mooncake's master and its metadata server on loopback, ended by its id."""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.engines import process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_S = 30.0


@dataclass(frozen=True)
class Master:
    """Where it listens."""

    child: process.Child
    rpc_port: int
    metadata_port: int
    metrics_port: int


@contextmanager
def running(python: Path, folder: Path, *, lease_ms: int) -> Iterator[Master]:
    """A master whose leases last so long; reachable when it is given back."""
    rpc, metadata, metrics = (free_port() for _ in range(3))
    command = [
        str(python.with_name("mooncake_master")),
        "-rpc_address=127.0.0.1",
        f"-rpc_port={rpc}",
        "-metrics_host=127.0.0.1",
        f"-metrics_port={metrics}",
        "-enable_http_metadata_server=true",
        "-http_metadata_server_host=127.0.0.1",
        f"-http_metadata_server_port={metadata}",
        f"-default_kv_lease_ttl={lease_ms}",
    ]
    child = process.start("master", command, folder=folder, environment={})
    try:
        for port in (rpc, metadata):
            _wait(child, port)
        yield Master(child, rpc, metadata, metrics)
    finally:
        process.stop(child)


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(child: process.Child, port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        child.require_alive()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"{child.name} does not listen on {port}; see {child.log}")
