"""What eager_vs_lazy measures of one run, recorded on every sample; and which samples it puts side by side.

No sample stores lazily: a pair of them is refused, and the two runs of a real engine are in
tests/engines/test_eager_vs_lazy.py. `pytest tests/golden --update-goldens` writes the answers anew.
"""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from kvtrace.analyses.eager_vs_lazy import MEASURES, eager_vs_lazy
from kvtrace.analyses.eager_vs_lazy.measures import measured
from kvtrace.analyses.eager_vs_lazy.reusable import lasted
from kvtrace.errors import NotComparableError, UsageError
from polars.testing import assert_frame_equal
from tests.golden.test_goldens import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.run import Run

ANSWERS = Path(__file__).parent / "eager_vs_lazy"
COLUMNS = {"measure": pl.String, "value": pl.Float64, "rows": pl.Int64, "remark": pl.String}


@pytest.mark.parametrize("name", NAMES)
def test_what_is_measured_of_one_run_is_as_recorded(
    sample: Callable[[str], Run], request: pytest.FixtureRequest, name: str
) -> None:
    run = sample(name)
    rows = [(measure, *astuple(found)) for measure, found in measured(run, lasted(run) or 0).items()]
    found = pl.DataFrame(rows, schema=COLUMNS, orient="row")
    assert set(found["measure"]) == set(MEASURES)
    path = ANSWERS / f"{name}.csv"
    if request.config.getoption("--update-goldens"):
        path.parent.mkdir(exist_ok=True)
        found.write_csv(path)
    assert_frame_equal(found, pl.read_csv(path, schema=COLUMNS))


def test_no_recorded_answer_is_left_over() -> None:
    assert {path.stem for path in ANSWERS.glob("*.csv")} == set(NAMES)


def test_a_sample_that_stores_at_once_is_not_taken_for_a_lazy_one(sample: Callable[[str], Run]) -> None:
    with pytest.raises(UsageError, match="given as LAZY, stores eagerly: its connector is known"):
        eager_vs_lazy(sample("l1-reuse"), sample("concurrent"))


def test_samples_of_two_engines_are_not_comparable(
    sample: Callable[[str], Run],
) -> None:
    with pytest.raises(NotComparableError, match="differ in engine"):
        eager_vs_lazy(sample("l1-reuse"), sample("dynamo-1.5.1"))
