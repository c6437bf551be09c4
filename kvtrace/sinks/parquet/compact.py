"""Rows -> few files, sorted by request and start, so that a request's rows lie together and pack well.

A small run is one file; a large one has a folder a bucket (md5 of the request id), so that an analysis can
run a bucket at a time. Rows without a request (steps, waits, holds of nobody) lie in shared/.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvtrace.errors import RunError
from kvtrace.schema.layout import BUCKETS, RUN_FILE, SHARED, bucket_folder, replaced_folder, table_files
from kvtrace.schema.tables import TABLES
from kvtrace.sinks.parquet.arrow import conform
from kvtrace.sinks.parquet.writer import ROW_GROUP_ROWS, open_writer

ONE_FILE_ROWS = 2_000_000
"""Up to so many rows a table stays in one file (and one of shared rows)."""
NO_BUCKET = 255
BATCH_ROWS = 64 * 1024
_SORT = {
    "span": "bucket, request_id, start_ns, span_id",
    "block": "time_ns, seq",
    "request_key": "request_id, attempt, position",
    "metric": "name, time_ns",
    "alias": "request_id, kind, alias",
    "identity": "identity_id, side, field",
    "process": "process",
    "loss": "source, cause, from_ns",
}


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What compaction changed."""

    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int
    rows: dict[str, int]


def write_sorted(connection: duckdb.DuckDBPyConnection, rows: str, folder: Path, estimate: int) -> int:
    """Write the span rows of a query, with their bucket, sorted; returns how many there were.

    Args:
        connection: where the query runs; its memory limit bounds the sort.
        rows: a SELECT with every column of `span` but bucket.
        folder: the table's folder.
        estimate: about how many rows there are, which decides on the layout.
    """
    bucketed = estimate > ONE_FILE_ROWS
    key = f"CASE WHEN request_id IS NULL THEN {NO_BUCKET} ELSE md5_number_upper(request_id) % {BUCKETS} END::UTINYINT"
    query = f"SELECT *, {key} AS bucket FROM ({rows}) ORDER BY {_SORT['span']}"  # noqa: S608 - our own SQL
    return _write_parts(_parts(connection, query, bucketed=bucketed), folder, "span")


def _parts(
    connection: duckdb.DuckDBPyConnection, query: str, *, bucketed: bool
) -> Iterator[tuple[Path, pa.Table]]:
    """Sorted rows with the file they belong to."""
    for batch in connection.sql(query).to_arrow_reader(BATCH_ROWS):
        table = pa.Table.from_batches([batch])
        bucket = table["bucket"]
        for number in pc.unique(bucket).to_pylist() if bucketed else [None]:
            part = table if number is None else table.filter(pc.equal(bucket, number))
            if number is None:
                shared = pc.equal(bucket, NO_BUCKET)
                yield Path(), part.filter(pc.invert(shared))
                yield Path(SHARED), part.filter(shared)
            else:
                yield Path(SHARED if number == NO_BUCKET else bucket_folder(number)), part


def _write_parts(parts: Iterator[tuple[Path, pa.Table]], folder: Path, table: str) -> int:
    """Write consecutive rows of one file with one writer, the next file with the next."""
    rows = 0
    current: Path | None = None
    with ExitStack() as stack:
        opened = stack.enter_context(ExitStack())
        writer: pq.ParquetWriter | None = None
        for place, part in parts:
            if not part.num_rows:
                continue
            if place != current or writer is None:
                opened.close()
                writer = opened.enter_context(open_writer(folder / place / "part-000.parquet", table))
                current = place
            writer.write_table(conform(part, table), row_group_size=ROW_GROUP_ROWS)
            rows += part.num_rows
    return rows


def compact_run(path: Path) -> CompactReport:
    """Few sorted files in place of many: every table is written anew, then exchanged as a whole.

    Raises:
        RunError: no run there, or it cannot be written.
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
    after = [file for table in TABLES for file in table_files(path, table)]
    return CompactReport(
        sum(map(len, before.values())), len(after), sizes, sum(file.stat().st_size for file in after), rows
    )


def _compact_table(path: Path, table: str, files: list[Path]) -> int:
    """Write one table anew beside itself, then exchange the folders."""
    fresh = path / f".compacting-{table}"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    try:
        connection = duckdb.connect(":memory:", config={"memory_limit": "1GB", "temp_directory": str(fresh / "spill")})
        listed = ", ".join("'" + str(file).replace("'", "''") + "'" for file in files)
        source = f"read_parquet([{listed}], hive_partitioning = false)"
        count = sum(pq.read_metadata(file).num_rows for file in files)
        if table == "span":
            rows = write_sorted(connection, f"SELECT * EXCLUDE (bucket) FROM {source}", fresh, count)  # noqa: S608
        else:
            reader = connection.sql(f"SELECT * FROM {source} ORDER BY {_SORT[table]}").to_arrow_reader(BATCH_ROWS)  # noqa: S608
            rows = _write_parts(((Path(), pa.Table.from_batches([batch])) for batch in reader), fresh, table)
        connection.close()
        shutil.rmtree(fresh / "spill", ignore_errors=True)
        old = path / replaced_folder(table)
        shutil.rmtree(old, ignore_errors=True)
        os.replace(path / table, old)
        os.replace(fresh, path / table)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return rows
