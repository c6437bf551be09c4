"""What importing the recorder costs an engine that does not record."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import kvtrace.recorder
import kvtrace.schema
import pytest

PACKAGE = Path(kvtrace.__file__).parent
CAPTURE = [*(PACKAGE / "recorder").rglob("*.py"), *(PACKAGE / "instrument").rglob("*.py")]
CAPTURE += [PACKAGE / "__init__.py", PACKAGE / "errors.py", *(PACKAGE / "schema").glob("*.py")]
DEAR = {
    "typing",
    "json",
    "re",
    "dataclasses",
    "inspect",
    "logging",
    "threading",
    "pathlib",
    "contextlib",
    "random",
}


def test_importing_the_recorder_imports_nothing_dear() -> None:
    code = (
        "import sys; before = set(sys.modules); import kvtrace.recorder; print(*(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "kvtrace.recorder.recording" in loaded
    assert not loaded & DEAR
    assert not {name for name in loaded if name.startswith("kvtrace.schema.")} - {"kvtrace.schema.frames"}


@pytest.mark.parametrize("file", CAPTURE, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_what_runs_inside_an_engine_parses_on_python_3_10(file: Path) -> None:
    ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 10))
