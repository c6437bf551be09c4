"""kvtrace import: foreign files, and runs, into one run."""

from __future__ import annotations

import difflib
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path  # noqa: TC003 - the parser reads annotations
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kvtrace.cli._text import safe
from kvtrace.errors import UsageError
from kvtrace.importer import ALIASES, FORMATS, import_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvtrace.importer import ImportReport, InputReport

_CHOICES = ("auto", *ALIASES, *FORMATS)


def import_(
    *inputs: Path,
    out: Annotated[Path, Parameter(help="The run to make; it must not exist.")],
    form: Annotated[
        str, Parameter(name="--format", help=f"What the inputs are: {', '.join(_CHOICES)}.")
    ] = "auto",
    keep_content: Annotated[
        bool, Parameter(help="Keep prompts and completions; run.json says so.", negative=())
    ] = False,
    group: Annotated[str | None, Parameter(help="Name of the group the run belongs to.")] = None,
) -> None:
    """Read files that engines and collectors write, and runs, into one run.

    Says per input what came in and what could not be read. Prompt text and token ids are counted and
    dropped unless --keep-content is given.

    Example:
        kvtrace import otlp.binpb lookup_hashes.jsonl --out run
    """
    if not inputs:
        raise UsageError("import: name at least one file, as in kvtrace import otlp.binpb --out run.")
    if form not in _CHOICES:
        near = difflib.get_close_matches(form, _CHOICES, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(_CHOICES)}."
        raise UsageError(f"--format {form}: no such format. {hint}")
    with _progress() as on_progress:
        report = import_files(
            inputs, out, format=form, keep_content=keep_content, group=group, on_progress=on_progress
        )
    _print(report)


@contextmanager
def _progress() -> Iterator[Callable[[Path, int, int], None] | None]:
    """A bar on a terminal, nothing in a pipe."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # only a terminal needs it
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    shown = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*shown, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[Path, TaskID] = {}

        def advance(path: Path, done: int, total: int) -> None:
            if path not in tasks:
                tasks[path] = bar.add_task(safe(path.name), total=total)
            bar.update(tasks[path], completed=done, total=total)

        yield advance


def _print(report: ImportReport) -> None:
    for entry in report.inputs:
        for line in _input_lines(entry):
            print(line)
    rows = ", ".join(f"{count} {table}" for table, count in report.rows.items() if count)
    print(f"{safe(str(report.run))}: {rows or 'no rows'}")
    print(f"Next: kvtrace report {safe(shlex.quote(str(report.run)))}")


def _input_lines(entry: InputReport) -> Iterator[str]:
    """What came in and what could not be read, of one input."""
    other = f", {entry.other_rows} other rows" if entry.other_rows else ""
    yield f"{safe(str(entry.path))}: {entry.format}, {entry.spans} spans{other}"
    for cause, count in entry.lost.items():
        known = "came twice, counted once: " if cause == "duplicate" else "lost: "
        yield f"    {known}{count} {safe(cause)}"
    for note in entry.notes:
        yield f"    {safe(note)}"
