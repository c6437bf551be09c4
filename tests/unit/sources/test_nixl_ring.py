"""NIXL's telemetry ring: events in order, without times; what it lost is said.

capacity 8     read 6          write 2
place          0  1 | 2 .. 5 | 6  7
event          c  d |        | a  b        in order: a b c d
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from kvtrace.importer import import_files
from kvtrace.run import open_run
from kvtrace.sources import nixl_ring
from tests.unit.sources.given import Found, decoded, recorded

RECORDED = Path(__file__).parent / "recorded"
SENT, RECEIVED, SENDS, RECEIPTS, REGISTERED, _, TOOK, POSTED = range(8)
NOT_FOUND, DROPPED = 11, 20


def ring(
    *events: tuple[int, int], capacity: int = 8, first: int = 0, version: int = 4, expected: int | None = None
) -> bytes:
    places = [(0, 0)] * capacity
    for number, event in enumerate(events):
        places[(first + number) % capacity] = event
    write = (first + len(events)) % capacity
    header = struct.pack(
        "<QQIIQQ", write, first, version, version if expected is None else expected, capacity, capacity - 1
    )
    return header + b"".join(struct.pack("<IIQ", kind, 0xBEEF, value) for kind, value in places)


def events(found: Found) -> list[tuple[str, float, str]]:
    """Name, value and place of every event."""
    labels = [{entry["key"]: entry["value"] for entry in row["labels"]} for row in found.table("metric")]
    return [
        (row["name"].removeprefix("nixl_ring.agent_"), row["value"], label["event"])
        for row, label in zip(found.table("metric"), labels, strict=True)
    ]


def test_the_recorded_ring_says_of_each_transfer_what_its_caller_was_told() -> None:
    found = recorded(nixl_ring, RECORDED / "nixl-agent.ring")
    told = [entry["telemetry"] for entry in json.loads((RECORDED / "nixl-transfers.json").read_bytes())
            if "telemetry" in entry]  # fmt: skip
    seen = [(name, value) for name, value, _ in events(found)]
    for name, field in (("xfer_time", "xferDuration"), ("xfer_post_time", "postDuration")):
        assert [value for known, value in seen if known == name] == [float(each[field]) for each in told]
    assert [value for name, value in seen if name in ("tx_bytes", "rx_bytes")] == [
        float(each["totalBytes"]) for each in told
    ]
    assert [seen.count((name, 1.0)) for name in ("tx_requests_num", "rx_requests_num", "err_not_found")] == [
        6, 1, 1,
    ]  # fmt: skip
    assert (found.losses, found.notes) == ([], [nixl_ring.UNTIMED])
    assert all("time_ns" not in row for row in found.table("metric"))


def test_a_full_ring_and_what_its_agent_dropped_make_every_event_of_thirty_transfers() -> None:
    found = recorded(nixl_ring, RECORDED / "nixl-full.ring")
    (dropped,) = (loss for loss in found.losses if loss.cause == "dropped")
    transfers = [name for name, _, _ in events(found) if not name.startswith(("memory", "telemetry"))]
    assert len(transfers) + dropped.count == 30 * 4
    assert found.lost() == {"dropped": dropped.count, "unclean_end": 1}


def test_events_come_in_their_order_also_around_the_end_of_the_ring() -> None:
    found = decoded(nixl_ring, ring((POSTED, 5), (TOOK, 9), (SENT, 100), (SENDS, 1), first=6))
    assert events(found) == [
        ("xfer_post_time", 5.0, "0"), ("xfer_time", 9.0, "1"), ("tx_bytes", 100.0, "2"),
        ("tx_requests_num", 1.0, "3"),
    ]  # fmt: skip
    assert found.losses == []
    assert found.notes[1:] == ["a reader has taken events out of the ring before: they are not in it"]


def test_a_ring_without_events_has_no_rows_and_nothing_to_say() -> None:
    found = decoded(nixl_ring, ring())
    assert (found.rows, found.losses, found.notes) == ({}, [], [])


def test_what_the_agent_dropped_is_a_loss_whatever_number_stands_there() -> None:
    found = decoded(nixl_ring, ring((DROPPED, 3), (SENT, 4), (DROPPED, 2**64 - 1)))
    assert found.lost() == {"dropped": 2**62}
    assert len(events(found)) == 3


def test_an_event_of_an_unknown_type_is_counted_and_the_next_one_keeps_its_place() -> None:
    found = decoded(nixl_ring, ring((21, 1), (RECEIVED, 7), (2**32 - 1, 1)))
    assert events(found) == [("rx_bytes", 7.0, "1")]
    assert found.lost() == {"undecodable": 2}


def test_a_ring_that_is_cut_keeps_what_is_there() -> None:
    whole = ring((SENT, 1), (SENT, 2), (SENT, 3))
    found = decoded(nixl_ring, whole[: 40 + 16 * 2 + 5])
    assert [value for _, value, _ in events(found)] == [1.0, 2.0]
    assert found.lost() == {"undecodable": 1}


@pytest.mark.parametrize("version", [1, 2, 3, 5])
def test_another_version_is_named_and_not_guessed_at(version: int) -> None:
    whole = ring((SENT, 1), version=version)
    assert nixl_ring.looks_like(whole)
    found = decoded(nixl_ring, whole)
    assert (found.rows, [loss.detail for loss in found.losses]) == (
        {}, [f"ring of version {version}; this version reads 4"],
    )  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\0" * 40, b"\0" * 400, ring((SENT, 1))[:39], ring(version=0), ring(version=65),
        ring(version=4, expected=3), ring(capacity=8)[:32] + b"\x08" + b"\0" * 135, ring(capacity=6),
        struct.pack("<QQIIQQ", 8, 0, 4, 4, 8, 7), struct.pack("<QQIIQQ", 0, 0, 4, 4, 1, 0),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit_each_other_are_no_ring(content: bytes) -> None:
    assert not nixl_ring.looks_like(content)
    assert decoded(nixl_ring, content).lost() == {"undecodable": 1}


def test_a_ring_is_imported_by_what_it_is_whatever_its_name(tmp_path: Path) -> None:
    """A position of 10 begins as a protobuf message does."""
    for write in (1, 10, 26):
        (tmp_path / f"agent{write}").write_bytes(ring(*[(SENT, 4)] * write, capacity=64))
    report = import_files([tmp_path / f"agent{write}" for write in (1, 10, 26)], tmp_path / "run")
    assert {item.format for item in report.inputs} == {"nixl-ring"}
    query = "SELECT labels['kvtrace.source'] AS file, sum(value) FROM metric GROUP BY file ORDER BY file"
    assert open_run(tmp_path / "run").sql(query).rows() == [("agent1", 4), ("agent10", 40), ("agent26", 104)]
