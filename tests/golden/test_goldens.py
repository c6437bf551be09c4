"""Recorded answers: every row of an analysis on every shipped recording, and on a run without a row.

After a change that is meant, `pytest tests/golden --update-goldens` writes them anew: read the difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from kvtrace.analyses import question
from polars.testing import assert_frame_equal
from tests.golden.conftest import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.run import Run

HERE = Path(__file__).parent
ORDER = {
    "exposure": ("request_id", "window", "class", "hop"),
    "critical_path": ("request_id", "window", "seq"),
    "blockers": ("request_id", "blocker_request_id", "class", "reason"),
    "fallbacks": ("request_id",),
    "hold": ("request_id", "start_ns", "transfer_id"),
    "held_share": ("time_ns",),
    "engine_numbers": ("engine", "number"),
    "explain": ("request_id", "position"),
    "hit_funnel": ("request_id",),
    "hit_ratio": ("tier", "component"),
    "ideal_hit_ratio": ("key_space",),
    "ledger": ("request_id",),
    "residency": ("tier", "component", "time_ns"),
    "store_lag": ("request_id",),
    "missed_by_lag": ("request_id", "producer_request_id"),
    "four_events": ("request_id", "first_position"),
    "visibility": ("backend", "tier"),
    "break_even": ("request_id",),
    "verdict": ("request_id",),
    "bandwidth": ("tier_from", "tier_to", "component", "includes_queue"),
    "lock_contract": ("invariant", "request_id", "key", "time_ns"),
    "compatibility": ("invariant", "request_id", "key", "time_ns", "field"),
    "waste": ("tier", "component"),
    "miss_ratio_curve": ("tier", "component", "key_space", "tenant", "capacity_keys"),
    "slo": ("group", "metric"),
    "whatif": ("change", "quantile"),
    "blend": ("request_id",),
}
"""Analysis -> the columns that name a row."""
INSTANTS = (
    "start_ns", "end_ns", "time_ns", "finished_ns", "queued_ns", "submitted_ns", "completed_ns",
    "published_ns", "exists_ns", "visible_ns", "selected_ns", "loaded_ns", "store_completed_ns",
)  # fmt: skip
NAMES = (*sorted(path.parent.name for path in SAMPLES.glob("*/raw")), "empty")


def answer(analysis: str, run: Run) -> pl.DataFrame:
    """The answer in a fixed order, instants counted from the run's first record."""
    frame = question(analysis)(run)
    ((first_ns,),) = run.connection().sql("SELECT coalesce(min(start_ns), 0) FROM span").fetchall()
    instants = [name for name in INSTANTS if name in frame.columns]
    return frame.with_columns(pl.col(instants) - first_ns).sort(ORDER[analysis], nulls_last=False)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("analysis", ORDER)
def test_the_answer_is_the_recorded_one(
    sample: Callable[[str], Run], request: pytest.FixtureRequest, analysis: str, name: str
) -> None:
    found = answer(analysis, sample(name))
    path = HERE / analysis / f"{name}.csv"
    if request.config.getoption("--update-goldens"):
        path.parent.mkdir(exist_ok=True)
        found.write_csv(path)
    assert_frame_equal(found, pl.read_csv(path, schema=found.schema))


@pytest.mark.parametrize("analysis", ORDER)
def test_no_recorded_answer_is_left_over(analysis: str) -> None:
    assert {path.stem for path in (HERE / analysis).glob("*.csv")} == set(NAMES)


@pytest.mark.parametrize("analysis", ORDER)
def test_a_row_is_named_by_its_columns(analysis: str) -> None:
    """Of the recorded answers, which the first test holds to be the answers."""
    for name in NAMES:
        keys = pl.read_csv(HERE / analysis / f"{name}.csv", infer_schema=False).select(ORDER[analysis])
        assert keys.is_duplicated().sum() == 0
