"""Cached results of a run: where they lie, and under which key.

The key is a hash over the run's files (name, size, time of change) and over what the result depends on,
so that a new file or a new algorithm never meets an old answer.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from kvtrace.run.nouns import create_views
from kvtrace.schema.layout import DERIVED, PARTIAL
from kvtrace.schema.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import polars as pl

    from kvtrace.run.opening import Run

MEMORY_LIMIT = "700MB"
"""What DuckDB may hold while it answers for a whole run; answers that reach Python are beside it."""


def files_hash(run: Run, *depends_on: str) -> str:
    """Hash of everything a derived result can depend on."""
    digest = hashlib.sha256()
    for table in TABLES:
        for file in run.files(table):
            found = file.stat()
            digest.update(f"{file.relative_to(run.path)}|{found.st_size}|{found.st_mtime_ns}\n".encode())
    for part in depends_on:
        digest.update(f"{part}\n".encode())
    return digest.hexdigest()[:20]


def derived_folder(run: Run) -> Path:
    """RUN/.derived when it can be written, else a private temporary folder of this run."""
    own = run.path / DERIVED
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryFile(dir=own):
            return own
    except OSError:
        name = hashlib.sha256(str(run.path).encode()).hexdigest()[:20]
        other = _private(Path(tempfile.gettempdir()) / f"kvtrace-{os.getuid()}") / name
        other.mkdir(mode=0o700, exist_ok=True)
        return other


def spilling(run: Run) -> duckdb.DuckDBPyConnection:
    """A database of the run's nouns of its own: limited memory, what does not fit goes beside the results."""
    from kvtrace.run import kept

    key = kept.key(run)
    scratch = derived_folder(run) / f"spill-{uuid.uuid4().hex[:12]}"
    connection = duckdb.connect(
        ":memory:", config={"memory_limit": MEMORY_LIMIT, "temp_directory": str(scratch)}
    )
    create_views(connection, run.path)
    kept.keep(run, connection, key)
    return connection


@contextmanager
def published(target: Path) -> Iterator[Path]:
    """A path of this writer alone, which becomes `target` when nothing was raised.

    Any number of processes and threads may compute the same result at once: the last to finish wins, and
    nobody ever reads half a file.
    """
    partial = target.with_name(f"{target.name}.{uuid.uuid4().hex[:12]}{PARTIAL}")
    try:
        yield partial
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def kept_rows(target: Path, rows: Callable[[], pl.DataFrame]) -> Path:
    """`target`, with these rows; they are computed only where it is not there yet."""
    if not target.exists():
        found = rows()
        with published(target) as partial:
            found.write_parquet(partial)
    return target


def _private(folder: Path) -> Path:
    """The folder, which must be ours: its name can be guessed, and somebody else may have made it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="kvtrace-"))
