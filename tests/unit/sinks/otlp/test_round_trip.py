from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.importer import import_files
from kvtrace.run import open_run
from kvtrace.sinks.otlp.delivery import Delivery
from tests.unit.sinks.otlp.drawn import PROCESSES, SPANS, drained
from tests.unit.sinks.otlp.receivers import grpc_server, http

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.unit.sinks.otlp.receivers import Received

    Receiver = Callable[[], AbstractContextManager[Received]]

OURS_ALONE = {"trace_id", "span_id", "parent_span_id"}
"""Ids of a request's spans are made for the trace; `test_traces` says how."""


def expected(row: dict[str, Any]) -> dict[str, Any]:
    """A row as any reader of the run sees it: only what is known."""
    shown = {name: value for name, value in row.items() if value is not None and name not in OURS_ALONE}
    return shown | {name: dict(row[name]) for name in ("found_by_tier", "attributes") if name in row}


def imported(path: Path, out: Path) -> list[dict[str, Any]]:
    import_files([path], out)
    rows = open_run(out).sql("SELECT * FROM span ORDER BY start_ns, observer, op").to_dicts()
    dropped = {"run_id", "name", "bucket", *OURS_ALONE}
    for row in rows:  # links are no column: the importer keeps them as they came
        kept = {key: value for key, value in (row["attributes"] or {}).items() if key != "otel.links"}
        row["attributes"] = kept or None
    return [
        {name: value for name, value in row.items() if value is not None and name not in dropped}
        for row in rows
    ]


@pytest.mark.parametrize("receiver", [http, grpc_server])
def test_what_a_collector_got_imports_as_the_same_rows(receiver: Receiver, tmp_path: Path) -> None:
    with receiver() as received:
        delivery = Delivery(received.url)
        delivery.offer(drained())
        done = delivery.close()
    assert (done.sent, done.failed, done.reason) == (len(SPANS), 0, None)
    rows = imported(received.write(tmp_path / "otlp.binpb"), tmp_path / "run")
    wanted = sorted((expected(row) for row in SPANS), key=lambda r: (r["start_ns"], r["observer"], r["op"]))
    assert rows == wanted
    processes = open_run(tmp_path / "run").sql("SELECT process, engine FROM process ORDER BY process").rows()
    assert processes == [(row["process"], row["engine"]) for row in PROCESSES]
