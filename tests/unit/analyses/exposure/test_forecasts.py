"""What somebody only predicted is no part of a request's time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.exposure import exposure
from kvtrace.analyses.whatif import whatif
from polars.testing import assert_frame_equal
from tests.unit.analyses.exposure.drawing import drawn, load, request, scheduler, step, store, wait

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]
SEEN = (request(0, 120, 100), load(10, 30), step(60, 100))


@pytest.mark.parametrize("forecast", [
    load(40, 55, "disk->host"), load(40, 55), store(40, 55), scheduler("lookup", 40, 55), wait(70, 80),
    scheduler("queue", 0, 60, reason="capacity"), scheduler("lock_wait", 40, 55), step(5, 40), step(5, None),
], ids=lambda row: row["op"])  # fmt: skip
def test_a_forecast_changes_no_part_of_a_request_that_somebody_saw(tmp_path: Path, forecast: Row) -> None:
    plain = exposure(drawn(tmp_path / "plain", *SEEN))
    found = exposure(drawn(tmp_path / "more", *SEEN, {**forecast, "evidence": "predicted"}))
    assert_frame_equal(found, plain)


def test_a_predicted_step_makes_nothing_exact(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 120, 100), load(10, 50), {**step(60, 100), "evidence": "predicted"})
    assert set(exposure(run)["bound"]) == {"upper"}


def test_a_request_that_only_a_simulation_knows_has_its_window_and_an_upper_bound(tmp_path: Path) -> None:
    rows = [{**row, "evidence": "predicted"} for row in SEEN]
    found = exposure(drawn(tmp_path, *rows), window="ttft")
    assert found.select("class", "exposed_ns", "bound").rows() == [
        ("compute", None, "upper"), ("other", 100, "upper"),
    ]  # fmt: skip


def test_a_predicted_lookup_and_a_predicted_copy_give_nothing(tmp_path: Path) -> None:
    """Without them: nothing to shorten but the load [10, 30)."""
    forecasts = [scheduler("lookup", 10, 50), load(40, 50)]
    run = drawn(tmp_path, *SEEN, *({**row, "evidence": "predicted"} for row in forecasts))
    (lookups,) = whatif(run, lookup_ns=0).filter(quantile=0.5).to_dicts()
    assert (lookups["ttft_ns"], lookups["predicted_ns"]) == (100, None)
    (copies,) = whatif(run, path="host:gpu", bandwidth_factor=float("inf")).filter(quantile=0.5).to_dicts()
    assert copies["predicted_ns"] == 80
