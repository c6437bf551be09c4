"""Signals that come while rows are written: what was said to be taken is in the run, which is whole."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import TYPE_CHECKING

import grpc
from kvtrace.run import open_run
from tests.unit.collect.collecting import FREE, loads
from tests.unit.collect.test_command import SECONDS, begin, listener
from tests.unit.collect.test_otlp_grpc import call

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

SPANS = 6_000
"""Of one export; twenty of them fill a file of staged rows."""


class Sender:
    """Sends exports until one is refused, and knows how many spans were taken."""

    def __init__(self, address: str) -> None:
        self.taken = 0
        self._address = address
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        number = 0
        while not self._over.is_set():
            try:
                call(self._address, loads(SPANS, first=1 + number * SPANS))
            except grpc.RpcError:
                return
            number += 1
            self.taken = number * SPANS

    def stop(self) -> int:
        """How many spans were taken."""
        self._over.set()
        self._thread.join(SECONDS)
        return self.taken


def appears(folder: Path, pattern: str, process: subprocess.Popen[str]) -> None:
    """Wait until something is there."""
    deadline = time.monotonic() + SECONDS
    while not list(folder.glob(pattern)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_sigterm_while_a_file_is_written_loses_nothing_that_was_taken(tmp_path: Path) -> None:
    """The first signal comes while rows are staged, more while the run is written."""
    process = begin("--out", str(tmp_path / "run"), "--otlp-grpc", FREE)
    sender = Sender(listener(process, "otlp-grpc"))
    appears(tmp_path, ".run.collecting-*/staging/rows-*.arrow", process)
    process.send_signal(signal.SIGTERM)
    taken = sender.stop()
    appears(tmp_path, ".run.collecting-*/run", process)
    while not (tmp_path / "run").exists():
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)
    out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, err) == (0, "")
    assert f"Next: kvtrace report {tmp_path / 'run'}" in out
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    run = open_run(tmp_path / "run")
    count, requests = run.sql("SELECT count(*), count(DISTINCT request_id) FROM span").rows()[0]
    assert taken > 0
    assert count == requests
    assert count in (taken, taken + SPANS)  # the last answer may have been cut off by the end
    assert run.sql("SELECT * FROM loss").is_empty()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["rows"]["span"] == count


def test_a_second_interrupt_gives_the_run_up_and_leaves_nothing(tmp_path: Path) -> None:
    process = begin("--out", str(tmp_path / "run"), "--otlp-grpc", FREE)
    sender = Sender(listener(process, "otlp-grpc"))
    appears(tmp_path, ".run.collecting-*/staging/rows-*.arrow", process)
    process.send_signal(signal.SIGINT)
    sender.stop()
    appears(tmp_path, ".run.collecting-*/run", process)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []
