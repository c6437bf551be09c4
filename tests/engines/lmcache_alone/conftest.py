"""Each server is started once a test run, under `kvtrace run`."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.engines.lmcache_alone import server
from tests.engines.lmcache_alone.server import FS, LOCALHOST, Played, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

UNWRITTEN = Path(__file__).with_name("unwritten.py")
SHADOWED = """
import runpy, site, sys
site.addsitedir([path for path in sys.argv.pop(1).split(":") if path][0])
import lmcache
lmcache.__version__ = "9.9.9"
sys.argv[0] = "server"
runpy.run_module("lmcache.v1.multiprocess.http_server", run_name="__main__")
"""
"""A server without sitecustomize (-S), which says that it is a version that nobody knows."""


@pytest.fixture(scope="session")
def plain(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The console script, with an L2 on disk: stores, hits in L1, loads from L2."""
    return _played(Server(adapter=FS), "plain", python, tmp_path_factory)


@pytest.fixture(scope="session")
def overlap(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Two tensor-parallel ranks that store at once and retrieve at once."""
    workers = ("--max-gpu-workers", "2", "--max-cpu-workers", "2")
    return _played(Server(options=workers), "overlap", python, tmp_path_factory)


@pytest.fixture(scope="session")
def fails(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """L2 fails to load the third object of every load."""
    adapter = {"type": "fault_inject", "gap_indices": [2], "inner": FS}
    return _played(Server(adapter=adapter), "fails", python, tmp_path_factory)


@pytest.fixture(scope="session")
def held(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Locks live for 2 s, and a lookup is held for 3; the server is a module, not the console script."""
    options = ("--l1-read-ttl-seconds", "2")
    return _played(Server(options=options, words=server.MODULE), "held", python, tmp_path_factory)


@pytest.fixture(scope="session")
def hung(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """L2 is a Redis that takes connections and never answers."""
    with _silent() as port:
        adapter = {"type": "resp", "host": LOCALHOST, "port": port}
        return _played(Server(adapter=adapter), "hung", python, tmp_path_factory)


@pytest.fixture(scope="session")
def attached(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """No sitecustomize reaches it: LMCache's own hook for devices does, with --attach-lmcache."""
    packages = next((python.parent.parent / "lib").glob("python3*/site-packages"))
    words = ("-S", "-c", SHADOWED, str(packages))
    started = Server(words=words, kvtrace=("--attach-lmcache",), adapter=FS)
    return _played(started, "plain", python, tmp_path_factory)


@pytest.fixture(scope="session")
def silenced(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The server publishes nothing."""
    return _played(Server(options=("--disable-observability",)), "plain", python, tmp_path_factory)


@pytest.fixture(scope="session")
def unwritten(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """No server: LMCache's storage manager alone, where a write is reserved and never finished."""
    return server.run_script(UNWRITTEN, python=python, out=tmp_path_factory.mktemp("unwritten") / "run")


def _played(started: Server, scenario: str, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return server.play(started, scenario, python=python, out=tmp_path_factory.mktemp(scenario) / "run")


@contextmanager
def _silent() -> Iterator[int]:
    """A port where connections are taken (by the kernel) and never answered."""
    with socket.socket() as listener:
        listener.bind((LOCALHOST, 0))
        listener.listen(64)
        yield int(listener.getsockname()[1])
