"""Imports every sample's raw recordings again: `python -m tests.samples`, whenever the schema moves."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from kvtrace.importer import import_files
from kvtrace.schema.layout import RAW

SAMPLES = Path(__file__).parent.parent / "sample_traces"


def samples() -> list[Path]:
    """The sample runs, each with its raw recordings inside."""
    return sorted(path.parent for path in SAMPLES.glob(f"*/{RAW}"))


def refresh(sample: Path) -> None:
    """Replace a sample's tables by what importing its raw recordings gives now."""
    with tempfile.TemporaryDirectory(dir=sample.parent) as folder:
        made = import_files([sample / RAW], Path(folder) / "run").run
        for old in sample.iterdir():
            if old.name != RAW:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        for new in made.iterdir():
            shutil.move(new, sample / new.name)


if __name__ == "__main__":
    for found in samples():
        refresh(found)
        print(
            found.name, sum(file.stat().st_size for file in found.rglob("*") if file.is_file()) // 1000, "kB"
        )
