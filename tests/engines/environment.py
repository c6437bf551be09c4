"""The engines' own virtual environment, built once and kept outside the tree.

Two engines and kvtrace pin different versions of the same libraries, so the engines never share
the project's environment. A folder counts as built only when its stamp is there: an interrupted
build leaves a folder without one, and the next call starts again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINE = "vllm-lmcache"
REQUIREMENTS = Path(__file__).parent / "requirements"
STAMP = "complete"
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
BUILD_TIMEOUT_S = 1800


def engine_python() -> Path:
    """The interpreter of the engines' environment; builds it the first time (~3.4 GB, minutes)."""
    home = cache_folder() / "engines" / f"{ENGINE}-{_fingerprint()}"
    if not (home / STAMP).exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with _locked(home.with_suffix(".lock")):
            if not (home / STAMP).exists():
                _build(home)
    return home / "bin" / "python"


def skip_when_missing() -> None:
    """A missing engine is red, unless KVTRACE_SKIP_ENGINES names it."""
    if ENGINE in os.environ.get("KVTRACE_SKIP_ENGINES", "").split(","):
        pytest.skip(f"KVTRACE_SKIP_ENGINES names {ENGINE}")


def cache_folder() -> Path:
    """`$KVTRACE_CACHE`, or `~/.cache/kvtrace`."""
    named = os.environ.get("KVTRACE_CACHE")
    return Path(named) if named else Path.home() / ".cache" / "kvtrace"


def base_python() -> str:
    """The interpreter the environment is made from: python3.11 where there is one.

    The pins were recorded under 3.11; `KVTRACE_ENGINE_PYTHON` names another.
    """
    named = os.environ.get("KVTRACE_ENGINE_PYTHON") or shutil.which("python3.11") or sys.executable
    asked = [named, "-c", "import sys; print(sys.executable)"]
    return subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def _fingerprint() -> str:
    digest = hashlib.sha256(base_python().encode())
    for path in sorted(REQUIREMENTS.glob("*.txt")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two pytest workers must not build together: the second waits, then finds the stamp."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(home: Path) -> None:
    """Builds in place: a venv's scripts name its own path, so it cannot be moved afterwards.

    What an interrupted build left is removed first; the stamp is written last.
    """
    shutil.rmtree(home, ignore_errors=True)
    log = home.with_suffix(".log")
    python = str(home / "bin" / "python")
    pip = [python, "-m", "pip", "--no-input", "--disable-pip-version-check"]
    pinned = ["--constraint", str(REQUIREMENTS / "constraints.txt")]
    steps = [
        [base_python(), "-m", "venv", str(home)],
        [*pip, "install", *pinned, "--requirement", str(REQUIREMENTS / "1-vllm.txt")],
        [*pip, "uninstall", "--yes", *UNWANTED],
        [*pip, "install", "--no-deps", "--requirement", str(REQUIREMENTS / "2-lmcache.txt")],
    ]
    with log.open("wb") as output:
        for step in steps:
            done = subprocess.run(step, stdout=output, stderr=output, timeout=BUILD_TIMEOUT_S, check=False)
            if done.returncode:
                raise RuntimeError(f"the engines' environment was not built: `{' '.join(step)}`; see {log}")
    (home / STAMP).touch()
