"""blockers against the tick-by-tick oracle, and its laws, on drawn runs."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.blockers import blockers, sharing
from kvtrace.analyses.exposure import exposure
from tests.property import drawn, drawn_blockers
from tests.property.drawn_worlds import apart, packed, unpacked
from tests.property.oracle_blockers import Key, Part, blockers_by_ticks
from tests.property.test_exposure import cases
from tests.rows import write_run

if TYPE_CHECKING:
    from kvtrace.run import Run

Rows = list[dict[str, Any]]
SIZE = 10
KEY = ("request_id", "blocker_request_id", "class", "reason")


def worlds() -> st.SearchStrategy[list[drawn.Run]]:
    return st.lists(drawn_blockers.runs(), min_size=SIZE, max_size=SIZE)


def opened(run: drawn.Run, folder: str) -> Run:
    return write_run(Path(folder) / "run", span=run.spans, loss=run.losses, process=run.processes)


def ask(run: drawn.Run, **options: Any) -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        return blockers(opened(run, folder), **options).to_dicts()


def named(rows: Rows, world: int) -> Rows:
    """Blockers of one world, under the names that it knows."""
    prefix = f"w{world:02d}."
    return [
        row | {"blocker_request_id": None if row[KEY[1]] is None else row[KEY[1]].removeprefix(prefix)}
        for row in rows
    ]


def same(rows: Rows, parts: dict[Key, Part]) -> None:
    """Whole ns beside exact fractions: no row is off by more than one, no sum is off at all."""
    found = {tuple(row[name] for name in KEY): row for row in rows}
    assert len(found) == len(rows)
    assert set(found) == set(parts)
    whole: Counter[tuple[str, str]] = Counter()
    exact: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
    unsure = {(key[0], key[2]) for key, part in parts.items() if part.unknown}
    for key, part in parts.items():
        row = found[key]
        assert row["overlap_ns"] == len(part.ticks)
        assert (row["exposed_ns"] is None) == part.unknown
        if not part.unknown:
            assert abs(row["exposed_ns"] - part.exposed) <= 1
            whole[key[0], key[2]] += row["exposed_ns"]
            exact[key[0], key[2]] += part.exposed
    for request, total in exact.items():
        if request not in unsure:
            assert whole[request] == total


@given(worlds(), st.sampled_from(("ttft", "decode", "e2e")))
@cases(12)
def test_every_tick_is_divided_as_the_definition_says(every: list[drawn.Run], window: str) -> None:
    rows = ask(packed(every), window=window)
    for number, (run, mine) in enumerate(zip(every, unpacked(rows, SIZE), strict=True)):
        alone = apart(run)
        tables = list(alone.spans), list(alone.losses), list(alone.processes)
        same(named(mine, number), blockers_by_ticks(*tables, window=window))


@given(worlds())
@cases(5)
def test_interference_is_divided_without_a_rest_and_holds_have_no_more_than_the_queue(
    every: list[drawn.Run],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = opened(packed(every), folder)
        rows, classes = blockers(run).to_dicts(), exposure(run, window="e2e").to_dicts()
    sums: Counter[tuple[str, str]] = Counter()
    for row in rows:
        sums[row["request_id"], row["class"]] += row["exposed_ns"] or 0
        assert row["exposed_ns"] is None or 0 <= row["exposed_ns"] <= row["overlap_ns"] + 1
    exposed: Counter[tuple[str, str]] = Counter()
    for row in classes:
        exposed[row["request_id"], row["class"]] += row["exposed_ns"] or 0
    for key, ns in exposed.items():
        if key[1] == "interference":
            assert sums[key] == ns
    for key, ns in sums.items():
        assert ns <= exposed[key]


@given(worlds(), st.sampled_from((1, 777, 1_700_000_000_000_000_000)))
@cases(4)
def test_a_shift_of_all_times_changes_nothing(every: list[drawn.Run], by_ns: int) -> None:
    run = packed(every)
    assert ask(drawn.shifted(run, by_ns)) == ask(run)


@given(worlds(), st.integers(0, 2**16))
@cases(4)
def test_the_answer_for_some_requests_is_that_part_of_the_whole(every: list[drawn.Run], pick: int) -> None:
    run = packed(every)
    ids = sorted({row["request_id"] for row in run.spans if row["op"] == "request"})
    some = tuple(name for number, name in enumerate(ids) if (pick >> (number % 16)) & 1) or (ids[0],)
    whole = [row for row in ask(run) if row["request_id"] in some]
    key = lambda row: tuple(str(row[name]) for name in KEY)  # noqa: E731 - only here
    assert sorted(ask(run, requests=some), key=key) == sorted(whole, key=key)


@given(worlds())
@cases(3)
def test_small_portions_change_nothing(every: list[drawn.Run]) -> None:
    run = packed(every)
    whole = ask(run)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sharing, "MOST_PAIRS", 3)
        assert ask(run) == whole


@given(worlds(), st.integers(0, 2**16))
@cases(4)
def test_a_hold_cut_in_two_adjacent_ones_changes_nothing(every: list[drawn.Run], pick: int) -> None:
    before = packed(every)
    holds = [
        row
        for row in before.spans
        if row["op"] == "hold" and row.get("end_ns") is not None and row["end_ns"] - row["start_ns"] >= 2
    ]
    after = before
    for number, row in enumerate(holds):
        length = row["end_ns"] - row["start_ns"]
        after = drawn.cut(after, row, row["start_ns"] + 1 + (pick + number) % (length - 1))
    assert len(after.spans) == len(before.spans) + len(holds)
    assert ask(after) == ask(before)
