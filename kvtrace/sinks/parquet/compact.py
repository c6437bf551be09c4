"""Many files of a run -> few sorted ones (see sorting.py); every table is exchanged as a whole."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace.errors import RunError
from kvtrace.schema.layout import PARQUET, RUN_FILE, replaced_folder, table_files
from kvtrace.schema.tables import TABLES
from kvtrace.sinks.parquet.covered import COMMIT, Said, metadata, united
from kvtrace.sinks.parquet.sorting import write_sorted
from kvtrace.sinks.parquet.writer import open_writer, write_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BATCH_ROWS = 128 * 1024
_SORT = {
    "block": ["time_ns", "seq"],
    "request_key": ["request_id", "attempt", "position"],
    "metric": ["name", "time_ns"],
    "alias": ["request_id", "kind", "alias"],
    "identity": ["identity_id", "side", "field"],
    "process": ["process"],
    "loss": ["source", "cause", "from_ns"],
}


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What compaction changed."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rows: dict[str, int]


def compact_run(path: Path) -> CompactReport:
    """Few sorted files in place of many: every table is written anew, then exchanged as a whole.

    Raises:
        RunError: no run there, one of its files is torn, or it cannot be written.
    """
    if not (path / RUN_FILE).is_file():
        raise RunError(f"{path}: no {RUN_FILE} in it, so it is not a run; make one with kvtrace import.")
    before = {table: table_files(path, table) for table in TABLES}
    sizes = sum(file.stat().st_size for files in before.values() for file in files)
    rows = {}
    try:
        for table, files in before.items():
            if files:
                rows[table] = _compact_table(path, table, files)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror or error}); it is as it was.") from error
    except pa.ArrowException as error:
        raise RunError(f"{path}: holds a file that cannot be read ({error}); it is as it was.") from error
    after = [file for table in TABLES for file in table_files(path, table)]
    return CompactReport(
        sum(map(len, before.values())), len(after), sizes, sum(file.stat().st_size for file in after), rows
    )


def _compact_table(path: Path, table: str, files: list[Path]) -> int:
    """Write one table anew beside itself, then exchange the folders.

    A file without rows says what the files covered of spools, so that nothing is converted twice; that of
    `span` speaks for all tables, unless a crash left one of them ahead of it.
    """
    fresh = path / f".compacting-{table}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    try:
        count = sum(pq.read_metadata(file).num_rows for file in files)
        if table == "span":
            rows = write_sorted(_batches(files), count, fresh, path / ".sorting", _run_id(files))
        else:
            whole = pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])
            rows = write_table(
                fresh / "part-000.parquet", table, whole.sort_by([(key, "ascending") for key in _SORT[table]])
            )
        spans = united(files)
        if spans and (table == COMMIT or not _said(united(table_files(path, COMMIT)), spans)):
            with open_writer(fresh / f"covered{PARQUET}", table) as writer:
                writer.add_key_value_metadata(metadata(spans))
        old = path / replaced_folder(table)
        if (path / table).is_dir():  # else a crash left the only rows there are in `old`
            shutil.rmtree(old, ignore_errors=True)
            (path / table).replace(old)
        fresh.replace(path / table)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return rows


def _said(all_tables: Said, table: Said) -> bool:
    """Whether what the files of one table cover is said for all tables already."""
    return all(all_tables.get(spool, (0, 0, False))[1:] >= span[1:] for spool, span in table.items())


def heal(path: Path) -> None:
    """Bring a table back that a compaction was killed over while it exchanged the folders.

    Raises:
        RunError: it cannot be renamed.
    """
    for table in TABLES:
        old = path / replaced_folder(table)
        if old.is_dir() and not (path / table).exists():
            try:
                old.replace(path / table)
            except OSError as error:
                raise RunError(f"{old}: cannot be renamed ({error.strerror or error}).") from error


def _run_id(files: list[Path]) -> str:
    """The run that the first row belongs to."""
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(batch_size=1, columns=["run_id"]):
            return batch["run_id"][0].as_py() or ""
    return ""


def _batches(files: list[Path]) -> Iterator[pa.Table]:
    """Span rows of existing files, without the columns that nobody filled."""
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(batch_size=BATCH_ROWS):
            table = pa.Table.from_batches([batch])
            empty = [name for name in table.column_names if table[name].null_count == table.num_rows]
            yield table.drop_columns([*empty, *(["run_id"] if "run_id" not in empty else [])])
