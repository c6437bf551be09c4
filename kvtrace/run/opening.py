"""Opens a run directory: what is there, which version wrote it, what it was recorded with.

A run that is still being recorded, or that cannot be written, is read through a view of this moment
(recorded.py): `Run.path` is then a temporary folder, `Run.origin` what was opened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec

from kvtrace import schema
from kvtrace.errors import RunError
from kvtrace.run import kept
from kvtrace.run.guard import guarded
from kvtrace.run.nouns import create_views
from kvtrace.run.recorded import moment, settle, watch
from kvtrace.schema.layout import RUN_FILE, table_files
from kvtrace.schema.tables import TABLES

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Run:
    """One run: its directory, what run.json says, and SQL over its nouns.

    `connection()` is a DuckDB connection with every noun and table: it is not a sandbox.
    `sql()` takes exactly one SELECT, from anyone. `path` is where its files lie, `origin` what was opened:
    they differ while the run is recorded.
    """

    path: Path
    meta: dict[str, Any]
    origin: Path
    _shared: dict[str, duckdb.DuckDBPyConnection] = field(default_factory=dict, repr=False, compare=False)

    def connection(self) -> duckdb.DuckDBPyConnection:
        """A cursor of its own on one in-memory database that holds every noun; not a sandbox."""
        if "db" not in self._shared:
            database, key = duckdb.connect(":memory:"), kept.key(self)
            create_views(database, self.path)
            kept.use(self, database, key)
            self._shared["db"] = database
        return self._shared["db"].cursor()

    def sql(self, query: str, **params: object) -> pl.DataFrame:
        """Exactly one SELECT over nouns and tables, on a connection that can reach nothing else.

        Raises:
            QueryError: not one SELECT, refused by DuckDB, out of memory or out of time.
        """
        return guarded(self.path, query, params)

    def files(self, table: str) -> list[Path]:
        """The finished Parquet files of a table."""
        return table_files(self.path, table)


def open_run(path: str | Path) -> Run:
    """Open a run directory for reading, at any moment: also while it is recorded.

    What spools hold beyond the run's files is converted: into the run when the recording is over and the run
    can be written, else for this reader alone.

    Raises:
        RunError: no run there, half-written, or written by a newer schema version.
    """
    folder = Path(path)
    file = folder / RUN_FILE
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise RunError(f"{folder}: {what}; a run is a directory made by kvtrace import.")
    try:
        meta = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        raise RunError(
            f"{folder}: no {RUN_FILE} in it, so it is not a run; make one with kvtrace import."
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise RunError(f"{file}: cannot be read ({error}). Import the raw files again.") from error
    version = meta.get("schema_version")
    if not isinstance(version, int) or version is True or version < 1:
        raise RunError(f"{file}: says no schema version; it was not written by kvtrace.")
    if version > schema.VERSION:
        raise RunError(
            f"{file}: written by schema v{version}; this kvtrace reads up to v{schema.VERSION}. "
            "Upgrade kvtrace."
        )
    origin = folder.resolve()
    if settle(origin):
        meta = msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    run = Run(origin, meta, origin)
    _check_files(run)
    shown = moment(origin)
    return watch(Run(shown, meta, origin)) if shown else run


def _check_files(run: Run) -> None:
    """A torn Parquet file is named now, not as a DuckDB traceback in the middle of a question."""
    for table in TABLES:
        for file in run.files(table):
            with file.open("rb") as stream:
                head = stream.read(4)
                stream.seek(-4, 2) if file.stat().st_size >= 8 else None
                tail = stream.read(4)
            if head != b"PAR1" or tail != b"PAR1":
                raise RunError(
                    f"{file}: is not a whole Parquet file; restore it or import the raw files again."
                )
