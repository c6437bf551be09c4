"""Logs of Mooncake's master and clients: what happened, when, as far as a log says it.

08:11:14        :15 .. :17                :24                :34
| report 0      | puts without room       | report 1         | report 2, nothing failed since
|               | evictions: 3 3 3 2      |
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from kvtrace.analyses.counters import counters
from kvtrace.importer import import_files
from kvtrace.importer.formats import format_of
from kvtrace.run import open_run
from kvtrace.sources import mooncake_log
from kvtrace.sources.mooncake_log.meaning import BY_DATE, ENGINE, NO_RECORDS, NO_ZONE, OTHERS
from tests.unit.sources.given import Found, decoded, recorded

RECORDED = Path(__file__).parent / "recorded"
MASTER, CLIENT = RECORDED / "mooncake-master.log", RECORDED / "mooncake-client.log"
MIB = 1 << 20
YEAR = "I20260412 10:46:23.616050 53919 master_service.cpp:3092] client_id=1-2, action=client_expired\n"
NO_ROOM = (
    "W20260412 10:46:23.526088 32176 client_service.cpp:1890] Failed to start put operation for key=a/b c"
    " due to insufficient space. Consider lowering eviction_high_watermark_ratio or mounting more segments.\n"
)


def ns(
    year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0, *, micro: int = 0
) -> int:
    at = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    return (int(at.timestamp()) * 1_000_000 + micro) * 1_000


def value(found: Found, name: str) -> list[tuple[int, float]]:
    """Time and value of every sample of a name."""
    return [(row["time_ns"], row["value"]) for row in found.table("metric") if row["name"] == name]


def of_this_year(path: Path, tmp_path: Path) -> Path:
    """The recording as if it had the year, so that no file's date decides."""
    text = path.read_text()
    for level in "IWE":
        text = text.replace(f"\n{level}1130 ", f"\n{level}20261130 ")
    copied = tmp_path / path.name
    copied.write_text(text)
    return copied


def test_a_masters_reports_are_samples_at_their_times(tmp_path: Path) -> None:
    found = recorded(mooncake_log, of_this_year(MASTER, tmp_path))
    keys = value(found, "mooncake_master_summary.keys")
    assert keys == [
        (ns(2026, 11, 30, 8, 11, 14, micro=93322), 0.0), (ns(2026, 11, 30, 8, 11, 24, micro=94185), 14.0),
        (ns(2026, 11, 30, 8, 11, 34, micro=94475), 0.0),
    ]  # fmt: skip
    assert [one for _, one in value(found, "mooncake_master_summary.eviction.keys")] == [0.0, 11.0, 12.0]


def test_allocations_that_failed_are_counted_since_the_report_before(tmp_path: Path) -> None:
    """The client was refused five times before the second report, and never again."""
    failed = value(recorded(mooncake_log, of_this_year(MASTER, tmp_path)),
                   "mooncake_master_summary.eviction.alloc_fail")  # fmt: skip
    assert [one for _, one in failed] == [0.0, 5.0, 0.0]
    refused = recorded(mooncake_log, of_this_year(CLIENT, tmp_path)).table("span", op="store")
    assert len(refused) == 5


def test_what_a_master_evicted_is_what_its_reports_count(tmp_path: Path) -> None:
    found = recorded(mooncake_log, of_this_year(MASTER, tmp_path))
    rows = found.table("span", op="evict", reason="capacity", outcome="ok")
    assert [int(row["attributes"]["removed_keys"]) for row in rows] == [3, 3, 3, 2, 1]
    assert rows[0]["attributes"]["log_line"] == "master_service.cpp:10795"
    assert {row["observer"] for row in rows} == {"server"}


def test_a_put_without_room_is_a_failed_store_of_its_key() -> None:
    found = decoded(mooncake_log, NO_ROOM.encode())
    (row,), (block,) = found.table("span"), found.table("block")
    wanted = {
        "op": "store",
        "outcome": "failed",
        "reason": "no_room",
        "attribution": "key",
        "observer": "client",
    }
    assert {name: row[name] for name in wanted} == wanted
    assert row["start_ns"] == row["end_ns"] == ns(2026, 4, 12, 10, 46, 23, micro=526088)
    assert (block["event"], block["mode"], block["key"], block["time_ns"]) == (
        "failed", "write", "a/b c", row["start_ns"],
    )  # fmt: skip


def test_a_transfer_engine_says_what_it_moved_in_the_seconds_before(tmp_path: Path) -> None:
    """Twenty writes of 4 MiB in two seconds."""
    found = recorded(mooncake_log, of_this_year(RECORDED / "mooncake-engine.log", tmp_path))
    at = ns(2026, 11, 30, 8, 49, 49, micro=608527)
    told = {name: value(found, f"{ENGINE}.{name}") for name in ("interval_s", "bytes_per_s", "tasks")}
    assert told == {"interval_s": [(at, 2.0)], "bytes_per_s": [(at, 40 * MIB)], "tasks": [(at, 20.0)]}
    assert told["bytes_per_s"][0][1] * 2 == 20 * 4 * MIB
    shares = value(found, f"{ENGINE}.share_of_tasks")
    assert len(shares) == 8
    assert sum(share for _, share in shares) == pytest.approx(1)


def test_older_transfer_engines_say_their_throughput_alone() -> None:
    line = (
        "I20260412 10:46:23.000000 1 transfer_engine.cpp:387] [Metrics] Transfer Engine Throughput: 2.50 MB/s"
    )
    found = decoded(mooncake_log, f"{line} (over last 5s)\n".encode())
    assert [(row["name"], row["value"]) for row in found.table("metric")] == [
        (f"{ENGINE}.interval_s", 5.0), (f"{ENGINE}.bytes_per_s", 2.5 * MIB),
    ]  # fmt: skip


def test_a_client_that_was_lost_is_a_row_without_an_operation() -> None:
    (row,) = decoded(mooncake_log, YEAR.encode()).table("span")
    assert (row["name"], "op" in row, row["attributes"]["client_id"]) == ("client_expired", False, "1-2")
    mounted = YEAR.replace("action=client_expired", "action=mount_segment, segment_name=10.0.0.1:17")
    (row,) = decoded(mooncake_log, mounted.encode()).table("span")
    assert row["attributes"]["segment"] == "10.0.0.1:17"


def test_a_clients_report_spans_the_lines_below_its_record(tmp_path: Path) -> None:
    found = recorded(mooncake_log, of_this_year(CLIENT, tmp_path))
    assert value(found, "mooncake_client_summary.transfer.write_bytes") == [
        (ns(2026, 11, 30, 8, 11, 18, micro=115087), 50.0 * (1 << 20)),
        (ns(2026, 11, 30, 8, 11, 30, micro=120997), 51.0 * (1 << 20)),
    ]  # fmt: skip
    assert found.losses == []


def test_a_record_ends_the_report_above_it_and_lines_below_it_are_nobodys() -> None:
    text = (
        "I20260412 10:46:23.000000 1 client_metric.cpp:205] Client Metrics Report:\n"
        "=== Transfer Metrics Summary ===\nTotal Read: 8.00 MB\n" + YEAR + "Total Write: 8.00 MB\n"
    )
    found = decoded(mooncake_log, text.encode())
    assert [row["name"] for row in found.table("metric")] == ["mooncake_client_summary.transfer.read_bytes"]
    assert f"{NO_RECORDS}: 1" in found.notes


def test_without_a_year_the_files_own_date_gives_it_and_the_notes_say_so(tmp_path: Path) -> None:
    path = tmp_path / "master.log"
    path.write_text(YEAR.replace("I20260412", "I1231") + YEAR.replace("I20260412", "I0101"))
    os.utime(path, ns=(0, ns(2027, 1, 2)))
    found = recorded(mooncake_log, path)
    assert [row["start_ns"] for row in found.table("span")] == [
        ns(2026, 12, 31, 10, 46, 23, micro=616050), ns(2027, 1, 1, 10, 46, 23, micro=616050),
    ]  # fmt: skip
    assert found.notes == [f"{NO_ZONE}: 2", f"{BY_DATE}: 2"]


def test_a_record_whose_time_is_none_is_counted() -> None:
    found = decoded(mooncake_log, YEAR.replace("20260412", "20261350").encode())
    assert (found.rows, found.lost()) == ({}, {"impossible_time": 1})


def test_what_means_nothing_here_is_counted_and_left_out(tmp_path: Path) -> None:
    found = recorded(mooncake_log, of_this_year(MASTER, tmp_path))
    notes = dict(note.rsplit(": ", 1) for note in found.notes)
    records = sum(line[:1] in "IWE" and line[1:2] == "2" for line in
                  of_this_year(MASTER, tmp_path).read_text().splitlines())  # fmt: skip
    meant = len(found.table("span")) + 3
    assert int(notes[OTHERS]) + meant == records
    assert notes[NO_RECORDS] == "1"


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-30 08:11:15 [core.py:402] init engine\n",
        "(EngineCore pid=12) WARNING 11-30 08:11:15 [core.py:402] x\n",
        "[2026-11-30 04:06:31,780] LMCache INFO: x (session.py:12:lmcache.v1.session)\n",
        "[2026-11-30 04:06:31 TP0] Prefill batch\n",
    ],
)
def test_a_log_in_which_an_engine_speaks_is_that_engines(line: str) -> None:
    assert mooncake_log.looks_like(YEAR.encode())
    assert not mooncake_log.looks_like((YEAR + line).encode())


@pytest.mark.parametrize(
    "head", [b"", b"I1130 x", b"I1130 08:11:24.094185 1 server.cc:1] started\n", b"\xff" * 99]
)
def test_another_programs_glog_is_not_mooncakes(head: bytes) -> None:
    assert not mooncake_log.looks_like(head)


def test_a_folder_of_both_logs_is_imported_and_says_who_wrote_them(tmp_path: Path) -> None:
    assert {format_of(path) for path in (MASTER, CLIENT)} == {"mooncake-log"}
    report = import_files([MASTER, CLIENT], tmp_path / "run")
    assert [item.lost for item in report.inputs] == [{}, {}]
    run = open_run(tmp_path / "run")
    rows: list[Any] = run.sql("SELECT process, role, product FROM process ORDER BY process").rows()
    assert rows == [
        ("mooncake-client.log", "client", "mooncake"),
        ("mooncake-master.log", "server", "mooncake"),
    ]
    assert run.sql("SELECT count(*) FROM store WHERE reason = 'no_room'").item() == 5


def test_reports_of_one_log_are_pages_of_which_counters_grow(tmp_path: Path) -> None:
    """0, 11 and 12 keys evicted; a rate, and what is counted since the report before, is no counter."""
    import_files([of_this_year(MASTER, tmp_path)], tmp_path / "run")
    found = counters(open_run(tmp_path / "run")).filter(pl.col("increase") > 0)
    assert dict(found.select("name", "increase").rows()) == {
        f"mooncake_master_summary.{part}.{name}": grown
        for part in ("eviction", "mem_eviction")
        for name, grown in (("success", 5), ("attempts", 5), ("keys", 12), ("size_bytes", 24 * MIB))
    }


@pytest.mark.parametrize("file", ["master.cpp", "client.cpp", "segment.cpp"])
def test_a_log_of_another_program_whose_file_is_called_the_same_is_not_mooncake_s(file: str) -> None:
    """Mesos' master and brpc's examples write glog too: no process of Mooncake comes out of them."""
    line = f"I1130 09:00:00.123456 12345 {file}:383] Master 2a (host) started on 10.0.0.1:5050\n"
    assert not mooncake_log.looks_like(line.encode() * 3)
