"""vLLM's own publisher of KV events: both ways in which it opens its socket, and its replay endpoint."""

from __future__ import annotations

import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.engines.stack import _free_ports as free_ports
from tests.unit.collect.collecting import collector

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.engine
SCRIPT = Path(__file__).with_name("vllm_publisher.py")
EVENTS = "SELECT seq, key, parent_key, tokens FROM block ORDER BY seq"
EXPECTED = [(number, f"{number + 1:016x}", f"{number:016x}" if number else None, 4) for number in range(10)]


class Publisher:
    """The publisher's process, step by step."""

    def __init__(self, python: Path, endpoint: str, replay: str) -> None:
        self._process = subprocess.Popen(
            [str(python), str(SCRIPT), endpoint, replay], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.published()

    def published(self) -> None:
        """Wait until five more batches are out."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "published\n":
                return
        raise AssertionError("the publisher ended")

    def go_on(self) -> None:
        """The next step."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """The last step."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def publishing(python: Path, endpoint: str, replay: str) -> Iterator[Publisher]:
    publisher = Publisher(python, endpoint, replay)
    try:
        yield publisher
    finally:
        publisher.end()


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="kvt-") as folder:
        yield Path(folder)


def test_what_was_published_before_we_came_is_replayed(python: Path, tmp_path: Path, sockets: Path) -> None:
    endpoint, replay = f"ipc://{sockets}/events", f"ipc://{sockets}/replay"
    wanted = (f"{endpoint},replay={replay}",)
    with (
        publishing(python, endpoint, replay) as publisher,
        collector(tmp_path, kv_events=wanted) as collecting,
    ):
        time.sleep(2.0)  # it connects
        publisher.go_on()
        publisher.published()
        time.sleep(1.0)
        collecting.stop.set()
        collecting._thread.join()
    assert collecting.sql(EVENTS).rows() == EXPECTED
    assert collecting.lost() == {}


def test_a_publisher_that_connects_reaches_what_is_bound_for_it(
    python: Path, tmp_path: Path, sockets: Path
) -> None:
    (port,) = free_ports(1)
    endpoint, replay = f"tcp://127.0.0.1:{port}", f"ipc://{sockets}/replay"
    wanted = (f"{endpoint},bind,replay={replay}",)
    with (
        collector(tmp_path, kv_events=wanted) as collecting,
        publishing(python, endpoint, replay) as publisher,
    ):
        publisher.go_on()
        publisher.published()
        time.sleep(1.0)
        collecting.stop.set()
        collecting._thread.join()
    assert collecting.sql(EVENTS).rows() == EXPECTED
    assert collecting.lost() == {}
