"""Asks another interpreter what it has: runs it as `kvtrace run` would, the probe as its program."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.errors import UsageError
from kvtrace.launch import bootstrap, child
from kvtrace.launch.environment import anchor, environment

if TYPE_CHECKING:
    from typing import Any

PROBE = Path(__file__).with_name("probe.py")


def examine(python: str, *, seconds: float) -> dict[str, Any]:
    """The probe's answer; `reached`: whether our folder was seen; `late`: not all was answered in time.

    `python` is a path, or a command with flags as they will be given: "/opt/venv/bin/python -I".

    Raises:
        UsageError: there is no such program, or it is no Python that answers.
    """
    command = [python] if Path(python).exists() else shlex.split(python)
    if not command:
        raise UsageError("--python: names no program; give the path of an engine's python.")
    child.find(command[0])
    with tempfile.TemporaryDirectory(prefix="kvtrace-doctor-") as scratch:
        folder, answer = bootstrap.make(), Path(scratch) / "answer.json"
        surroundings = environment(
            os.environ, run=Path(scratch) / "run", run_id="doctor", clocks=anchor(), bootstrap=folder
        )
        (Path(scratch) / "run").mkdir()
        try:
            done = subprocess.run(  # noqa: S603 - the user names the program
                [*command, "-c", PROBE.read_text(encoding="utf-8"), str(answer)],
                env=surroundings, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                timeout=seconds, check=False,
            )  # fmt: skip
            late, said = False, done.stderr
        except subprocess.TimeoutExpired:
            late, said = True, f"no answer in {seconds:.0f} s"
        except OSError as error:
            raise UsageError(f"--python {python}: cannot be started ({error.strerror or error}).") from error
        finally:
            reached = bool(bootstrap.reached(folder))
            bootstrap.remove(folder)
        return _read(answer, python, said) | {"reached": reached, "late": late}


def _read(answer: Path, python: str, said: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(answer.read_text())
    except (OSError, ValueError):
        last = (said.strip().splitlines() or ["it said nothing"])[-1]
        raise UsageError(f"--python {python}: does not answer as a Python does ({last}).") from None
    return found
