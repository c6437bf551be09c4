"""held_share against plain sums over the holds of an instant, and against the block-seconds of `hold`.

blocks 3   |----------|            |3|8 |5   |0
blocks 5     |-------------|       open: to its process's last record; of an unknown process, for ever
"""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.held_share import held_share
from kvtrace.analyses.hold import hold
from tests.property.test_exposure import cases
from tests.rows import write_run

if TYPE_CHECKING:
    from kvtrace.run import Run

Row = dict[str, Any]
POOLS = {"e0": 40, "e1": 100}
ENGINES = {name: {"config": {"num_gpu_blocks": str(blocks)}} for name, blocks in POOLS.items()}
LAST = {"e0/scheduler": 70, "e1/scheduler": 20}


@st.composite
def held(draw: st.DrawFn, *, counted: bool) -> Row:
    """Times of a few instants, so that ends and starts meet; now and then open, or turned round."""
    start = draw(st.integers(0, 20)) * 3
    engine = draw(st.sampled_from(("e0", "e0", "e1")))
    return {
        "op": "hold", "start_ns": start, "engine": engine, "reason": "store", "observer": "scheduler",
        "end_ns": draw(st.sampled_from((start, start + 3, start + 9, start + 30, start - 3, None))),
        "blocks": draw(st.integers(0, 9) if counted else st.sampled_from((0, 1, 4, 9, None))),
        "process": draw(st.sampled_from((f"{engine}/scheduler",) * 3 + (None,))),
    }  # fmt: skip


def runs(*, counted: bool = False) -> st.SearchStrategy[list[Row]]:
    """Up to a dozen holds of two engines."""
    return st.lists(held(counted=counted), max_size=12)


def opened(folder: str, rows: list[Row]) -> Run:
    spans = [row | {"request_id": f"r{number}", "span_id": number} for number, row in enumerate(rows)]
    told = [{"process": name, "last_ns": at} for name, at in LAST.items()]
    return write_run(Path(folder) / "run", {"engines": ENGINES}, span=spans, process=told)


def stops(rows: list[Row]) -> list[tuple[Row, float]]:
    """Holds that count, with their ends."""
    last = dict(LAST)
    for row in rows:
        if row["process"] is not None:
            last[row["process"]] = max(last[row["process"]], row["start_ns"], row["end_ns"] or 0)
    ends = [(row, last.get(row["process"], float("inf")) if row["end_ns"] is None else row["end_ns"])
            for row in rows]  # fmt: skip
    return [(row, stop) for row, stop in ends if stop >= row["start_ns"]]


def at(lasting: list[tuple[Row, float]], now: int) -> int | None:
    """Blocks held from an instant on; nobody's count makes it null."""
    mine = [row["blocks"] for row, stop in lasting if row["start_ns"] <= now < stop]
    return None if None in mine else sum(mine)


@pytest.mark.parametrize("engine", [None, "e0"])
@given(rows=runs())
@cases(24)
def test_at_every_instant_it_is_the_sum_of_the_holds_that_last(engine: str | None, rows: list[Row]) -> None:
    mine = [row for row in rows if engine in (None, row["engine"])]
    lasting = stops(rows)
    if engine is not None:
        lasting = [(row, stop) for row, stop in lasting if row["engine"] == engine]
    pool = sum(POOLS[name] for name in {row["engine"] for row in mine})
    expected: list[tuple[int, int | None]] = []
    times = {row["start_ns"] for row, _ in lasting} | {
        int(stop) for _, stop in lasting if stop < float("inf")
    }
    for now in sorted(times):
        blocks = at(lasting, now)
        if not expected or expected[-1][1] != blocks:
            expected.append((now, blocks))
    with tempfile.TemporaryDirectory() as folder:
        found = held_share(opened(folder, rows), engine=engine).to_dicts()
    assert [(row["time_ns"], row["blocks"]) for row in found] == expected
    for row in found:
        assert row["pool_blocks"] == pool
        assert row["share"] == (None if row["blocks"] is None else pytest.approx(row["blocks"] / pool))


@given(runs(counted=True))
@cases(24)
def test_the_area_under_it_is_what_the_holds_cost(rows: list[Row]) -> None:
    """Of holds that end, or whose process's last record is known."""
    known = [row for row in rows if row["process"] is not None]
    with tempfile.TemporaryDirectory() as folder:
        run = opened(folder, known)
        shares, holds = held_share(run).to_dicts(), hold(run)
    area = sum(row["blocks"] * (after["time_ns"] - row["time_ns"]) for row, after in pairwise(shares))
    assert area == pytest.approx(1e9 * (holds["block_seconds"].sum() or 0), abs=1e-6)
    assert not shares or shares[-1]["blocks"] == 0


@given(runs(counted=True), st.integers(1, 10**18))
@cases(12)
def test_later_is_later_and_a_hold_cut_in_two_is_one(rows: list[Row], by_ns: int) -> None:
    closed = [row for row in rows if row["end_ns"] is not None]
    moved = [
        row | {"start_ns": start + by_ns, "end_ns": end + by_ns}
        for row in closed
        for start, end in _halves(row["start_ns"], row["end_ns"])
    ]
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        before, after = held_share(opened(one, closed)), held_share(opened(other, moved))
    assert [row | {"time_ns": row["time_ns"] + by_ns} for row in before.to_dicts()] == after.to_dicts()


def _halves(start: int, end: int) -> list[tuple[int, int]]:
    middle = (start + end) // 2
    return [(start, middle), (middle, end)] if end - start > 1 else [(start, end)]
