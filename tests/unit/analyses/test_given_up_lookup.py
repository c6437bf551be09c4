"""An inquiry that the client gave up stays open at the cache's server: nobody waits for it any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from kvtrace.analyses.exposure import exposure
from kvtrace.analyses.ledger import ledger
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

MS = 1_000_000
START = 1_800_000_000_000_000_000


def _run(path: Path) -> Run:
    """The request lives 1000 ms; its lookup timed out after 50 ms, and the server's was never polled."""
    scheduler = {"request_id": "r", "process": "core", "engine": "e", "observer": "scheduler"}
    rows = (
        {"op": "request", "observer": "api", "process": "api", "end_ns": START + 1000 * MS,
         "first_token_ns": START + 900 * MS},
        {"op": "queue", "reason": "policy", "end_ns": START + 400 * MS},
        {"op": "lookup", "start_ns": START + 10 * MS, "end_ns": START + 60 * MS, "outcome": "timeout"},
        {"op": "lookup", "observer": "server", "process": "cache", "start_ns": START + 12 * MS},
    )  # fmt: skip
    spans = [scheduler | {"span_id": n, "start_ns": START} | row for n, row in enumerate(rows, 1)]
    return write_run(path, span=spans, process=[{"process": "cache", "last_ns": START + 5000 * MS}])


def test_the_wait_for_a_lookup_ends_where_the_scheduler_gave_it_up(tmp_path: Path) -> None:
    assert ledger(_run(tmp_path / "run"))["lookup_wait_ns"].to_list() == [50 * MS]


def test_what_follows_a_lookup_that_was_given_up_is_not_exposed_to_it(tmp_path: Path) -> None:
    rows = exposure(_run(tmp_path / "run")).filter(pl.col("window") == "ttft")
    exposed = dict(rows.select("class", "exposed_ns").iter_rows())
    assert exposed == {"compute": None, "lookup": 50 * MS, "queue": 350 * MS, "other": 500 * MS}
