"""Steps as runs: how long they serve a request is a sum, however many they are and wherever it is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from kvtrace.analyses.exposure import cache, exposure, serving
from tests.unit.analyses.exposure.drawing import drawn, exposed, load, part, request, step, value, wait

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run


def runs_of(run: Run) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
    """(request, start, end) of the runs of the first block, and of the steps that are swept."""
    made = cache.prepare(run)
    _, found, runs = next(cache.blocks_in_runs(made))
    ends = zip(runs.request, runs.steps.s[runs.first], runs.steps.e[runs.last], strict=True)
    steps = np.flatnonzero(found.layer == serving.SERVING)
    swept = zip(found.request[steps], found.s[steps], found.e[steps], strict=True)
    return [tuple(map(int, one)) for one in ends], [tuple(map(int, one)) for one in swept]  # type: ignore[misc]


def test_steps_one_after_the_other_are_one_run(tmp_path: Path) -> None:
    """The gaps between them are not compute, and a load is hidden by what it meets.

    r0  [0-10)  [12-20)  [22-30)     arrival 5, end 28
    load        [---14----25---)
    """
    run = drawn(tmp_path, request(5, 28), step(0, 10), step(12, 20), step(22, 30), load(14, 25))
    assert runs_of(run) == ([(0, 0, 30)], [])
    assert exposed(run) == {"compute": 19, "host->gpu": 2, "other": 2}
    assert part(run, "host->gpu")[:3] == (2, 11, 9)


def test_a_step_of_others_parts_a_run(tmp_path: Path) -> None:
    """r1 is in the second step of three, r0 in the others: as in a pipeline of two."""
    steps = (step(0, 10), step(10, 20, "r1"), step(20, 30))
    run = drawn(tmp_path, request(0, 30), request(0, 30, request_id="r1"), *steps)
    assert runs_of(run) == ([(0, 0, 10), (0, 20, 30), (1, 10, 20)], [])
    assert exposed(run) == {"compute": 20, "other": 10}
    assert exposed(run, request_id="r1") == {"compute": 10, "other": 20}


@pytest.mark.parametrize(
    ("steps", "compute"),
    [
        ([step(0, 12), step(8, 20)], 20),  # two at once
        ([step(0, 10), step(15, None)], 20),  # the end of one was not seen; the last record is at 25
        ([step(0, 5), step(2, 9, engine="e1", process="e1/scheduler")], 9),  # of two engines
    ],
)
def test_where_steps_are_no_row_of_steps_they_are_swept(
    tmp_path: Path, steps: list[dict[str, object]], compute: int
) -> None:
    run = drawn(tmp_path, request(0, 30), *steps, wait(25, 25, process="e0/scheduler"))
    runs, swept = runs_of(run)
    assert (runs, len(swept)) == ([], 2)
    assert exposed(run)["compute"] == compute


def test_a_member_named_twice_is_served_once(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 30), step(0, 10, "r0", "r0"), step(12, 20))
    assert runs_of(run) == ([(0, 0, 20)], [])
    assert exposed(run) == {"compute": 18, "other": 12}


def test_the_work_of_a_wait_inside_a_wait_is_what_was_served_meanwhile(tmp_path: Path) -> None:
    """Neither end of the inner one is an edge of anything.

    steps  [0-10)          [20-30)
    wait   [0-------------------30)     served 20
    wait      [5-------------25)        served 5 + 5
    """
    run = drawn(tmp_path, request(0, 30), step(0, 10), step(20, 30), wait(0, 30), wait(5, 25))
    assert exposed(run) == {"wait_load": 20, "interference": 10}
    assert value(run, "work_ns", "wait_load") == 30


@pytest.mark.parametrize("size", [1, 3])
def test_memberships_are_read_chunk_by_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    names = [f"r{number}" for number in range(6)]
    steps = [step(at, at + 8, *names[at // 20 : at // 20 + 3]) for at in range(0, 60, 10)]
    rows = [*(request(3, 57, request_id=name) for name in names), *steps]
    whole = exposure(drawn(tmp_path / "whole", *rows))
    monkeypatch.setattr(serving, "CHUNK", size)
    monkeypatch.setattr(cache, "BLOCK_INTERVALS", 1)
    assert exposure(drawn(tmp_path / "parts", *rows)).equals(whole)
