"""The joined rows, sorted by request and start, into the tables of the run; run.json last."""

from __future__ import annotations

import shutil
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import polars as pl
import pyarrow as pa

from kvtrace import __version__, schema
from kvtrace.importer.asked_keys import request_keys
from kvtrace.importer.events import key_events
from kvtrace.importer.gathering import gathered
from kvtrace.importer.joining import Joined, joined_rows
from kvtrace.importer.naming import aliases
from kvtrace.importer.one_server import PIDS, one_server
from kvtrace.importer.storage_calls import calls_once
from kvtrace.schema.layout import RUN_FILE
from kvtrace.schema.tables import TABLES
from kvtrace.sinks.parquet.arrow import arrow_schema
from kvtrace.sinks.parquet.sorting import write_sorted
from kvtrace.sinks.parquet.writer import write_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kvtrace.importer.staging import Staging


class Report(Protocol):
    """What one source gave: a file, or whatever sent it while it lasted."""

    @property
    def name(self) -> str:
        """Its file's name, or its address."""

    @property
    def format(self) -> str:
        """What it was read as."""

    @property
    def spans(self) -> int:
        """Span rows."""

    @property
    def other_rows(self) -> int:
        """Rows of other tables."""

    @property
    def lost(self) -> dict[str, int]:
        """What was lost, by cause."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for a person."""


def write_run(
    folder: Path,
    staging: Staging,
    joined: Joined,
    reports: Sequence[Report],
    *,
    keep_content: bool,
    group: str | None,
    kind: str = "import",
) -> dict[str, int]:
    """Write every table and run.json; returns the rows of each table."""
    folder.mkdir(mode=0o700)
    run_id = uuid.uuid4().hex
    scratch = staging.folder / "sorting"
    rows = {
        "span": write_sorted(joined_rows(staging, joined), staging.spans, folder / "span", scratch, run_id)
    }
    seen = staging.facts.table("processes")
    small: dict[str, Iterable[pa.Table]] = {
        "block": key_events(staging, calls_once(staging)),
        "metric": (rows for _, rows in staging.parts("metric")),
        "request_key": [request_keys(staging)],
        "alias": (names.to_arrow() for names in aliases(staging.facts, joined.names)),
        "identity": [_table("identity", list(staging.identities.values()))],
        "process": [_table("process", _processes(staging, seen, joined.engines))],
        "loss": [_table("loss", [loss.row() for loss in (*staging.losses, *joined.losses())])],
    }
    for table in TABLES:
        if table != "span":
            found = gathered(staging.given(table), small.get(table, []), table)
            found = one_server(found) if table == "process" else found
            parts = (_of_run(part, run_id) for part in found if part.num_rows)
            count = write_table(folder / table / "part-000.parquet", table, parts)
            if count:
                rows[table] = count
            else:
                shutil.rmtree(folder / table)
    said = {"kind": kind, "group": group, "content_kept": keep_content}
    _write_meta(folder, run_id, staging, reports, rows, said)
    return rows


def _table(table: str, rows: list[dict[str, Any]]) -> pa.Table:
    target = arrow_schema(table)
    return pa.Table.from_arrays(
        [pa.array([row.get(field.name) for row in rows], field.type) for field in target], schema=target
    )


def _of_run(part: pa.Table, run_id: str) -> pa.Table:
    """The rows belong to the run that is being written."""
    return part.set_column(
        part.column_names.index("run_id"), "run_id", pa.array([run_id] * part.num_rows, pa.string())
    )


def _processes(staging: Staging, seen: pl.DataFrame, engines: dict[str, str]) -> list[dict[str, Any]]:
    """Who recorded, with its first and last record; `engines` are those that logs are of."""
    whole = seen.group_by("process").agg(pl.min("first_ns"), pl.max("last_ns"))
    times = {process: (first, last) for process, first, last in whole.iter_rows()}
    names = ("process", "engine", "host", "role", "product", "version")
    rows = []
    for name, known in sorted(staging.processes.items(), key=lambda item: str(item[0])):
        first, last = times.get(name, (None, None))
        row: dict[str, Any] = {column: known.get(column) for column in names}
        row["engine"] = engines.get(row["engine"], row["engine"])
        times_ns = {"first_ns": known.get("first_ns", first), "last_ns": known.get("last_ns", last)}
        if known.get(PIDS):
            row["attributes"] = {PIDS: known[PIDS]}
        rows.append(row | times_ns | {"instruments": {known.get("instrument") or "otlp": "active"}})
    return rows


def _write_meta(
    folder: Path,
    run_id: str,
    staging: Staging,
    reports: Sequence[Report],
    rows: dict[str, int],
    said: dict[str, Any],
) -> None:
    """run.json: who recorded what, with which versions; its appearance makes the directory a run."""
    described = staging.recordings[0] if staging.recordings else {}
    meta = {
        "schema_version": schema.VERSION,
        "run_id": run_id,
        "kind": said["kind"],
        "group": said["group"],
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "kvtrace_version": __version__,
        "synthetic": described.get("synthetic"),
        "engines": {**(described.get("engines") or {}), **staging.engines} or None,
        "recording": described or None,
        "inputs": [
            {
                "name": report.name,
                "format": report.format,
                "spans": report.spans,
                "other_rows": report.other_rows,
                "lost": report.lost,
                "notes": list(report.notes),
            }
            for report in reports
        ],
        "rows": rows,
        "content_kept": said["content_kept"],
        "content_dropped": dict(sorted(staging.content.items())),
    }
    partial = folder / f"{RUN_FILE}.tmp"
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(meta), indent=2) + b"\n")
    partial.replace(folder / RUN_FILE)
