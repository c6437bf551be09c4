"""Starts the offline script, with or without kvtrace, and gives back what it answered and recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.engines import model

if TYPE_CHECKING:
    from kvtrace.run import Run

SCRIPT = Path(__file__).with_name("offline_script.py")
TIMEOUT_S = 420
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
AGAIN = "[vllm.general_plugins]\nkvtrace-again = kvtrace.instrument.vllm:register\n"


@dataclass(frozen=True)
class Played:
    """What one start of the engine left: its answers, its log, the run."""

    tokens: list[list[list[int]]]
    carried: list[list[str] | None]
    log: str
    folder: Path

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Rows of the run that was recorded."""
        return self.run().connection().sql(query).pl().to_dicts()

    def run(self) -> Run:
        from kvtrace.run import open_run

        return open_run(self.folder / "run")


def surroundings(**more: str) -> dict[str, str]:
    """The environment of an engine that needs no network."""
    return {**os.environ, **ENVIRONMENT, **more}


def play(folder: Path, python: Path, *arguments: str, recorded: bool = True, **environment: str) -> Played:
    """One start, in `folder`. Without kvtrace the engine's environment knows nothing of it."""
    model.write_model(folder / model.NAME)
    command = [str(python), str(SCRIPT), *arguments]
    around = surroundings(**environment)
    if recorded:
        command = [sys.executable, "-m", "kvtrace", "run", "--out", "run", "--", *command]
        around["PYTHONPATH"] = os.pathsep.join([str(_repeated(folder)), str(Path.cwd())])
    done = subprocess.run(
        command,
        cwd=folder,
        env=around,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIMEOUT_S,
        check=False,
        text=True,
        errors="replace",
    )
    (folder / "log").write_text(done.stdout)
    assert done.returncode == 0, done.stdout[-4000:]
    answers = json.loads((folder / "answers.json").read_text())
    return Played(answers["tokens"], answers["carried"], done.stdout, folder)


def _repeated(folder: Path) -> Path:
    """A second distribution that names the same plugin, as a stale install beside a new one would."""
    place = folder / "again"
    metadata = place / "kvtrace_again-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kvtrace-again\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(AGAIN)
    return place
