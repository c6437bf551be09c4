"""Facts about operations that last become one row each, however they are spread over passes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kvtrace.sources.spool.pairing import CLOSE, OPEN, UPDATE, Pairing, Part


def part(kind: int, *rows: dict[str, Any], first: int = 0) -> Part:
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table(
        {
            name: pa.array([row.get(name) for row in rows], pa.uint64() if name == "span_id" else None)
            for name in names
        }
    )
    return Part(kind, table, np.arange(first, first + len(rows)))


def rows(table: pa.Table | None) -> list[dict[str, Any]]:
    return [] if table is None else table.to_pylist()


def test_a_later_fact_wins_unless_it_is_missing() -> None:
    pairing = Pairing()
    found = pairing.add(
        [
            part(CLOSE, {"span_id": 1, "end": 9, "tokens": None}, first=1),
            part(UPDATE, {"span_id": 1, "tokens": 5}, {"span_id": 1, "tokens": 6}, first=5),
            part(OPEN, {"span_id": 1, "start": 2, "tokens": 1}, first=3),
        ]
    )
    assert rows(found) == [{"span_id": 1, "start": 2, "tokens": 6, "end": 9}]
    assert pairing.waiting == 0


def test_only_what_is_closed_comes_out() -> None:
    pairing = Pairing()
    assert pairing.add([part(OPEN, *({"span_id": n, "start": n} for n in range(1, 6)))]) is None
    found = pairing.add([part(CLOSE, {"span_id": 4, "end": 8}, {"span_id": 2, "end": 7})])
    assert rows(found) == [{"span_id": 2, "start": 2, "end": 7}, {"span_id": 4, "start": 4, "end": 8}]
    opened, orphans = pairing.end()
    assert [row["span_id"] for row in rows(opened)] == [1, 3, 5]
    assert orphans is None


def test_a_close_that_comes_before_its_open_waits_for_it() -> None:
    pairing = Pairing()
    assert pairing.add([part(CLOSE, {"span_id": 1, "end": 9})]) is None
    assert rows(pairing.add([part(OPEN, {"span_id": 1, "start": 2})])) == [
        {"span_id": 1, "start": 2, "end": 9}
    ]


def test_parts_without_an_open_are_told_at_the_end() -> None:
    pairing = Pairing()
    pairing.add([part(CLOSE, {"span_id": 1, "end": 9}), part(UPDATE, {"span_id": 1, "tokens": 1})])
    opened, orphans = pairing.end()
    assert opened is None
    assert rows(orphans) == [{"span_id": 1, "tokens": 1, "end": 9}]


def test_what_waits_survives_being_kept_on_disk() -> None:
    pairing, again = Pairing(), Pairing()
    for first in (0, 10):
        pairing.add([part(UPDATE, {"span_id": 1, "tokens": first}, {"span_id": 2, "note": "x"}, first=first)])
    pairing.add([part(OPEN, {"span_id": 1, "start": 2}, {"span_id": 2, "start": 3}, first=30)])
    again.restore(pairing.table())
    close = [part(CLOSE, {"span_id": 1, "end": 9}, {"span_id": 2, "end": 9}, first=40)]
    found = {row["span_id"]: row for row in rows(again.add(close))}
    assert found[1] | {"note": None} == {"span_id": 1, "start": 2, "tokens": 10, "note": None, "end": 9}
    assert (found[2]["note"], found[2]["start"]) == ("x", 3)
    Pairing().restore(Pairing().table())


def test_updates_without_end_are_kept_as_one() -> None:
    pairing = Pairing()
    pairing.add([part(OPEN, {"span_id": 1, "start": 2})])
    for value in range(100):
        pairing.add([part(UPDATE, {"span_id": 1, "tokens": value}, first=value + 1)])
    assert pairing.waiting < 10
    assert rows(pairing.add([part(CLOSE, {"span_id": 1, "end": 9}, first=500)]))[0]["tokens"] == 99


@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_a_million_open_operations_cost_a_pass_little(order: str) -> None:
    million = 1_000_000
    ids = np.arange(million, dtype=np.uint64)
    if order == "shuffled":
        np.random.default_rng(1).shuffle(ids)
    pairing = Pairing()
    for low in range(0, million, 100_000):
        own = ids[low : low + 100_000]
        table = pa.table({"span_id": own, "start": own.astype(np.int64)})
        pairing.add([Part(OPEN, table, np.arange(low, low + own.size))])
    began = time.process_time()
    for low in range(0, 20_000, 1_000):
        own = np.arange(low, low + 1_000, dtype=np.uint64)
        found = pairing.add(
            [Part(CLOSE, pa.table({"span_id": own, "end": own.astype(np.int64)}), own.astype(np.int64))]
        )
        assert found is not None
        assert found.num_rows == 1_000
    assert time.process_time() - began < 20 * 0.25  # a pass over all of them would take longer, even here
    assert pairing.waiting == million - 20_000
