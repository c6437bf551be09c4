"""Starts `kvtrace run` as a user would, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).parents[3]
STAND_IN = Path(__file__).with_name("stand_in.py")
KVTRACE = [sys.executable, "-c", "import sys; from kvtrace.cli import main; sys.exit(main())", "run"]
LIMIT_SECONDS = 90


def environment(**more: str) -> dict[str, str]:
    """Ours, in which a checkout is found; without what a recording around us may have set."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("KVTRACE", "VLLM", "OTEL"))
    }
    return kept | {"PYTHONPATH": str(ROOT)} | more


def begin(
    *words: str | Path, more: Mapping[str, str] | None = None, **options: object
) -> subprocess.Popen[str]:
    """Start it; stdout and stderr are pipes."""
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | options
    return subprocess.Popen(
        [*KVTRACE, *map(str, words)], env=environment(**(more or {})), text=True, **settings
    )  # type: ignore[call-overload]


def run(
    *words: str | Path, more: Mapping[str, str] | None = None, **options: object
) -> subprocess.CompletedProcess[str]:
    """Start it and wait."""
    started = begin(*words, more=more, **options)
    out, err = started.communicate(timeout=LIMIT_SECONDS)
    return subprocess.CompletedProcess(started.args, started.returncode, out, err)


def until(condition: Callable[[], object], what: str, seconds: float = 30.0) -> None:
    """Wait for something that must happen."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)
