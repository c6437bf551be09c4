"""The shipped recordings, each imported from its raw files once, whichever test process asks first."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kvtrace.importer import import_files
from kvtrace.run import Run, open_run
from tests.rows import write_run

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES = Path(__file__).parents[2] / "sample_traces"


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """A run by the name of its recording; `empty` is a run without a row.

    Workers of pytest-xdist share the runs, and what is derived from them, in the folder above their own.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "samples"
    folder.mkdir(exist_ok=True)
    runs: dict[str, Run] = {}

    def named(name: str) -> Run:
        if name not in runs:
            with (folder / f"{name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                runs[name] = _made(name, folder / name)
        return runs[name]

    return named


def _made(name: str, path: Path) -> Run:
    """Import or draw the run, or open the one that another worker made; the lock is held."""
    done = path.with_name(f"{name}.done")
    if done.exists():
        return open_run(path)
    run = write_run(path) if name == "empty" else open_run(import_files([SAMPLES / name / "raw"], path).run)
    done.touch()
    return run
