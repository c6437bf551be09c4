"""exposure and critical_path against the tick-by-tick oracle, on drawn runs.

An example builds a run and asks a question of it, which is a tenth of a second at least: the quick tests draw
half of them where they are few, KVTRACE_THOROUGH=1 all, KVTRACE_EXAMPLES multiplies them, for a long night.
"""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from kvtrace.analyses.critical_path import critical_path
from kvtrace.analyses.exposure import COLUMNS, exposure
from tests.property import drawn
from tests.property.drawn_worlds import apart, packed, unpacked, worlds
from tests.property.oracle import critical_path_by_ticks, exposure_by_ticks
from tests.rows import write_run

Rows = list[dict[str, Any]]
FEW = 50


def cases(number: int) -> settings:
    """So many examples, without shrinking: that rebuilds a run a hundred times.

    Where an example takes a tenth of a second or more (at most FEW of them), quick tests draw half of them.
    """
    thorough = number > FEW or os.environ.get("KVTRACE_THOROUGH") == "1"
    drawn_now = number if thorough else max(2, (number + 1) // 2)
    return settings(
        max_examples=drawn_now * int(os.environ.get("KVTRACE_EXAMPLES", "1")),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
    )


def answers(run: drawn.Run, folder: Path) -> tuple[Rows, Rows]:
    opened = write_run(folder, span=run.spans, loss=run.losses, process=run.processes)
    return exposure(opened).to_dicts(), critical_path(opened).to_dicts()


def same(run: drawn.Run, rows: Rows, path: Rows) -> None:
    """Compare both answers with the oracle's, row by row."""
    tables = list(run.spans), list(run.losses), list(run.processes)
    keys = ("request_id", "window", "class", "hop")
    got = pl.DataFrame(rows, schema=COLUMNS).sort(keys).to_dicts()
    want = pl.DataFrame(exposure_by_ticks(*tables), schema=COLUMNS).sort(keys).to_dicts()
    for mine, theirs in itertools.zip_longest(got, want):
        assert mine == theirs
    order = ("request_id", "seq")
    got_path = sorted(path, key=lambda row: tuple(row[key] for key in order))
    want_path = sorted(critical_path_by_ticks(*tables), key=lambda row: tuple(row[key] for key in order))
    for mine, theirs in itertools.zip_longest(got_path, want_path):
        assert mine == theirs


def check(run: drawn.Run) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows, path = answers(run, Path(folder) / "run")
    same(run, rows, path)


def test_the_worked_example() -> None:
    check(drawn.EXAMPLE)


@given(drawn.runs())
@cases(6)
def test_the_partition_is_what_stepping_through_every_tick_gives(run: drawn.Run) -> None:
    check(run)


@given(worlds())
@cases(10)
def test_so_it_is_for_many_runs_at_once(every: list[drawn.Run]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows, path = answers(packed(every), Path(folder) / "run")
    for run, mine, segments in zip(
        every, unpacked(rows, len(every)), unpacked(path, len(every)), strict=True
    ):
        same(apart(run), mine, segments)


@pytest.mark.parametrize("offset", [0, 1_760_000_000_000_000_000, 9_000_000_000_000_000_000])
def test_times_from_1970_to_2262_give_the_same_partition(offset: int, tmp_path: Path) -> None:
    moved = drawn.shifted(drawn.EXAMPLE, offset)
    rows, _ = answers(moved, tmp_path / "moved")
    still, _ = answers(drawn.EXAMPLE, tmp_path / "still")
    assert rows == still
