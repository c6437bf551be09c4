"""The laws of the partition, on the implementation itself: twelve drawn runs a question, packed into one."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.critical_path import critical_path
from kvtrace.analyses.exposure import cache, exposure
from kvtrace.analyses.exposure.layers import CLASSES, HIDDEN_COLUMNS
from tests.property import drawn
from tests.property.drawn_worlds import packed, unpacked, worlds
from tests.property.test_exposure import cases
from tests.rows import write_run

Row = dict[str, Any]
Rows = list[Row]
WINDOWS = ("ttft", "decode", "e2e")
STRONGER = {"load": 6, "store": 10, "lookup": 9, "lock_wait": 8, "queue": 12}
"""Op -> how many classes stand above the one it makes."""
SHARED = ("wait_load", "wait_store", "wait_lookup", "wait_lock", "interference")


def ask(run: drawn.Run) -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        opened = write_run(Path(folder) / "run", span=run.spans, loss=run.losses, process=run.processes)
        return exposure(opened).to_dicts()


def ask_path(run: drawn.Run, **options: Any) -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        opened = write_run(Path(folder) / "run", span=run.spans, loss=run.losses, process=run.processes)
        return critical_path(opened, **options).to_dicts()


def by_class(rows: Rows) -> dict[tuple[str, str, str], int]:
    """Exposed ns a (request, window, class)."""
    sums: Counter[tuple[str, str, str]] = Counter()
    for row in rows:
        sums[row["request_id"], row["window"], row["class"]] += row["exposed_ns"] or 0
    return {key: ns for key, ns in sums.items() if ns}


def lengths(run: drawn.Run) -> dict[tuple[str, str], int]:
    """Length of every window of finished requests whose first token the front end saw."""
    found = {}
    for row in run.spans:
        if row["op"] != "request" or row.get("end_ns") is None or row["end_ns"] < row["start_ns"]:
            continue
        key, start, end, token = row["request_id"], row["start_ns"], row["end_ns"], row.get("first_token_ns")
        found[key, "e2e"] = end - start
        if token is not None and token >= start:
            found[key, "ttft"], found[key, "decode"] = token - start, max(end - token, 0)
    return found


@given(worlds())
@cases(6)
def test_exposed_parts_sum_to_the_window_to_the_nanosecond(every: list[drawn.Run]) -> None:
    run = packed(every)
    sums: Counter[tuple[str, str]] = Counter()
    for (request_id, window, _), ns in by_class(ask(run)).items():
        sums[request_id, window] += ns
    for key, ns in lengths(run).items():
        assert sums[key] == ns


@given(worlds())
@cases(6)
def test_a_total_is_what_is_exposed_and_what_is_hidden_and_at_most_the_work(every: list[drawn.Run]) -> None:
    for row in ask(packed(every)):
        if row["exposed_ns"] is None:
            assert (row["class"], row["bound"], row["total_ns"]) == ("compute", "upper", None)
            continue
        parts = [row["exposed_ns"], *(row[name] or 0 for name in HIDDEN_COLUMNS)]
        assert row["total_ns"] == sum(parts)
        assert min(parts) >= 0
        assert row["total_ns"] > 0
        assert 0 <= row["open_ns"] <= row["total_ns"]
        assert (row["work_ns"] is None) == (row["class"] in ("compute", "interference", "other"))
        assert row["work_ns"] is None or row["total_ns"] <= row["work_ns"]
        assert (row["hop"] is not None) == (row["class"] == "load")


@given(worlds(), st.one_of(st.integers(0, 1000), st.just(1_700_000_000_000_000_000)))
@cases(6)
def test_a_shift_of_all_times_changes_nothing(every: list[drawn.Run], by_ns: int) -> None:
    run = packed(every)
    assert ask(drawn.shifted(run, by_ns)) == ask(run)


@given(st.lists(drawn.runs_and_cuts(), min_size=12, max_size=12))
@cases(6)
def test_an_interval_cut_in_two_changes_nothing(drawn_cuts: list[tuple[drawn.Run, Row, int]]) -> None:
    before = packed([run for run, _, _ in drawn_cuts])
    after = packed([drawn.cut(*one) for one in drawn_cuts])
    assert ask(after) == ask(before)


@given(st.lists(drawn.runs_and_additions(), min_size=12, max_size=12))
@cases(6)
def test_an_interval_under_a_stronger_class_changes_no_class(
    additions: list[tuple[drawn.Run, str, int]],
) -> None:
    every = [run for run, _, _ in additions]
    paths = unpacked(ask_path(packed(every)), len(every))
    more = []
    for (run, op, pick), segments in zip(additions, paths, strict=True):
        hiding = [row for row in segments if CLASSES.index(row["class"]) < STRONGER[op]]
        if hiding:
            at = hiding[pick % len(hiding)]
            more.append(drawn.added(run, op, at["request_id"], at["start_ns"], at["end_ns"]))
        else:
            more.append(run)
    assert by_class(ask(packed(more))) == by_class(ask(packed(every)))


@given(st.lists(drawn.runs_and_strangers(), min_size=12, max_size=12))
@cases(6)
def test_what_a_request_does_alone_changes_no_other(pairs: list[tuple[drawn.Run, drawn.Run]]) -> None:
    without = ask(packed([run for run, _ in pairs]))
    with_strangers = ask(packed([run for _, run in pairs]))
    assert [row for row in with_strangers if not row["request_id"].endswith("stranger")] == without


@given(worlds(), st.sampled_from(("load", "store", "lookup", "lock")), st.integers(0, 90), st.integers(1, 10))
@cases(6)
def test_what_a_request_waits_for_reaches_others_as_waits_and_interference_only(
    every: list[drawn.Run], reason: str, start_ns: int, length_ns: int
) -> None:
    """A wait of a stranger, in each engine: no other class of anybody grows by it."""
    wait = {"run_id": "r", "op": "wait", "reason": reason, "request_id": "stranger", "observer": "worker"}
    wait |= {"start_ns": start_ns, "end_ns": start_ns + length_ns}
    more = [
        drawn.Run(
            (*run.spans, {**wait, "span_id": len(run.spans), "engine": "e0"}), run.losses, run.processes
        )
        for run in every
    ]
    # open rows and requests last to the last record of engine or process: it must lie beyond the wait
    ends = [{"run_id": "r", "op": "publish", "span_id": 900, "engine": "e0", "start_ns": 130, "end_ns": 130}]
    later = [drawn.Run((*run.spans, *ends), run.losses, run.processes) for run in every]
    more = [drawn.Run((*run.spans, *ends), run.losses, run.processes) for run in more]
    before, after = by_class(ask(packed(later))), by_class(ask(packed(more)))
    for key, ns in after.items():
        assert key[2] in SHARED or ns <= before.get(key, 0)


@given(worlds(), st.sampled_from(WINDOWS))
@cases(5)
def test_segments_tile_the_window_and_sum_to_what_is_exposed(every: list[drawn.Run], window: str) -> None:
    run = packed(every)
    path = ask_path(run, window=window)
    sums: Counter[tuple[str, str, str | None]] = Counter()
    mine: dict[str, Rows] = defaultdict(list)
    for row in path:
        assert row["end_ns"] > row["start_ns"]
        sums[row["request_id"], row["class"], row["hop"]] += row["end_ns"] - row["start_ns"]
        mine[row["request_id"]].append(row)
    for segments in mine.values():
        assert [row["seq"] for row in segments] == list(range(len(segments)))
        for one, two in pairwise(segments):
            assert one["end_ns"] == two["start_ns"]
            assert [one[key] for key in ("class", "hop", "span_id")] != [
                two[key] for key in ("class", "hop", "span_id")
            ]
    exposed = {
        (row["request_id"], row["class"], row["hop"]): row["exposed_ns"]
        for row in ask(run)
        if row["window"] == window and row["exposed_ns"]
    }
    assert sums == exposed


@given(worlds(), st.integers(0, 2**16))
@cases(3)
def test_the_path_of_some_requests_is_that_part_of_the_path_of_all(every: list[drawn.Run], pick: int) -> None:
    run = packed(every)
    ids = sorted({row["request_id"] for row in run.spans if row["op"] == "request"})
    some = {name for number, name in enumerate(ids) if (pick >> (number % 16)) & 1} | {ids[pick % len(ids)]}
    assert ask_path(run, requests=tuple(some)) == [row for row in ask_path(run) if row["request_id"] in some]


@pytest.mark.parametrize("size", [1, 7, 40])
@given(worlds())
@cases(2)
def test_the_size_of_blocks_changes_nothing(size: int, every: list[drawn.Run]) -> None:
    run = packed(every)
    whole, path = ask(run), ask_path(run)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache, "BLOCK_INTERVALS", size)
        assert ask(run) == whole
        assert ask_path(run) == path


@given(worlds(size=6))
@cases(2)
def test_nor_does_a_narrow_axis(every: list[drawn.Run]) -> None:
    run = packed(every)
    whole = ask(run)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache, "MOST_CELLS", 200)
        assert ask(run) == whole
