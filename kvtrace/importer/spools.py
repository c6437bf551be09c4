"""Spools as inputs, of engines that recorded themselves, and runs that still have some: first made a run."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.importer.runs import read_run
from kvtrace.schema.layout import table_files
from kvtrace.sources.spool.drain import spool_files
from kvtrace.sources.spool.finishing import described
from kvtrace.sources.spool.view import converted, view

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kvtrace.importer.staging import Staging


def read_spools(
    paths: Sequence[Path], staging: Staging, *, keep_content: bool
) -> dict[Path, tuple[int, int, dict[str, int]]]:
    """Stage what spools hold, as if no process wrote any more: spans, other rows and losses of each.

    They are converted together, so that rows which two processes have in common count as often as in the run
    that they were recorded for. Of two spools of one name the longer has all of the other.
    """
    longest: dict[str, Path] = {}
    for path in sorted(paths, key=lambda path: path.stat().st_size):
        longest[path.name] = path
    folder = staging.folder / "spools"
    rows = converted(list(longest.values()), folder)
    read_run(folder, staging, keep_content=keep_content)
    staging.engines |= described(folder)
    lost = _lost(folder)
    shutil.rmtree(folder)
    found = {}
    for path in paths:
        own = rows.get(path.name, {}) if longest[path.name] == path else {}
        spans, lossy = own.get("span", 0), own.get("loss", 0)
        found[path] = (spans, sum(own.values()) - spans - lossy, lost.get(path.name, {}) if own else {})
    return found


def _lost(run: Path) -> dict[str | None, dict[str, int]]:
    """Losses by source and cause."""
    lost: dict[str | None, dict[str, int]] = {}
    for file in table_files(run, "loss"):
        counted = pl.read_parquet(file).group_by("source", "cause").agg(pl.sum("count"))
        for source, cause, count in counted.sort("source", "cause").iter_rows():
            lost.setdefault(source, {})[cause] = count
    return lost


@contextmanager
def whole(run: Path, scratch: Path) -> Iterator[Path]:
    """A run with what its spools hold beyond its files: itself, or a view of it."""
    if not spool_files(run):
        yield run
        return
    folder = scratch / "view"
    folder.mkdir(parents=True)
    try:
        view(run, folder)
        yield folder
    finally:
        shutil.rmtree(folder)
