"""Foreign files -> a run: look, decode, join, count what was lost; the whole run or nothing.

    placing.py   where the run is built
    formats.py   which decoder a file needs, by looking at it
    reading.py   one input after the other into the staging area; runs.py for runs as inputs
    staging.py   what the decoders gave, on disk, until the whole is known; facts.py what joins need of it
    joining.py   names, duplicates, and what one source says is missing from another
    events.py    one key event once; storage_calls.py, asked_keys.py: LMCache's calls and keys once
    writing.py   the joined rows, sorted, into the tables of the run

The run is built beside its final place and renamed when it is whole. Rows pass through in batches; what
grows with the input in memory are names and hashes of requests and spans (BENCHMARKS.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.errors import InputError
from kvtrace.importer.formats import ALIASES, FORMATS
from kvtrace.importer.joining import join
from kvtrace.importer.placing import building
from kvtrace.importer.reading import InputReport, read_inputs
from kvtrace.importer.staging import Staging
from kvtrace.importer.writing import write_run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["ALIASES", "FORMATS", "ImportReport", "InputReport", "import_files"]


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The run that was written, what each input gave, and how many rows each table has."""

    run: Path
    inputs: tuple[InputReport, ...]
    rows: dict[str, int]


def import_files(
    inputs: Sequence[Path],
    out: Path,
    *,
    format: str = "auto",  # noqa: A002 - the option's name on the command line
    keep_content: bool = False,
    group: str | None = None,
    on_progress: Callable[[Path, int, int], None] | None = None,
) -> ImportReport:
    """Read files and folders into one new run.

    Raises:
        RunExistsError: `out` exists; nothing is ever written over.
        InputError: an input is missing, is nothing that kvtrace knows, or nothing at all could be read.
        RunError: the disk is full or read-only.
    """
    with building(out, "importing") as folder:
        if not inputs:
            raise InputError("import: no input was named; give files or folders of traces.")
        staging = Staging(folder / "staging")
        reports = read_inputs(
            inputs,
            staging,
            format=format,
            keep_content=keep_content,
            on_progress=on_progress or (lambda *_: None),
        )
        rows = write_run(
            folder / "run", staging, join(staging), reports, keep_content=keep_content, group=group
        )
        (folder / "run").replace(out)
    return ImportReport(out, tuple(reports), rows)
