"""What a person should know of a run that just ended, counted in its files."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvtrace.schema.layout import table_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.sinks.otlp.delivery import Delivery

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


def delivered(run: Path, delivery: Delivery) -> tuple[str, dict[str, object]]:
    """End the delivery to a collector: what it got, as a sentence and as facts for run.json.

    What it did not get is no loss of the run, which has every row: no bound and no check depends on it.
    """
    done = delivery.close()
    facts: dict[str, object] = {
        "collector": delivery.place, "sent": done.sent, "left_out": done.left_out, "failed": done.failed,
        "reason": done.reason if done.failed else None,
    }  # fmt: skip
    left_out = f", {done.left_out} left out by sampling" if done.left_out else ""
    said = f"{run}: {done.sent} spans sent to {delivery.place}{left_out}"
    if not done.failed:
        return f"{said}.", facts
    return f"{said}; {done.failed} not delivered ({done.reason}). The run itself has them.", facts
