"""What a person should know of a run that just ended, counted in its files."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvtrace.schema.layout import PARQUET, table_files
from kvtrace.sinks.parquet.arrow import arrow_schema
from kvtrace.sinks.parquet.writer import write_table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.sinks.otlp.delivery import Delivered, Delivery

_HARMLESS = "duplicate"


def lines(run: Path) -> Iterator[str]:
    """Requests, rows and processes; then what was lost."""
    requests, rows = _requests(run)
    roles = Counter(row["role"] or "unknown" for row in _rows(run, "process", ["role"]))
    who = ", ".join(f"{count} {role}" if count > 1 else role for role, count in sorted(roles.items()))
    processes = f"{sum(roles.values())} process{'' if sum(roles.values()) == 1 else 'es'} ({who})"
    yield f"{run}: {requests} request{'' if requests == 1 else 's'}, {rows} rows from {processes}."
    lost: Counter[str] = Counter()
    for row in _rows(run, "loss", ["cause", "count"]):
        lost[row["cause"]] += row["count"] or 0
    named = ", ".join(f"{count} {cause}" for cause, count in sorted(lost.items()) if cause != _HARMLESS)
    yield f"{run}: lost: {named}; kvtrace info says where." if named else f"{run}: nothing was lost."


def _requests(run: Path) -> tuple[int, int]:
    """How many requests there are, whoever saw them, and how many rows of operations."""
    rows = 0
    names: list[pa.Array] = []
    for file in table_files(run, "span"):
        for batch in pq.ParquetFile(file).iter_batches(columns=["op", "request_id"]):
            rows += batch.num_rows
            own = batch.filter(pc.equal(batch["op"], "request"))["request_id"]
            names.append(pc.unique(own.cast(pa.string())).drop_null())
    return pc.count_distinct(pa.chunked_array(names, pa.string())).as_py(), rows


def _rows(run: Path, table: str, columns: list[str]) -> Iterator[dict[str, Any]]:
    for file in table_files(run, table):
        yield from pq.read_table(file, columns=columns, partitioning=None).to_pylist()


def delivered(run: Path, run_id: str, delivery: Delivery) -> str:
    """End the delivery to a collector, and count what it did not get as a loss of the run."""
    done = delivery.close()
    left_out = f", {done.left_out} left out by sampling" if done.left_out else ""
    said = f"{run}: {done.sent} spans sent to {delivery.place}{left_out}"
    if not done.failed:
        return f"{said}."
    _write_loss(run, run_id, delivery.place, done)
    return f"{said}; {done.failed} not delivered ({done.reason}). The run itself has them."


def _write_loss(run: Path, run_id: str, place: str, done: Delivered) -> None:
    row = {
        "run_id": run_id, "source": place, "cause": "exporter_failure", "count": done.failed,
        "from_ns": done.from_ns, "to_ns": done.to_ns,
        "detail": f"rows of this run that the collector did not take ({done.reason}); the run has them",
    }  # fmt: skip
    target = arrow_schema("loss")
    table = pa.Table.from_arrays([pa.array([row.get(f.name)], f.type) for f in target], schema=target)
    write_table(run / "loss" / f"otlp-{os.urandom(4).hex()}{PARQUET}", "loss", table)
