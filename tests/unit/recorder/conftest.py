"""A recording of this process, begun and ended for one test; and recordings of other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace import recorder
from kvtrace.sources.spool.decode import Frame, SpoolReader, together

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]


class Spools:
    """What lies in the spools of a run."""

    def __init__(self, run: Path) -> None:
        self.run = run

    @property
    def files(self) -> list[Path]:
        return sorted(self.run.glob("spool/*.kvspool"), key=lambda path: path.stat().st_mtime_ns)

    def reader(self) -> SpoolReader:
        (file,) = self.files
        return SpoolReader(file)

    def frames(self) -> list[Frame]:
        return list(self.reader().frames())

    def kinds(self) -> list[str]:
        return [frame.kind for frame in self.frames()]

    def rows(self, table: str = "span", file: Path | None = None) -> list[dict[str, Any]]:
        reader = SpoolReader(file) if file else self.reader()
        found = [batch for batch in together(reader.frames()) if batch.table == table]
        rows = [
            (number, row)
            for batch in found
            for number, row in zip(batch.numbers.tolist(), batch.columns.to_pylist(), strict=True)
        ]
        return [row for _, row in sorted(rows, key=lambda pair: pair[0])]

    def losses(self) -> dict[tuple[str, str | None], int]:
        """(cause, operation), how many."""
        found: dict[tuple[str, str | None], int] = {}
        for row in self.rows("loss"):
            key = row["cause"], row["op"]
            found[key] = found.get(key, 0) + row["count"]
        return found

    def facts(self) -> dict[str, Any]:
        return [frame for frame in self.frames() if frame.kind == "facts"][-1].content


@pytest.fixture
def spools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spools]:
    """A run into which this process records."""
    monkeypatch.setenv("KVTRACE_OUT", str(tmp_path))
    recorder._begin_process()
    recorder._inherited = {}
    yield Spools(tmp_path)
    recorder.close()
    recorder._begin_process()


BEFORE = """
import os, sys, time, signal, threading, multiprocessing
from kvtrace import recorder
S = recorder.shape("span", ("tokens", "start_ns"), op="queue")
def tell(line): os.write(1, (line + "\\n").encode())
def steady(seconds, pause=0.002):
    number = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        number += 1
        recorder.record((S, number, recorder.now()))
        time.sleep(pause)
"""


class Program:
    """A Python program that records into a run, as a process of its own."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.spools = Spools(run)

    def command(self, code: str) -> list[str]:
        path = self.run / "program.py"
        path.write_text(BEFORE + textwrap.dedent(code))
        return [sys.executable, str(path)]

    def environment(self, **more: str) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("KVTRACE_")}
        return {**inherited, "PYTHONPATH": str(ROOT), "KVTRACE_OUT": str(self.run), **more}

    def start(self, code: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(code), env=self.environment(**more), stdout=subprocess.PIPE, text=True, cwd=self.run
        )

    def __call__(self, code: str, **more: str) -> str:
        """Run it to its end; what it printed. Its errors are the test's."""
        done = subprocess.run(
            self.command(code), env=self.environment(**more), capture_output=True, text=True, timeout=60,
            check=False, cwd=self.run,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)
