"""NIXL's telemetry of each transfer: what the caller was told, on the caller's clock.

t0_ns      |                                  the caller's clock, in front of the post
startTime  |-- postDuration --|               monotonic, microseconds
           |---------- xferDuration --------|
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kvtrace.importer import import_files
from kvtrace.run import open_run
from kvtrace.sources import nixl_transfers
from kvtrace.sources.nixl_transfers.taking import BORROWED, SINCE_START
from tests.unit.sources.given import decoded, given, recorded

RECORDED = Path(__file__).parent / "recorded" / "nixl-transfers.json"
NS = 1_700_000_000_000_000_000
MS = 1_000_000


def record(start: float = 5_000, **changed: Any) -> dict[str, Any]:
    telemetry = {
        "startTime": start,
        "postDuration": 10,
        "xferDuration": 250,
        "totalBytes": 64,
        "descCount": 2,
    }
    found = {"telemetry": telemetry, "t0_ns": NS, "tag": "UCX_WRITE", "state": "DONE", "backend": "UCX"}
    return {name: value for name, value in (found | changed).items() if value is not None}


def row(*records: Any) -> dict[str, Any]:
    found = given(nixl_transfers, *records)
    assert found.losses == []
    return found.table("span")[-1]


def test_recorded_transfers_have_the_bytes_and_within_a_millisecond_the_times_of_their_caller() -> None:
    found = recorded(nixl_transfers, RECORDED)
    told = [entry for entry in json.loads(RECORDED.read_bytes()) if "telemetry" in entry]
    rows = found.table("span")
    assert len(rows) == len(told) == 7
    for one, caller in zip(rows, told, strict=True):
        assert one["bytes"] == 4 << 20
        assert one["start_ns"] == caller["t0_ns"]
        assert abs(one["end_ns"] - caller["t0_ns"] - caller["py_us"] * 1_000) < MS
    assert [(one["op"], one["component"], one["tier_from"], one["tier_to"]) for one in rows[2:7:2]] == [
        ("store", "nixl.ucx", "unknown", "unknown"),
        ("store", "nixl.posix", "unknown", "disk"),
        ("load", "nixl.posix", "disk", "unknown"),
    ]
    assert [(loss.cause, loss.op, loss.count) for loss in found.losses] == [("impossible_time", "load", 1)]
    assert found.notes == []


def test_one_clock_tells_the_same_distances_as_the_other() -> None:
    rows = recorded(nixl_transfers, RECORDED).table("span")
    offsets = [one["start_ns"] - int(one["attributes"]["monotonic_ns"]) for one in rows]
    assert max(offsets) - min(offsets) < MS


def test_a_transfer_begins_when_its_caller_posted_it() -> None:
    one = row(record())
    assert (one["start_ns"], one["submit_ns"], one["end_ns"]) == (NS, NS, NS + 250_000)
    assert one["attributes"] == {
        "post_ns": "10000", "descriptors": "2", "monotonic_ns": "5000000", "tag": "UCX_WRITE",
        "state": "DONE",
    }  # fmt: skip
    assert (one["evidence"], one["attribution"], one["outcome"]) == ("native", "operation", "ok")


def test_a_transfer_without_the_callers_time_goes_by_the_last_one_that_has_it() -> None:
    found = given(nixl_transfers, record(5_000), record(7_500, t0_ns=None))
    assert found.table("span")[1]["start_ns"] == NS + 2_500_000
    assert found.notes == [f"{BORROWED}: 1"]


def test_without_any_wall_clock_rows_count_from_the_machines_start_and_a_note_says_so() -> None:
    found = given(nixl_transfers, record(5_000, t0_ns=None), record(6_000, t0_ns=None))
    assert [one["start_ns"] for one in found.table("span")] == [5_000_000, 6_000_000]
    assert found.notes == [f"{SINCE_START}: 2"]


def test_the_other_spelling_beside_the_rest_of_an_event_is_the_same() -> None:
    one = row({
        "ev": "recv_xfer_telemetry", "op": "READ", "start_time_us": 5_000, "post_duration_us": 10,
        "xfer_duration_us": 250, "total_bytes": 64, "desc_count": 2, "posted_ns": NS, "request_id": "cmpl-1",
        "local": "VRAM_SEG", "remote": "DRAM", "remote_agent": "far", "rank": 3,
    })  # fmt: skip
    wanted = {
        "op": "load", "bytes": 64, "start_ns": NS, "end_ns": NS + 250_000, "tier_from": "host",
        "tier_to": "gpu", "request_id": "cmpl-1", "attribution": "request", "component": "nixl", "rank": 3,
    }  # fmt: skip
    assert {name: one.get(name) for name in wanted} == wanted
    assert one["attributes"]["peer"] == "far"


@pytest.mark.parametrize(
    ("said", "op"),
    [
        ({"op": "WRITE"}, "store"), ({"operation": "read"}, "load"), ({"direction": "READ"}, "load"),
        ({"tag": "POSIX_READ"}, "load"), ({"tag": "READ_then_WRITE"}, None), ({"tag": "ALREADY"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_direction_is_what_a_record_says_and_else_unknown(said: dict[str, str], op: str | None) -> None:
    one = row(record(tag=None) | said)
    assert one.get("op") == op
    assert ("tier_from" in one) == (op is not None)


def test_what_is_still_under_way_has_no_end() -> None:
    one = row(record(state="PROC"))
    assert (one["outcome"], "end_ns" in one) == ("open", False)


def test_a_transfer_that_failed_is_a_row_where_its_caller_says_when() -> None:
    one = row(record(), {"t0_ns": NS, "op": "READ", "exc": "nixlNotFoundError: NIXL_ERR_NOT_FOUND"})
    assert (one["op"], one["outcome"], one["start_ns"], one["end_ns"]) == ("load", "failed", NS, NS)
    assert one["attributes"]["error"] == "nixlNotFoundError: NIXL_ERR_NOT_FOUND"
    assert "bytes" not in one


def test_what_is_no_record_of_a_transfer_is_counted() -> None:
    found = given(
        nixl_transfers, record(), 7, {}, record(-1), record(telemetry={"startTime": 1}), record(float(2**62)),
    )  # fmt: skip
    assert len(found.table("span")) == 1
    assert found.lost() == {"undecodable": 3, "impossible_time": 2}


@pytest.mark.parametrize("content", [b"[", b'[{"startTime": 1}', b"[1, 2]", b"[{}]", b"[" * 100_000])
def test_a_list_that_is_cut_or_no_list_of_transfers_is_counted(content: bytes) -> None:
    found = decoded(nixl_transfers, content)
    assert found.rows == {}
    assert found.lost()["undecodable"] > 0


def test_a_line_a_record_and_one_list_of_them_are_read_alike(tmp_path: Path) -> None:
    records = [record(at, t0_ns=NS + at) for at in (5_000, 6_000)]
    (tmp_path / "list").write_text(json.dumps(records, indent=1))
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, records)))
    for name in ("list", "lines"):
        report = import_files([tmp_path / name], tmp_path / f"run-{name}")
        assert report.inputs[0].format == "nixl-transfers"
        rows = open_run(tmp_path / f"run-{name}").sql("SELECT op, bytes, end_ns - start_ns AS ns FROM store")
        assert rows.rows() == [("store", 64, 250_000)] * 2
