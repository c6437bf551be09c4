"""Nsight Systems exports, drawn in the documented tables: the same rows and the same joins as a chrome trace.

NVTX push/pop   |--- kvtrace:req-7:load ---|
RUNTIME             |cudaMemcpyAsync| 41
MEMCPY                   41 ..|=======|
"""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from kvtrace.importer.formats import decoders, format_of
from kvtrace.sources import nsight
from kvtrace.sources.nsight import database
from tests.samples import SAMPLES
from tests.unit.sources.given import Found, recorded
from tests.unit.sources.profilers import EPOCH_NS, MACHINE, Export, copies

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture
def export(tmp_path: Path) -> Export:
    return Export(tmp_path / "report.sqlite")


def read(made: Export) -> Found:
    found = recorded(nsight, made.done())
    assert found.losses == []
    return found


def only(made: Export) -> dict[str, Any]:
    (row,) = copies(read(made))
    return row


def said(row: dict[str, Any]) -> dict[str, str]:
    return {entry["key"]: entry["value"] for entry in row["attributes"]}


def test_a_copy_is_a_load_in_unix_time_with_its_call_as_submit(export: Export) -> None:
    row = only(export.call(1000, 41).copy(2001, 5003, 41))
    assert (row["op"], row["tier_from"], row["tier_to"]) == ("load", "host", "gpu")
    assert (row["submit_ns"], row["start_ns"], row["end_ns"]) == (
        EPOCH_NS + 1000, EPOCH_NS + 2001, EPOCH_NS + 5003,
    )  # fmt: skip
    assert (row["bytes"], row["device"], row["stream"]) == (4096, "cuda:0", "20")
    assert (row["name"], row["process"]) == ("Memcpy Host-to-Device (Pinned -> Device)", "host-a/514683")
    assert said(row) == {
        "correlation": "41", "launch": "cudaMemcpyAsync_v3020", "thread": "7", "pid": "514683",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "op", "tier_from", "tier_to"),
    [
        (2, "store", "gpu", "host"), (3, "load", "host", "gpu"), (8, None, "gpu", "gpu"),
        (9, None, "host", "host"), (10, "load", "peer", "gpu"), (11, "load", "host", "gpu"),
        (77, None, "unknown", "unknown"),
    ],
)  # fmt: skip
def test_the_kind_of_a_copy_says_its_way(
    export: Export, kind: int, op: str | None, tier_from: str, tier_to: str
) -> None:
    row = only(export.copy(10, 20, 1, kind))
    assert (row.get("op"), row["tier_from"], row["tier_to"]) == (op, tier_from, tier_to)


def test_a_copy_between_devices_is_on_the_one_that_receives(export: Export) -> None:
    row = only(export.copy(10, 20, 1, 10, deviceId=1, srcDeviceId=1, dstDeviceId=2))
    assert (row["device"], said(row)["from_device"]) == ("cuda:2", "cuda:1")


def test_a_push_pop_range_around_the_call_names_the_request(export: Export) -> None:
    export.range("request:outer", 0, 900).range("kvtrace:inner:load", 100, 200).range(
        None, 300, 400, textId=4
    )
    calls = {50: "outer", 150: "inner", 350: "by-id", 800: "outer", 900: None}
    for at in calls:
        export.call(at, at).copy(5000, 6000, at)
    found = copies(read(export))
    assert {int(said(row)["correlation"]): row.get("request_id") for row in found} == calls


def test_a_start_end_range_belongs_to_no_thread_and_names_nobody(export: Export) -> None:
    found = read(export.range("request:a", 0, 900, eventType=60).call(50, 1).copy(60, 70, 1))
    (row,) = copies(found)
    assert row["attribution"] == "aggregate"
    (kept,) = found.table("span", clock="host")
    assert (kept["name"], kept["request_id"]) == ("request:a", "a")


def test_correlation_ids_count_within_a_process(export: Export) -> None:
    other = MACHINE | 99 << 24
    export.range("request:a", 0, 900).call(50, 1).call(60, 1, pid=99)
    export.copy(100, 200, 1).copy(300, 400, 1, globalPid=other).copy(
        500, 600, 1, globalPid=MACHINE | 98 << 24
    )
    found = {row["start_ns"] - EPOCH_NS: row for row in copies(read(export))}
    assert {at: row.get("request_id") for at, row in found.items()} == {100: "a", 300: None, 500: None}
    assert [row["process"] for row in found.values()] == ["host-a/514683", "host-a/99", "host-a/98"]


def test_the_same_thread_number_of_another_process_is_another_thread(export: Export) -> None:
    row = only(
        export.range("request:a", 0, 900, globalTid=MACHINE | 99 << 24 | 7).call(50, 1).copy(60, 70, 1)
    )
    assert row["attribution"] == "aggregate"


def test_copies_of_graph_nodes_are_nobodys_and_say_so(export: Export) -> None:
    row = only(export.range("request:a", 0, 900).call(50, 1, 2).copy(60, 70, 1, graphNodeId=5))
    assert (row["attribution"], said(row)["cuda_graph"], said(row)["launch"]) == (
        "aggregate", "true", "cudaGraphLaunch_v10000",
    )  # fmt: skip


def test_graphs_traced_as_a_whole_are_told(export: Export) -> None:
    export.db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER)")
    export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=6000, end=8000)
    found = read(export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=9000, end=9500))
    assert found.notes == ["CUDA graphs traced as a whole (2,500 ns): their copies are in no table: 2"]


def test_ranges_keep_their_domain_and_operators_of_emit_nvtx_are_counted(export: Export) -> None:
    export.range("kvbm", 0, None, eventType=75, domainId=3)
    export.range("DynamoConnector.save", 10, 20, domainId=3).range("open", 30, None)
    found = read(export.range("aten::mm, seq = 7, sizes = [[1]]", 10, 20).range("x" * 600, 10, 20))
    (row,) = found.rows["span"]
    assert (row["name"], said(row)["domain"]) == ("DynamoConnector.save", "kvbm")
    assert sorted(note.rpartition(": ")[2] for note in found.notes) == ["1", "1", "1"]


def test_without_the_sessions_beginning_times_are_null_and_the_sessions_are_kept(tmp_path: Path) -> None:
    found = read(Export(tmp_path / "r.sqlite", epoch_ns=None).copy(50, 60, 1))
    (row,) = copies(found)
    assert (row.get("start_ns"), said(row)["trace_start_ns"], row.get("process")) == (None, "50", None)
    assert any("without unix times" in note for note in found.notes)


def test_events_that_the_profiler_says_it_lost_are_losses(export: Export) -> None:
    export.db.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT)")
    export.add("DIAGNOSTIC_EVENT", text="Not all CUDA events might have been collected.")
    export.add("DIAGNOSTIC_EVENT", text="Number of CUDA events collected: 9.")
    found = recorded(nsight, export.done())
    assert [(loss.cause, loss.count) for loss in found.losses] == [("dropped", 1)]


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ({"start": 0, "end": 0}, "impossible_time"), ({"start": -5}, "impossible_time"),
        ({"start": "x"}, "impossible_time"), ({"end": 1.5}, "impossible_time"),
        ({"end": 1}, "negative_duration"), ({"start": 2**63 - 1, "end": 2**63 - 1}, "impossible_time"),
    ],
)  # fmt: skip
def test_a_copy_without_a_time_is_counted_and_the_others_stay(
    export: Export, bad: dict[str, Any], cause: str
) -> None:
    export.copy(**{"start": 50, "end": 60, "correlation": 1} | bad)
    found = recorded(nsight, export.copy(70, 80, 2).done())
    assert [row["start_ns"] - EPOCH_NS for row in copies(found)] == [70]
    assert found.lost() == {cause: 1}


def test_values_that_are_none_are_null_never_0(export: Export) -> None:
    row = only(
        export.copy(10, 20, None, bytes="x", deviceId=-1, streamId=b"\xff", srcKind=1.5, globalPid="p")
    )
    assert not {"bytes", "device", "stream"} & row.keys()
    assert row["name"] == "Memcpy Host-to-Device"


def test_older_columns_are_enough(tmp_path: Path) -> None:
    made = Export(tmp_path / "r.sqlite", """
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, bytes INTEGER, copyKind INTEGER);
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT);
        CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
        CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, nameEnum TEXT, value TEXT);
    """)  # fmt: skip
    made.add("CUPTI_ACTIVITY_KIND_MEMCPY", start=1, end=2, bytes=3, copyKind=2)
    found = read(made.add("NVTX_EVENTS", start=1, end=2, eventType=59, text="request:a"))
    assert [(row.get("op"), row["name"]) for row in found.rows["span"]] == [
        ("store", "Memcpy DtoH"), (None, "request:a"),
    ]  # fmt: skip


def test_a_compressed_export_gives_the_same_rows(export: Export, tmp_path: Path) -> None:
    export.range("request:a", 0, 900).call(50, 1).copy(60, 70, 1)
    plain = export.done()
    packed = tmp_path / "report.sqlite.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert recorded(nsight, packed).rows == recorded(nsight, plain).rows


def test_an_export_that_is_cut_is_a_loss_and_gives_what_can_be_read(export: Export) -> None:
    for at in range(5000):
        export.copy(at, at + 5, at)
    path = export.done()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = recorded(nsight, path)
    assert found.losses


def test_nothing_that_a_database_could_compute_is_run(tmp_path: Path) -> None:
    made = Export(
        tmp_path / "r.sqlite", "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);", epoch_ns=None
    )
    made.db.execute("""CREATE VIEW CUPTI_ACTIVITY_KIND_MEMCPY AS WITH RECURSIVE n(start) AS
        (SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start + 1 AS end FROM n""")
    found = recorded(nsight, made.done())
    assert not any(found.rows.values())
    assert [loss.detail for loss in found.losses] == ["databases without tables of Nsight Systems"]


def test_a_query_that_costs_more_than_the_file_explains_is_stopped(
    export: Export, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_FIRST_STEPS", 0)
    monkeypatch.setattr(database, "_LOOK_EVERY", 10)
    monkeypatch.setattr(database, "STEPS_A_BYTE", 0)
    found = recorded(nsight, export.copy(10, 20, 1).done())
    assert found.losses
    assert not any(found.rows.values())


def test_no_other_sample_looks_like_an_export_and_an_export_like_no_other_format(
    export: Export, tmp_path: Path
) -> None:
    path = export.copy(10, 20, 1).done()
    head = path.read_bytes()[: 1 << 16]
    assert format_of(path) == nsight.FORMAT
    assert [name for name, module in decoders().items() if module.looks_like(head)] == [nsight.FORMAT]
    others = [each for place in (SAMPLES, RECORDED) for each in place.rglob("*") if each.is_file()]
    assert [each for each in others if nsight.looks_like(each.read_bytes()[: 1 << 16])] == []
    foreign = sqlite3.connect(tmp_path / "foreign.sqlite")
    foreign.execute("CREATE TABLE song (title TEXT)")
    foreign.commit()
    assert format_of(tmp_path / "foreign.sqlite") is None


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0", b"SQLite format 3\0" + b"\xff" * 5000])
def test_what_is_no_database_is_a_loss(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(content)
    found = recorded(nsight, path)
    assert not any(found.rows.values())
    assert found.losses


def test_a_session_that_began_twice_has_no_beginning(export: Export) -> None:
    found = read(export.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=EPOCH_NS + 1).copy(10, 20, 1))
    assert copies(found)[0].get("start_ns") is None
