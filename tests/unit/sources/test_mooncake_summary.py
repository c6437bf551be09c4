"""Mooncake's summaries for people: numbers of both pages, against the metrics of the same moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kvtrace.importer import import_files
from kvtrace.importer.formats import format_of
from kvtrace.run import open_run
from kvtrace.sources import mooncake_summary, prometheus
from kvtrace.sources.mooncake_summary.samples import ROUNDED, TOO_FEW, size, snake
from tests.unit.sources.given import Found, decoded, recorded

RECORDED = Path(__file__).parent / "prometheus" / "recorded"
CLIENT, MASTER = (
    RECORDED / "mooncake-client-metrics-summary.txt",
    RECORDED / "mooncake-master-metrics-summary.txt",
)
OLD = (
    "Mem Storage: 1008.00 KB / 30.00 GB (0.0%) | SSD Storage: 0 B / 0 B | Keys: 1 (soft-pinned: 0)"
    " | Clients: 1 | Requests (Success/Total): PutStart=5/5, Ping=608/608,  | Batch Requests"
    " (Req=Success/PartialSuccess/Total, Item=Success/Total): Get:(Req=1/2/4, Item=8/16),"
    " QueryTask=(Req=3/5), MarkTaskToComplete= (Req=6/7),  | Eviction: Success/Attempts=192/193, keys=3532,"
    " size=883.00 MB | Discard: Released/Total=1/2, StagingSize=4 B"
)
"""As masters of 0.3.9 wrote it, with numbers that differ."""
MIB = 1 << 20


def labels(row: dict[str, Any]) -> dict[str, str]:
    found = row["labels"]
    pairs = found if isinstance(found, dict) else {entry["key"]: entry["value"] for entry in found}
    return {key: value for key, value in pairs.items() if key != "kvtrace.source"}


def samples(found: Found, prefix: str = "mooncake_") -> dict[tuple[str, ...], float]:
    """Name and labels' values of every sample, as far as they say more than where it is from."""
    return {
        (row["name"].removeprefix(prefix), *(value for key, value in sorted(labels(row).items())
                                              if key != "kvtrace.page")): row["value"]
        for row in found.table("metric")
    }  # fmt: skip


def kinds(found: Found) -> dict[str, str | None]:
    return {row["name"]: row.get("kind") for row in found.table("metric")}


def master(line: str) -> dict[tuple[str, ...], float]:
    found = decoded(mooncake_summary, line.encode())
    assert found.losses == []
    return samples(found, "mooncake_master_summary.")


def test_the_recorded_master_says_what_its_metrics_page_says() -> None:
    told = samples(recorded(mooncake_summary, MASTER), "mooncake_master_summary.")
    page = samples(recorded(prometheus, RECORDED / "mooncake-master-metrics.txt"))
    assert told[("keys",)] == page[("master_key_count",)] == 13
    assert told[("mem_storage.used_bytes",)] == page[("master_allocated_bytes",)] == 26 * MIB
    assert told[("mem_storage.capacity_bytes",)] == page[("master_total_capacity_bytes",)] == 32 * MIB
    assert told[("eviction.keys",)] == page[("master_evicted_key_count",)] == 6
    assert told[("eviction.size_bytes",)] == page[("master_evicted_size_bytes",)] == 12 * MIB
    assert told[("service_ready", "leader", "serving")] == 1
    assert told[("requests.total_per_s", "PutStart")] == 5.85
    assert told[("batch_requests.partial_success_per_s", "Get")] == 0.19


def test_of_a_recorded_client_nothing_is_left_out_but_the_p95_of_few_calls() -> None:
    """The page says p95<50us of the one call whose sum is 162 us."""
    found = recorded(mooncake_summary, CLIENT)
    told = samples(found, "mooncake_client_summary.")
    assert told[("transfer.write_bytes",)] == 38 * MIB
    assert told[("latency.count", "put")] == 19
    assert told[("latency.highest_bucket_us", "get")] == 200
    assert told[("rpc.count", "PutStart")] == 31
    assert told[("interface.bytes", "read", "batch_get_buffer")] == 6 * MIB
    assert told[("interface.bytes", "write", "put")] == 38 * MIB
    assert told[("ssd.ops", "total")] == 0
    assert not any("p95" in name for name, *_ in told)
    assert ("latency.count", "batch_put") not in told
    assert found.losses == []
    assert found.notes == [f"{ROUNDED}: 7", f"{TOO_FEW}: 12"]


@pytest.mark.parametrize(("calls", "kept"), [(99, 0), (100, 1)])
def test_a_p95_is_kept_where_its_rank_is_within_a_hundredth(calls: int, kept: int) -> None:
    page = f"=== Latency Summary (microseconds) ===\nGet: count={calls}, p95<750μs, max<1000μs\n"
    found = decoded(mooncake_summary, b"=== Transfer Metrics Summary ===\n" + page.encode())
    assert (("latency.p95_below_us", "get") in samples(found, "mooncake_client_summary.")) == kept


def test_older_masters_give_totals_and_newer_ones_rates_under_names_that_differ() -> None:
    told = master(OLD)
    assert told[("requests.total", "Ping")] == 608
    assert told[("batch_requests.partial_success", "Get")] == 2
    assert told[("batch_items.total", "Get")] == 16
    assert (told[("batch_requests.success", "QueryTask")], told[("batch_requests.total", "QueryTask")]) == (
        3,
        5,
    )
    assert told[("batch_requests.total", "MarkTaskToComplete")] == 7
    assert (told[("eviction.success",)], told[("eviction.attempts",)]) == (192, 193)
    assert told[("mem_storage.used_bytes",)] == 1008 * 1024
    assert told[("discard.staging_size_bytes",)] == 4
    assert not any("per_s" in name for name, *_ in told)


def test_what_only_grows_is_a_counter_and_what_is_counted_since_the_last_report_is_none() -> None:
    found = kinds(recorded(mooncake_summary, MASTER))
    wanted = {
        "eviction.keys": "counter", "eviction.alloc_fail": "gauge", "keys": "gauge",
        "requests.success_per_s": "gauge", "promotion.bytes": "counter", "promotion.in_flight": "gauge",
        "ha.lag": "gauge", "ha.last_seq": None,
    }  # fmt: skip
    assert {name: found[f"mooncake_master_summary.{name}"] for name in wanted} == wanted


def test_parts_that_nobody_knows_yet_are_named_and_the_rest_is_read() -> None:
    line = OLD.replace(" | Clients: 1", " | Moons: many | Clients: 1")
    found = decoded(mooncake_summary, line.encode())
    assert found.notes[-1] == ("fields of a master's summary that this version does not read: 'Moons' (1)")
    assert samples(found, "mooncake_master_summary.")[("clients",)] == 1


def test_of_several_summaries_in_one_file_each_row_says_which_it_is_from() -> None:
    found = decoded(mooncake_summary, (OLD + "\n" + CLIENT.read_text() + "\n" + OLD).encode())
    pages: dict[str, set[str]] = {row["name"].split(".")[0]: set() for row in found.table("metric")}
    for row in found.table("metric"):
        pages[row["name"].split(".")[0]].add(labels(row)["kvtrace.page"])
    assert pages == {"mooncake_master_summary": {"0", "2"}, "mooncake_client_summary": {"1"}}


def test_a_report_with_an_interval_has_its_bytes_and_seconds() -> None:
    page = (
        "=== Transfer Metrics Summary ===\n=== Interval Throughput Summary ===\n"
        "Read Throughput: 2.67 MB/s (8.00 MB over 3.00s)\n"
    )
    told = samples(decoded(mooncake_summary, page.encode()), "mooncake_client_summary.")
    assert told == {("interval.seconds", "read"): 3.0, ("interval.bytes", "read"): 8 * MIB}


def test_lines_that_no_summary_has_are_counted_and_cost_themselves() -> None:
    text = CLIENT.read_text().replace("Total Write", "Total Nothing: 7\nrubbish\nGet: count=-1\nTotal Write")
    found = decoded(mooncake_summary, text.encode())
    assert found.lost() == {"undecodable": 3}
    assert samples(found, "mooncake_client_summary.")[("transfer.write_bytes",)] == 38 * MIB


@pytest.mark.parametrize(
    ("text", "bytes_of_it"),
    [("0 B", 0), ("8.00 MB", 8 * MIB), ("1.50 KB", 1536), ("2TB", 2 << 40), ("-1 B", None), ("1e9 B", None),
     ("8.00 MiB", None), ("", None), ("9" * 21 + " B", None), ("٣ MB", None)],
)  # fmt: skip
def test_a_unit_is_1024_of_the_one_before(text: str, bytes_of_it: float | None) -> None:
    assert size(text) == bytes_of_it


def test_names_are_words_with_underscores() -> None:
    assert [snake(name) for name in ("NVMe-oF SSD", "AllocFail", "NoF Eviction", "Batch Get", "§")] == [
        "nvme_of_ssd", "alloc_fail", "nof_eviction", "batch_get", "unnamed",
    ]  # fmt: skip


def test_pages_are_told_from_each_other_by_looking_and_counted_one_by_one(tmp_path: Path) -> None:
    assert {format_of(path) for path in (CLIENT, MASTER)} == {"mooncake-summary"}
    report = import_files([CLIENT, MASTER], tmp_path / "run")
    assert [item.lost for item in report.inputs] == [{}, {}]
    run = open_run(tmp_path / "run")
    query = "SELECT count(*) FROM metric WHERE name LIKE 'mooncake_client_summary.rpc.%'"
    assert run.sql(query).item() == 10


@pytest.mark.parametrize(
    "head",
    [b"", b"Mem Storage: ", b"Mem Storage: 1 B / 2 B", b"Storage: 1 B | Keys: 1", b"Summary", b"role=leader"],
)
def test_what_begins_otherwise_is_no_summary(head: bytes) -> None:
    assert not mooncake_summary.looks_like(head)
