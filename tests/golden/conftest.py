"""The shipped recordings, each imported from its raw files once a session."""

from __future__ import annotations

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
    """A run by the name of its recording; `empty` is a run without a row."""
    folder = tmp_path_factory.mktemp("samples")
    runs: dict[str, Run] = {}

    def named(name: str) -> Run:
        if name not in runs:
            if name == "empty":
                runs[name] = write_run(folder / name)
            else:
                runs[name] = open_run(import_files([SAMPLES / name / "raw"], folder / name).run)
        return runs[name]

    return named
