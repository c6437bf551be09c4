"""A run of vLLM and one of LMCache's server become one run: each transfer once, whoever saw it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.importer import import_files
from kvtrace.run import Run, open_run
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000
START = 1_800_000_000_000_000_000
BYTES = 524_288


def _row(
    number: int, op: str, observer: str, start: int, end: int, transfer_id: str, **more: Any
) -> dict[str, Any]:
    tiers = ("host", "gpu") if op == "load" else ("gpu", "host")
    row = {
        "span_id": number, "op": op, "observer": observer, "request_id": "r", "transfer_id": transfer_id,
        "start_ns": START + start * MS, "end_ns": START + end * MS, "tier_from": tiers[0],
        "tier_to": tiers[1],
        "evidence": "shim", "tokens": 256, "process": observer, "attributes": {"engine_id": "7"},
    }  # fmt: skip
    return row | more


CLIENT = (
    _row(1, "store", "client", 0, 30, "r/store/1", submit_ns=START),
    _row(2, "store", "client", 20, 60, "r/store/2", submit_ns=START + 20 * MS),
    _row(3, "load", "client", 100, 120, "r/load/1", submit_ns=START + 100 * MS),
)
SERVER = (
    _row(11, "store", "server", 5, 25, "r#1", bytes=BYTES, evidence="native"),
    _row(12, "store", "server", 28, 50, "r#2", bytes=BYTES, evidence="native"),
    _row(13, "load", "server", 104, 115, "r#3", bytes=BYTES, evidence="native"),
)
SPANS = tuple(row | {"span_id": row["span_id"] + 10, "trace_id": "0" * 31 + "1"} for row in SERVER)


def _both(tmp_path: Path, *sides: tuple[dict[str, Any], ...]) -> Run:
    runs = [write_run(tmp_path / f"side-{number}", span=list(side)) for number, side in enumerate(sides)]
    return open_run(import_files([run.path for run in runs], tmp_path / "both").run)


def _transfers(run: Run) -> list[dict[str, Any]]:
    return run.connection().sql("FROM transfer ORDER BY start_ns").pl().to_dicts()


def test_client_and_server_give_one_row_a_transfer(tmp_path: Path) -> None:
    rows = _transfers(_both(tmp_path, CLIENT, SERVER))
    assert [row["transfer_id"] for row in rows] == ["r#1", "r#2", "r#3"]
    assert [(row["observer"], row["bytes"], row["ranks"]) for row in rows] == [("server", BYTES, 1)] * 3
    assert [row["submit_ns"] for row in rows] == [row["submit_ns"] for row in CLIENT]


def test_the_servers_own_spans_add_nothing(tmp_path: Path) -> None:
    rows = _transfers(_both(tmp_path, CLIENT, SERVER, SPANS))
    assert [(row["transfer_id"], row["bytes"]) for row in rows] == [(f"r#{n}", BYTES) for n in (1, 2, 3)]


def test_a_run_that_was_tied_before_stays_so(tmp_path: Path) -> None:
    once = _both(tmp_path, CLIENT, SERVER)
    again = open_run(import_files([once.path], tmp_path / "again").run)
    assert _transfers(again) == [
        row | {"run_id": found["run_id"]}
        for row, found in zip(_transfers(once), _transfers(again), strict=True)
    ]


def test_one_side_alone_keeps_its_own_ids(tmp_path: Path) -> None:
    rows = _transfers(_both(tmp_path, CLIENT))
    assert [row["transfer_id"] for row in rows] == ["r/store/1", "r/store/2", "r/load/1"]
    assert {row["observer"] for row in rows} == {"client"}


def test_a_server_that_was_restarted_counts_anew_and_is_tied_all_the_same(tmp_path: Path) -> None:
    later = {"start_ns": START + 28 * MS, "process": "another", "transfer_id": "r#1", "request_id": "r"}
    rows = _transfers(_both(tmp_path, CLIENT[1:2], (SERVER[1] | later,)))
    assert [(row["transfer_id"], row["observer"]) for row in rows] == [("r#1", "server")]


def test_what_may_be_either_stays_apart_and_says_so(tmp_path: Path) -> None:
    lost_one = (SERVER[1] | {"start_ns": START + 22 * MS},)
    run = _both(tmp_path, CLIENT[:2], lost_one)
    assert len(_transfers(run)) == 3
    losses = run.connection().sql("SELECT cause, count, op FROM loss").fetchall()
    assert losses == [("ambiguous_join", 2, "store")]
