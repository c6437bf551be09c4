"""exposure and critical_path against the tick-by-tick oracle, on drawn runs."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from kvtrace.analyses.critical_path import critical_path
from kvtrace.analyses.exposure import COLUMNS, exposure
from tests.property import drawn
from tests.property.oracle import critical_path_by_ticks, exposure_by_ticks
from tests.rows import write_run

_CASES = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking rebuilds a run a hundred times
)


def _sorted(rows: list[dict[str, Any]], *keys: str) -> list[tuple[Any, ...]]:
    names = sorted(rows[0]) if rows else []
    return sorted((tuple(str(row[key]) for key in keys), *(row[name] for name in names)) for row in rows)


def answers(run: drawn.Run, folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    opened = write_run(folder, span=run.spans, loss=run.losses, process=run.processes)
    return exposure(opened).to_dicts(), critical_path(opened).to_dicts()


def check(run: drawn.Run) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows, path = answers(run, Path(folder) / "run")
    expected = exposure_by_ticks(list(run.spans), list(run.losses), list(run.processes))
    keys = ("request_id", "window", "class", "hop")
    got = pl.DataFrame(rows, schema=COLUMNS).sort(keys).to_dicts()
    want = pl.DataFrame(expected, schema=COLUMNS).sort(keys).to_dicts()
    for mine, theirs in itertools.zip_longest(got, want):
        assert mine == theirs
    expected_path = critical_path_by_ticks(list(run.spans), list(run.losses), list(run.processes))
    order = ("request_id", "seq")
    got_path = sorted(path, key=lambda row: tuple(row[key] for key in order))
    want_path = sorted(expected_path, key=lambda row: tuple(row[key] for key in order))
    for mine, theirs in itertools.zip_longest(got_path, want_path):
        assert mine == theirs


def test_the_worked_example() -> None:
    check(drawn.EXAMPLE)


@given(drawn.runs())
@_CASES
def test_the_partition_is_what_stepping_through_every_tick_gives(run: drawn.Run) -> None:
    check(run)


@pytest.mark.parametrize("offset", [0, 1_760_000_000_000_000_000, 9_000_000_000_000_000_000])
def test_times_from_1970_to_2262_give_the_same_partition(offset: int, tmp_path: Path) -> None:
    moved = drawn.shifted(drawn.EXAMPLE, offset)
    rows, _ = answers(moved, tmp_path / "moved")
    still, _ = answers(drawn.EXAMPLE, tmp_path / "still")
    assert rows == still
