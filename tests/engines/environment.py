"""The engines' own virtual environments, each built once and kept outside the tree.

    requirements/NAME/1-*.txt          what is installed with all that it depends on
    requirements/NAME/2-*.txt          what is installed alone (--no-deps): its own pins do not fit
    requirements/NAME/constraints.txt  the versions that were seen to work together

Engines and kvtrace pin different versions of the same libraries, so no engine shares the project's
environment. A folder counts as built only when its stamp is there: an interrupted build leaves a
folder without one, and the next call starts again.
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

VLLM_LMCACHE = "vllm-lmcache"
TRANSFER_LIBRARIES = "transfer-libraries"
DYNAMO = "dynamo"
REQUIREMENTS = Path(__file__).parent / "requirements"
CONSTRAINTS = "constraints.txt"
STAMP = "complete"
UNWANTED = {VLLM_LMCACHE: ("torchvision", "torchaudio", "torchcodec")}
"""What is taken away again after the first step: it comes along and does not import."""
BUILD_TIMEOUT_S = 1800


def engine_python(name: str = VLLM_LMCACHE) -> Path:
    """The interpreter of an environment; builds it the first time (vLLM's: ~3.4 GB, minutes)."""
    home = cache_folder() / "engines" / f"{name}-{_fingerprint(name)}"
    if not (home / STAMP).exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with _locked(home.with_suffix(".lock")):
            if not (home / STAMP).exists():
                _build(name, home)
    return home / "bin" / "python"


def skip_when_missing(name: str = VLLM_LMCACHE) -> None:
    """A missing engine is red, unless KVTRACE_SKIP_ENGINES names its environment."""
    if name in os.environ.get("KVTRACE_SKIP_ENGINES", "").split(","):
        pytest.skip(f"KVTRACE_SKIP_ENGINES names {name}")


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


def _fingerprint(name: str) -> str:
    digest = hashlib.sha256(base_python().encode())
    for path in _requirements(name, "*.txt"):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _requirements(name: str, pattern: str) -> list[Path]:
    return sorted((REQUIREMENTS / name).glob(pattern))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two pytest workers must not build together: the second waits, then finds the stamp."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _build(name: str, home: Path) -> None:
    """Builds in place: a venv's scripts name its own path, so it cannot be moved afterwards.

    What an interrupted build left is removed first; the stamp is written last.
    """
    shutil.rmtree(home, ignore_errors=True)
    log = home.with_suffix(".log")
    steps = [[base_python(), "-m", "venv", str(home)], *_installations(name, home)]
    with log.open("wb") as output:
        for step in steps:
            done = subprocess.run(step, stdout=output, stderr=output, timeout=BUILD_TIMEOUT_S, check=False)
            if done.returncode:
                raise RuntimeError(f"the environment {name} was not built: `{' '.join(step)}`; see {log}")
    (home / STAMP).touch()


def _installations(name: str, home: Path) -> Iterator[list[str]]:
    pip = [str(home / "bin" / "python"), "-m", "pip", "--no-input", "--disable-pip-version-check"]
    pinned = ["--constraint", str(REQUIREMENTS / name / CONSTRAINTS)]
    for path in _requirements(name, "1-*.txt"):
        yield [*pip, "install", *pinned, "--requirement", str(path)]
    if name in UNWANTED:
        yield [*pip, "uninstall", "--yes", *UNWANTED[name]]
    for path in _requirements(name, "2-*.txt"):
        yield [*pip, "install", "--no-deps", "--requirement", str(path)]
