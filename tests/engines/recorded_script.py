"""Runs a script in a library's environment under `kvtrace run`; gives back what it measured and recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from kvtrace.run import Run, open_run

TIMEOUT_S = 180
MILLISECOND = 1_000_000


@dataclass(frozen=True)
class Played:
    """What one run of a script left."""

    said: dict[str, Any]
    run: Run
    log: str

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Rows of the run that was recorded."""
        return self.run.connection().sql(query).pl().to_dicts()

    def spans(self, name: str) -> list[dict[str, Any]]:
        """The rows of one method, in order."""
        return self.rows(f"SELECT * FROM span WHERE name = '{name}' ORDER BY start_ns")

    def calls(self, name: str) -> list[dict[str, Any]]:
        """What the caller measured of it, in order."""
        return [call for call in self.said["calls"] if call["name"] == name]


def play(folder: Path, python: Path, script: Path, *arguments: str, **environment: str) -> Played:
    """One start of `script` in `folder`."""
    recorded = [sys.executable, "-m", "kvtrace", "run", "--out", "run", "--"]
    done = subprocess.run(
        [*recorded, str(python), str(script), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path.cwd()), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
    )
    log = done.stdout + done.stderr
    assert done.returncode == 0, log[-4000:]
    return Played(json.loads((folder / "calls.json").read_text()), open_run(folder / "run"), log)


def assert_as_measured(calls: list[dict[str, Any]], spans: list[dict[str, Any]]) -> None:
    """Each row lies in its caller's interval, of the same bytes; their median difference is below 1 ms."""
    assert len(spans) == len(calls) > 0
    for call, span in zip(calls, spans, strict=True):
        assert call["start_ns"] <= span["submit_ns"] <= span["start_ns"]
        assert span["start_ns"] <= span["end_ns"] <= call["end_ns"]
        assert span["bytes"] == call["bytes"]
    apart = [
        (call["end_ns"] - call["start_ns"]) - (span["end_ns"] - span["start_ns"])
        for call, span in zip(calls, spans, strict=True)
    ]
    assert median(apart) < MILLISECOND
