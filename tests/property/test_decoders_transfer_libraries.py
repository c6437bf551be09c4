"""Laws of the decoders of NIXL, Mooncake and KVBM: what was drawn comes back, damage costs itself."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrace.sources import kvbm_recorder, mooncake_log, mooncake_summary, nixl_ring, nixl_transfers
from kvtrace.sources.nixl_ring import DROPPED, NAMES
from tests.property.test_decoders_dynamo import HARD, JSON, is_sound, places, put
from tests.unit.sources.given import decoded
from tests.unit.sources.given import given as lines_given
from tests.unit.sources.test_kvbm_recorder import LIFE, admitted, asked, finished

RECORDED = Path(__file__).parents[1] / "unit" / "sources" / "recorded"
PAGES = RECORDED.parent / "prometheus" / "recorded"
TRANSFERS = json.loads((RECORDED / "nixl-transfers.json").read_bytes())
LINES: dict[Any, list[bytes]] = {
    nixl_transfers: [json.dumps(record).encode() for record in TRANSFERS],
    kvbm_recorder: [json.dumps(record).encode() for record in LIFE],
    mooncake_log: [
        line
        for name in ("client", "engine", "master")
        for line in (RECORDED / f"mooncake-{name}.log").read_bytes().splitlines()
    ],
    mooncake_summary: (PAGES / "mooncake-client-metrics-summary.txt").read_bytes().splitlines()
    + (PAGES / "mooncake-master-metrics-summary.txt").read_bytes().splitlines(),
}
MODULES = pytest.mark.parametrize("module", LINES, ids=lambda module: module.FORMAT)
RECORDS = pytest.mark.parametrize("module", [nixl_transfers, kvbm_recorder], ids=lambda module: module.FORMAT)
EVENTS = st.lists(st.tuples(st.integers(0, len(NAMES) - 1), st.integers(0, 2**53)), max_size=15)
WORD = st.integers(0, 2**32 - 1)


def ring(events: list[tuple[int, int]], first: int, other: int, capacity: int = 16) -> bytes:
    places_of = [(other, other)] * capacity
    for number, event in enumerate(events):
        places_of[(first + number) % capacity] = event
    header = struct.pack("<QQIIQQ", (first + len(events)) % capacity, first, 4, 4, capacity, capacity - 1)
    return header + b"".join(struct.pack("<IIQ", kind, other, value) for kind, value in places_of)


@HARD
@given(events=EVENTS, first=st.integers(0, 15), other=WORD)
def test_the_events_of_a_ring_come_back_in_their_order_wherever_it_begins(
    events: list[tuple[int, int]], first: int, other: int
) -> None:
    """What lies in the places between, and in the bytes that nobody set, is nobody's."""
    content = ring(events, first, other)
    found = decoded(nixl_ring, content)
    assert nixl_ring.looks_like(content)
    assert [(row["name"], row["value"]) for row in found.table("metric")] == [
        (f"nixl_ring.{NAMES[kind]}", float(value)) for kind, value in events
    ]
    lost = found.lost()
    assert lost.get("dropped", 0) == sum(value for kind, value in events if kind == DROPPED)
    assert lost.get("unclean_end", 0) == (len(events) == 15)


@HARD
@given(content=st.binary(max_size=400), head=st.lists(WORD | st.integers(0, 20), min_size=7, max_size=7))
def test_no_bytes_of_a_ring_raise(content: bytes, head: list[int]) -> None:
    hostile = struct.pack("<QQIIQQ", *(each % 2**32 for each in head[:6])) + content
    for found in (decoded(nixl_ring, content), decoded(nixl_ring, hostile)):
        is_sound(found)


@HARD
@given(cut=st.integers(0, 40 + 16 * 16), events=EVENTS)
def test_a_ring_that_is_cut_gives_what_came_before_and_counts_the_rest(
    cut: int, events: list[tuple[int, int]]
) -> None:
    found = decoded(nixl_ring, ring(events, 0, 7)[:cut])
    there = max(0, (cut - 40) // 16)
    assert len(found.table("metric")) == min(len(events), there if cut >= 40 else 0)
    missing = len(events) - min(len(events), there) if cut >= 40 else 1
    assert found.lost().get("undecodable", 0) == missing


COUNTS = st.integers(0, 10**12)


@HARD
@given(
    start=COUNTS, post=COUNTS, length=COUNTS, size=st.integers(0, 2**53), count=st.integers(0, 10**6),
    posted=st.integers(1, 9 * 10**18), spelling=st.sampled_from(nixl_transfers.taking.SPELLINGS),
    below=st.sampled_from([None, "telemetry", "stats"]), way=st.sampled_from(["READ", "WRITE"]),
)  # fmt: skip
def test_a_transfer_comes_back_whatever_its_numbers_are_called(
    start: int, post: int, length: int, size: int, count: int, posted: int, spelling: tuple[str, ...],
    below: str | None, way: str,
) -> None:  # fmt: skip
    five = dict(zip(spelling, (start, post, length, size, count), strict=True))
    record = {"posted_ns": posted, "op": way, **({below: five} if below else five)}
    found = lines_given(nixl_transfers, record)
    assert found.losses == []
    (row,) = found.table("span")
    assert (row["start_ns"], row["end_ns"], row["bytes"]) == (posted, posted + length * 1_000, size)
    assert row["op"] == {"READ": "load", "WRITE": "store"}[way]
    said = {"post_ns": post * 1_000, "descriptors": count, "monotonic_ns": start * 1_000}
    assert {name: int(row["attributes"][name]) for name in said} == said


@HARD
@given(
    asks=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans()), min_size=1, max_size=8)
)
def test_every_inquiry_of_a_request_is_one_row_with_its_last_answer(
    asks: list[tuple[int, int, bool]],
) -> None:
    """An inquiry lasts until the request is admitted, or is over."""
    records: list[dict[str, Any]] = []
    inquiries: list[list[tuple[int, int]]] = [[]]
    for ms, (computed, matched, admits) in enumerate(asks):
        records.append(asked(ms, computed, matched))
        inquiries[-1].append((computed, matched))
        if admits:
            records.append(admitted(ms, matched))
            inquiries.append([])
    found = lines_given(kvbm_recorder, *records, finished(99))
    told = [answers for answers in inquiries if answers]
    rows = found.table("span", op="lookup")
    assert [int(row["attributes"]["calls"]) for row in rows] == [len(answers) for answers in told]
    assert [row["found_tokens"] for row in rows] == [
        computed + matched if matched else 0 for computed, matched in (answers[-1] for answers in told)
    ]
    assert [row["attempt"] for row in rows] == list(range(1, len(told) + 1))
    assert len(found.table("span", op="request")) == 1


@RECORDS
@HARD
@given(data=st.data())
def test_a_record_with_anything_anywhere_is_rows_or_losses(module: Any, data: st.DataObject) -> None:
    record = json.loads(data.draw(st.sampled_from(LINES[module])))
    for _ in range(data.draw(st.integers(1, 3))):
        record = put(record, data.draw(st.sampled_from(places(record))), data.draw(JSON))
    content = json.dumps(record).encode() + b"\n"
    module.looks_like(content)
    is_sound(decoded(module, content))


@MODULES
@HARD
@given(data=st.data(), junk=st.lists(st.binary(max_size=40), max_size=4))
def test_lines_of_anything_cost_only_themselves(module: Any, data: st.DataObject, junk: list[bytes]) -> None:
    """Of a report that spans lines, one that is no part of it is left out, and the next one is read."""
    lines = list(LINES[module])
    whole = decoded(module, b"\n".join(lines))
    for each in junk:
        bad = b"\xff" + each.replace(b"\n", b"").replace(b":", b"")
        lines.insert(data.draw(st.integers(0, len(lines))), bad)
    found = decoded(module, b"\n".join(lines), piece=data.draw(st.integers(1, 5000)))
    assert found.rows == whole.rows
    counted = sum(loss.count for loss in found.losses) - sum(loss.count for loss in whole.losses)
    assert counted == (0 if module is mooncake_log else len(junk))


@MODULES
@HARD
@given(cut=st.integers(0, 20_000), piece=st.integers(1, 4000))
def test_a_file_that_is_cut_keeps_what_came_before(module: Any, cut: int, piece: int) -> None:
    content = b"\n".join(LINES[module])[:cut]
    found = decoded(module, content, piece=piece)
    is_sound(found)
    assert found.lost().get("undecodable", 0) <= 1


@MODULES
@HARD
@given(data=st.data())
def test_bytes_anywhere_in_a_line_raise_nothing(module: Any, data: st.DataObject) -> None:
    line = bytearray(data.draw(st.sampled_from(LINES[module])))
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, max(0, len(line) - 1)))
        line[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    content = bytes(line)
    module.looks_like(content)
    is_sound(decoded(module, b"\n".join([LINES[module][0], content])))


NUMBERS = st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))


@HARD
@given(
    used=st.integers(0, 1023), keys=st.integers(0, 10**9), rates=NUMBERS, evicted=NUMBERS,
    op=st.from_regex(r"[A-Z][a-zA-Z]{0,8}", fullmatch=True),
)  # fmt: skip
def test_the_numbers_of_a_masters_line_come_back(
    used: int, keys: int, rates: tuple[int, ...], evicted: tuple[int, ...], op: str
) -> None:
    line = (
        f"Mem Storage: {used}.00 MB / 1.00 GB (0.0%) | Keys: {keys} (soft-pinned: 1) | Requests"
        f" (Success/Total): {op}={rates[0]}/{rates[1]} | Batch Requests (Req=Success/PartialSuccess/Total,"
        f" Item=Success/Total): {op}:(Req={rates[0]}/{rates[1]}/{rates[2]}, Item=0/1)"
        f" | Eviction: Success/Attempts={evicted[0]}/{evicted[1]}, keys={evicted[2]}, size=1.50 KB"
    )
    found = decoded(mooncake_summary, line.encode())
    assert found.losses == []
    told = {
        row["name"].removeprefix("mooncake_master_summary."): row["value"] for row in found.table("metric")
    }
    wanted = {
        "mem_storage.used_bytes": used << 20, "mem_storage.capacity_bytes": 1 << 30, "keys": keys,
        "requests.success": rates[0], "requests.total": rates[1], "batch_requests.success": rates[0],
        "batch_requests.partial_success": rates[1], "batch_requests.total": rates[2],
        "eviction.success": evicted[0], "eviction.attempts": evicted[1], "eviction.keys": evicted[2],
        "eviction.size_bytes": 1536,
    }  # fmt: skip
    assert {name: told[name] for name in wanted} == wanted
