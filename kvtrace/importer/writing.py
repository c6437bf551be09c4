"""The joined rows, sorted by request and start, into the tables of the run; run.json last."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl
import pyarrow as pa

import kvtrace
from kvtrace import schema
from kvtrace.importer.joining import Joined
from kvtrace.schema.layout import RUN_FILE
from kvtrace.schema.tables import TABLES
from kvtrace.sinks.parquet.arrow import arrow_schema
from kvtrace.sinks.parquet.compact import write_sorted
from kvtrace.sinks.parquet.writer import write_table

if TYPE_CHECKING:
    from kvtrace.importer.reading import InputReport
    from kvtrace.importer.staging import Staging

_ROWS = """
SELECT $run_id AS run_id, s.* EXCLUDE (id_kind, request_id, reason), coalesce(r.request_id, s.request_id) AS request_id,
    CASE WHEN s.op = 'drop' AND s.reason = 'unknown' AND s.request_id IN (SELECT request_id FROM all_there)
         THEN 'duplicate' ELSE s.reason END AS reason
FROM staged s LEFT JOIN resolved r
  ON s.request_id = r.alias AND s.id_kind IS DISTINCT FROM 'internal'
  AND (r.start_ns IS NULL OR r.start_ns = s.start_ns)
"""
_ALL_THERE = """
CREATE TEMP TABLE all_there AS
SELECT request_id FROM staged WHERE op = 'lookup' AND requested_tokens > 0
GROUP BY request_id HAVING min(found_tokens) >= max(requested_tokens)
"""
"""Requests whose every lookup found all that it asked for: a store of theirs that stored nothing is a duplicate."""


def write_run(
    folder: Path, staging: Staging, joined: Joined, reports: Sequence[InputReport], *, keep_content: bool, group: str | None
) -> dict[str, int]:
    """Write every table and run.json; returns the rows of each table."""
    folder.mkdir(mode=0o700)
    run_id = uuid.uuid4().hex
    connection = joined.connection
    connection.execute(_ALL_THERE)
    rows = {"span": write_sorted(connection, _ROWS.replace("$run_id", f"'{run_id}'"), folder / "span", staging.spans)}
    losses = [*staging.losses, *joined.losses]
    small: dict[str, list[dict[str, Any]]] = {
        "request_key": staging.keys,
        "alias": joined.aliases.to_dicts(),
        "identity": list(staging.identities.values()),
        "process": _processes(staging, connection.sql(
            "SELECT process, min(start_ns) AS first_ns, max(greatest(start_ns, end_ns)) AS last_ns FROM staged "
            "WHERE process IS NOT NULL GROUP BY process"
        ).pl()),
        "loss": [loss.row() for loss in losses],
    }  # fmt: skip
    for table in TABLES:
        if table != "span":
            found = [*staging.tables.get(table, []), _table(table, small.get(table, []))]
            count = sum(part.num_rows for part in found)
            if count:
                rows[table] = write_table(
                    folder / table / "part-000.parquet", table, (_of_run(part, run_id) for part in found)
                )
    _write_meta(folder, run_id, staging, reports, rows, keep_content=keep_content, group=group)
    return rows


def _table(table: str, rows: list[dict[str, Any]]) -> pa.Table:
    target = arrow_schema(table)
    return pa.Table.from_arrays(
        [pa.array([row.get(field.name) for row in rows], field.type) for field in target], schema=target
    )


def _of_run(part: pa.Table, run_id: str) -> pa.Table:
    """The rows belong to the run that is being written."""
    return part.set_column(part.column_names.index("run_id"), "run_id", pa.array([run_id] * part.num_rows, pa.string()))


def _processes(staging: Staging, seen: pl.DataFrame) -> list[dict[str, Any]]:
    """Who recorded, with its first and last record."""
    times = {process: (first, last) for process, first, last in seen.iter_rows()}
    names = ("process", "engine", "host", "role", "product", "version")
    rows = []
    for name, known in sorted(staging.processes.items(), key=lambda item: str(item[0])):
        first, last = times.get(name, (None, None))
        row: dict[str, Any] = {column: known.get(column) for column in names}
        rows.append(row | {"first_ns": first, "last_ns": last, "instruments": {"otlp": "active"}})
    return rows


def _write_meta(
    folder: Path, run_id: str, staging: Staging, reports: Sequence[InputReport], rows: dict[str, int],
    *, keep_content: bool, group: str | None,
) -> None:  # fmt: skip
    """run.json: who recorded what, with which versions; its appearance makes the directory a run."""
    described = staging.recordings[0] if staging.recordings else {}
    meta = {
        "schema_version": schema.VERSION,
        "run_id": run_id,
        "kind": "import",
        "group": group,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "kvtrace_version": kvtrace.__version__,
        "synthetic": described.get("synthetic"),
        "engines": described.get("engines"),
        "recording": described or None,
        "inputs": [
            {"name": report.path.name, "format": report.format, "spans": report.spans, "other_rows": report.other_rows,
             "lost": report.lost, "notes": list(report.notes)}
            for report in reports
        ],
        "rows": rows,
        "content_kept": keep_content,
        "content_dropped": dict(sorted(staging.content.items())),
    }  # fmt: skip
    partial = folder / f"{RUN_FILE}.tmp"
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(meta), indent=2) + b"\n")
    os.replace(partial, folder / RUN_FILE)
