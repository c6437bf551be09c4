"""Writes a run from literal rows, so that a test can show them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from kvtrace import schema
from kvtrace.run import Run, open_run
from kvtrace.schema.tables import TABLES
from kvtrace.sinks.parquet.arrow import arrow_schema
from kvtrace.sinks.parquet.writer import write_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


def write_run(
    path: Path, meta: Mapping[str, Any] | None = None, **tables: Iterable[Mapping[str, Any]]
) -> Run:
    """A run at `path` with the given tables (span=[...], loss=[...]); missing columns are null."""
    path.mkdir(parents=True)
    (path / "run.json").write_text(
        json.dumps({"schema_version": schema.VERSION, "run_id": "drawn", **(meta or {})})
    )
    for table, rows in tables.items():
        names = [column.name for column in TABLES[table]]
        columns = [
            pa.array([row.get(field.name) for row in rows], field.type) for field in arrow_schema(table)
        ]
        unknown = {name for row in rows for name in row} - set(names)
        assert not unknown, f"{table} has no column {unknown}"
        if rows:
            write_table(
                path / table / "part-0.parquet",
                table,
                pa.Table.from_arrays(columns, schema=arrow_schema(table)),
            )
    return open_run(path)
