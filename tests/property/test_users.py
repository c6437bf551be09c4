"""critical_path by user: against a tick-by-tick oracle of its own, and what must hold of it."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses.critical_path import critical_path
from kvtrace.analyses.exposure import cache
from tests.property import drawn
from tests.property.drawn_worlds import apart, packed, unpacked, worlds
from tests.property.oracle_users import user_path_by_ticks
from tests.property.test_exposure import cases
from tests.property.test_exposure_laws import WINDOWS
from tests.rows import write_run

Rows = list[dict[str, Any]]


def ask(run: drawn.Run, window: str = "e2e", by: Literal["request", "user"] = "user") -> Rows:
    with tempfile.TemporaryDirectory() as folder:
        opened = write_run(Path(folder) / "run", span=run.spans, loss=run.losses, process=run.processes)
        return critical_path(opened, window=window, by=by).to_dicts()  # type: ignore[arg-type]


def same(run: drawn.Run, path: Rows, window: str) -> None:
    want = user_path_by_ticks(run.spans, run.losses, run.processes, window)
    got = sorted(path, key=lambda row: (row["request_id"], row["seq"]))
    for mine, theirs in itertools.zip_longest(got, want):
        assert mine == theirs


@given(drawn.of_users(), st.sampled_from(WINDOWS))
@cases(8)
def test_a_users_path_is_what_stepping_through_every_tick_gives(run: drawn.Run, window: str) -> None:
    same(run, ask(run, window), window)


@given(worlds(drawn.of_users()), st.sampled_from(WINDOWS))
@cases(12)
def test_so_it_is_for_many_runs_at_once(every: list[drawn.Run], window: str) -> None:
    path = ask(packed(every), window)
    for run, mine in zip(every, unpacked(path, len(every)), strict=True):
        same(apart(run), mine, window)


@given(worlds(drawn.of_users()))
@cases(6)
def test_segments_tile_from_the_first_arrival_to_the_last_end(every: list[drawn.Run]) -> None:
    run = packed(every)
    sums: Counter[str] = Counter()
    for row in ask(run):
        assert row["end_ns"] > row["start_ns"]
        sums[row["request_id"]] += row["end_ns"] - row["start_ns"]
    known: dict[str, tuple[int, int]] = {}
    unfinished = set()
    for row in run.spans:
        if row["op"] == "request" and row.get("end_ns") is None:
            unfinished.add(row.get("user_request_id") or row["request_id"])
        elif row["op"] == "request" and row["end_ns"] >= row["start_ns"]:
            user = row.get("user_request_id") or row["request_id"]
            start_ns, end_ns = known.get(user, (row["start_ns"], row["end_ns"]))
            known[user] = min(start_ns, row["start_ns"]), max(end_ns, row["end_ns"])
    for user, (start_ns, end_ns) in known.items():
        assert user in unfinished or sums[user] == end_ns - start_ns


@given(worlds(), st.sampled_from(WINDOWS))
@cases(4)
def test_requests_that_stand_alone_have_the_same_path_by_user(every: list[drawn.Run], window: str) -> None:
    run = packed(every)
    assert ask(run, window) == ask(run, window, by="request")


@pytest.mark.parametrize("size", [1, 7, 40])
@given(worlds(drawn.of_users()))
@cases(2)
def test_the_size_of_blocks_parts_no_user(size: int, every: list[drawn.Run]) -> None:
    run = packed(every)
    whole = ask(run)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache, "BLOCK_INTERVALS", size)
        patched.setattr(cache, "MOST_CELLS", 40 * size)
        assert ask(run) == whole


@given(worlds(drawn.of_users(), 4))
@cases(2)
def test_the_path_of_some_users_is_that_part_of_the_path_of_all(every: list[drawn.Run]) -> None:
    run = packed(every)
    path = ask(run)
    some = tuple(sorted({row["request_id"] for row in path})[::2])
    with tempfile.TemporaryDirectory() as folder:
        opened = write_run(Path(folder) / "run", span=run.spans, loss=run.losses, process=run.processes)
        chosen = critical_path(opened, by="user", requests=some or ("nobody",)).to_dicts()
    assert chosen == [row for row in path if row["request_id"] in some]
