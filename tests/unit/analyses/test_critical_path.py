"""critical_path: the partition in time order, with the spans behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kvtrace.analyses.critical_path import COLUMNS, critical_path
from tests.unit.analyses.exposure.drawing import drawn, load, path, request, scheduler, step, wait

if TYPE_CHECKING:
    from pathlib import Path


def test_segments_follow_the_winner_and_the_earliest_started_of_its_spans(tmp_path: Path) -> None:
    """A change of span starts a new segment, a change of what is hidden does not.

    load 2  [0-----20)
    load 3      [10-----40)
    lookup 4       [15-----30)      hidden all along
    """
    run = drawn(tmp_path, request(0, 50), load(0, 20), load(10, 40), scheduler("lookup", 15, 30))
    assert path(run) == [(0, 20, "host->gpu", 2), (20, 40, "host->gpu", 3), (40, 50, "other", None)]


def test_of_two_that_started_together_the_smaller_id_is_named(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 20), load(0, 20, span_id=9), load(0, 10, span_id=7))
    assert path(run) == [(0, 10, "host->gpu", 7), (10, 20, "host->gpu", 9)]


def test_a_span_without_an_id_is_null_never_0(tmp_path: Path) -> None:
    """A source that gives no span ids: nothing is made up; 0 is an id like any other."""
    run = drawn(
        tmp_path,
        request(0, 30),
        load(0, 10, span_id=None),
        scheduler("lookup", 10, 20, span_id=0),
        wait(20, 30, name="r0", span_id=None),
    )
    assert path(run) == [(0, 10, "host->gpu", None), (10, 20, "lookup", 0), (20, 30, "wait_load", None)]


def test_of_two_that_started_together_the_one_with_an_id_is_named(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 10), load(0, 10, span_id=None), load(0, 10, span_id=5))
    assert path(run) == [(0, 10, "host->gpu", 5)]


def test_interference_and_shared_waits_name_the_wait(tmp_path: Path) -> None:
    """Wait 3 is of nobody: inside the step it is r0's, after it another's."""
    run = drawn(tmp_path, request(0, 30), step(0, 10), wait(5, 20))
    assert path(run) == [
        (0, 5, "compute", 2),
        (5, 10, "wait_load", 3),
        (10, 20, "interference", 3),
        (20, 30, "other", None),
    ]


def test_each_window_has_its_own_path(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 40, 25), step(20, 40))
    assert path(run, "ttft") == [(0, 20, "other", None), (20, 25, "compute", 2)]
    assert path(run, "decode") == [(25, 40, "compute", 2)]


def test_a_choice_of_requests_is_that_part_of_the_whole(tmp_path: Path) -> None:
    names = ("r0", "r1", "r2")
    run = drawn(tmp_path, *(request(0, 10, request_id=name) for name in names), wait(0, 5, name="r1"))
    whole = critical_path(run).to_dicts()
    for chosen in (("r0",), ("r2", "r0"), ("r1", "nobody")):
        assert critical_path(run, requests=chosen).to_dicts() == [
            row for row in whole if row["request_id"] in chosen
        ]
    assert critical_path(run, requests=("nobody",)).height == 0


@pytest.mark.parametrize("rows", [[], [scheduler("lookup", 0, 5)]])
def test_a_run_without_requests_has_no_rows_and_the_same_columns(
    tmp_path: Path, rows: list[dict[str, object]]
) -> None:
    found = critical_path(drawn(tmp_path, *rows))
    assert found.height == 0
    assert dict(found.schema) == COLUMNS
