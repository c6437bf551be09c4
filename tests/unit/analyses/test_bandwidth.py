"""How fast each path is, on literal transfers: bytes, start and end in ms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from kvtrace.analyses.bandwidth import COLUMNS, bandwidth
from kvtrace.analyses.bandwidth.fitting import MOST, even_choice
from kvtrace.analyses.bandwidth.sharing import busy
from kvtrace.errors import UsageError
from tests.rows import write_run
from tests.unit.analyses.exposure.drawing import drawn, load, scheduler

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000
MIB, GIB = 2**20, 2**30


def copy(at: float, took: float, size: int | None, **more: Any) -> dict[str, Any]:
    """A load from host to GPU that a worker saw, in ms."""
    row = load(round(at * MS), round((at + took) * MS), bytes=size, component="c", outcome="ok", **more)
    return {**row, "transfer_id": None}


def one(tmp_path: Path, *rows: dict[str, Any], **options: Any) -> dict[str, Any]:
    (row,) = bandwidth(drawn(tmp_path, *rows), **options).to_dicts()
    return row


def test_4_gib_in_160_ms_are_25_gib_a_second(tmp_path: Path) -> None:
    row = one(tmp_path, copy(0, 160, 4 * GIB))
    assert row["bandwidth_bytes_per_s"] == 25 * GIB
    assert (row["transfers"], row["bytes"], row["overlap"], row["includes_queue"]) == (1, 4 * GIB, 1.0, False)
    assert row["latency_ns"] is None
    assert row["bandwidth_low"] is row["bandwidth_high"] is None


#  ms    1 MiB 3, 2 MiB 5, 4 MiB 9: 1 ms and 2 ms a MiB
def test_sizes_on_a_line_give_its_bandwidth_and_its_latency(tmp_path: Path) -> None:
    row = one(tmp_path, copy(0, 3, MIB), copy(10, 5, 2 * MIB), copy(20, 9, 4 * MIB))
    assert row["bandwidth_bytes_per_s"] == pytest.approx(500 * MIB)
    assert row["latency_ns"] == pytest.approx(1 * MS)


def test_wild_times_do_not_move_the_line(tmp_path: Path) -> None:
    rows = [copy(number * 100, 1 + 2 * number, number * MIB) for number in range(1, 11)]
    rows[4] = copy(500, 95, 5 * MIB)
    rows[7] = copy(800, 0.5, 8 * MIB)
    row = one(tmp_path, *rows)
    assert row["bandwidth_bytes_per_s"] == pytest.approx(500 * MIB)
    assert row["bandwidth_low"] <= 500 * MIB <= row["bandwidth_high"]
    assert row["latency_ns"] == pytest.approx(1 * MS)


def test_of_one_size_only_the_median_is_told_and_no_latency(tmp_path: Path) -> None:
    row = one(
        tmp_path, *(copy(number * 100, took, MIB) for number, took in enumerate((1, 2, 4, 5, 8, 10, 20)))
    )
    assert row["bandwidth_bytes_per_s"] == pytest.approx(200 * MIB)
    assert row["latency_ns"] is None
    assert row["bandwidth_low"] == pytest.approx(50 * MIB)  # of seven the first and the last: 98%
    assert row["bandwidth_high"] == pytest.approx(1000 * MIB)


def test_through_two_transfers_no_line_is_drawn(tmp_path: Path) -> None:
    row = one(tmp_path, copy(0, 4, MIB), copy(10, 5, 2 * MIB))
    assert row["latency_ns"] is None
    assert row["bandwidth_bytes_per_s"] == pytest.approx((250 + 400) / 2 * MIB)


def test_five_transfers_are_too_few_for_an_interval(tmp_path: Path) -> None:
    row = one(tmp_path, *(copy(number * 100, 2 * number, number * MIB) for number in range(1, 6)))
    assert row["bandwidth_bytes_per_s"] == pytest.approx(500 * MIB)
    assert row["bandwidth_low"] is row["bandwidth_high"] is None


def test_times_that_do_not_grow_with_bytes_give_no_bandwidth(tmp_path: Path) -> None:
    row = one(tmp_path, *(copy(number * 100, 20 - number, number * MIB) for number in range(1, 9)))
    assert row["bandwidth_bytes_per_s"] is None
    assert row["bandwidth_high"] is None
    assert row["latency_ns"] is None


#  |------ 10 -----|
#      |------ 10 -----|       14 ms for 2 MiB
def test_where_transfers_overlap_the_path_s_bytes_count_over_the_time_it_moved_any(tmp_path: Path) -> None:
    row = one(tmp_path, copy(0, 10, MIB), copy(4, 10, MIB))
    assert row["overlap"] == pytest.approx(20 / 14)
    assert row["bandwidth_bytes_per_s"] == pytest.approx(2 * MIB / 0.014)
    assert row["latency_ns"] is None


def test_an_overlap_of_a_tenth_is_still_fitted(tmp_path: Path) -> None:
    rows = [copy(0, 3, MIB), copy(2.9, 5, 2 * MIB), copy(20, 9, 4 * MIB)]
    assert one(tmp_path, *rows)["latency_ns"] == pytest.approx(1 * MS)


def test_steady_overlap_has_a_narrow_interval_around_its_bandwidth(tmp_path: Path) -> None:
    """Two at a time without a pause, 10 ms each: 200 MiB a second."""
    rows = [copy(number * 5, 10, MIB, request_id=f"r{number}") for number in range(80)]
    row = one(tmp_path, *rows)
    assert row["bandwidth_bytes_per_s"] == pytest.approx(80 * MIB / 0.405)
    assert row["bandwidth_low"] < row["bandwidth_bytes_per_s"] < row["bandwidth_high"] * 1.0001
    assert row["bandwidth_high"] / row["bandwidth_low"] < 1.2


#  |= 2 at a time =|   ... a pause ...   |= 2 at a time =|
def test_a_pause_is_no_part_of_the_interval(tmp_path: Path) -> None:
    rows = [
        copy(at + 10 * number + extra, 10, MIB, request_id=f"{at}-{number}-{extra}")
        for at in (0, 5000)
        for number in range(20)
        for extra in (0, 0.000001)
    ]
    row = one(tmp_path, *rows)
    assert row["overlap"] == pytest.approx(2, rel=1e-4)
    for name in ("bandwidth_bytes_per_s", "bandwidth_low", "bandwidth_high"):
        assert row[name] == pytest.approx(200 * MIB, rel=1e-3)


def test_busy_time_is_the_union_and_what_touches_is_one() -> None:
    start, end = np.array([5, 0, 20, 2, 10]), np.array([10, 4, 30, 6, 12])
    begin, stop = busy(start, end)
    assert list(zip(begin.tolist(), stop.tolist(), strict=True)) == [(0, 12), (20, 30)]


@pytest.mark.parametrize(
    "more",
    [
        {"observer": "scheduler"},
        {"observer": "client"},
        {"observer": "server", "name": "mp.retrieve"},
        {"observer": "server", "component": "lmcache.l2.fs"},
        {"attributes": {"times": "submit_to_result"}},
    ],
)
def test_who_saw_only_the_whole_has_a_row_of_its_own_without_latency(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    rows = [copy(number * 100, 1 + 2 * number, number * MIB) for number in range(1, 11)]
    rows += [
        {**copy(number * 100, 90, number * MIB, request_id=f"w{number}"), **more} for number in (5, 6, 7)
    ]
    found = {row["includes_queue"]: row for row in bandwidth(drawn(tmp_path, *rows)).to_dicts()}
    assert (found[False]["transfers"], found[True]["transfers"]) == (10, 3)
    assert found[False]["bandwidth_bytes_per_s"] == pytest.approx(500 * MIB)
    assert found[True]["bandwidth_bytes_per_s"] == pytest.approx(6 * MIB / 0.090)
    assert found[True]["latency_ns"] is None


def test_an_l2_copy_timed_by_the_device_is_a_copy(tmp_path: Path) -> None:
    assert not one(tmp_path, {**copy(0, 5, MIB), "component": "lmcache.l2.gds", "clock": "gpu"})[
        "includes_queue"
    ]


def test_a_copy_seen_inside_the_schedulers_whole_is_measured_by_its_own_times(tmp_path: Path) -> None:
    whole = scheduler(
        "load", 0, 100 * MS, submit_ns=0, tier_from="host", tier_to="gpu", transfer_id="t", bytes=None
    )
    row = one(tmp_path, whole, {**copy(40, 10, MIB), "transfer_id": "t"})
    assert row["bandwidth_bytes_per_s"] == pytest.approx(100 * MIB)
    assert not row["includes_queue"]


@pytest.mark.parametrize(
    "more",
    [
        {"outcome": "failed"},
        {"outcome": "timeout"},
        {"outcome": "partial"},
        {"outcome": "open"},
        {"end_ns": None},
        {"bytes": 0},
        {"bytes": None},
        {"end_ns": 0},
        {"evidence": "predicted"},
    ],
)
def test_what_is_no_measurement_is_left_out(tmp_path: Path, more: dict[str, Any]) -> None:
    assert bandwidth(drawn(tmp_path, {**copy(0, 1, MIB), **more})).is_empty()


@pytest.mark.parametrize("outcome", [None, "unknown"])
def test_an_outcome_that_nobody_knows_is_measured(tmp_path: Path, outcome: str | None) -> None:
    assert one(tmp_path, {**copy(0, 1, MIB), "outcome": outcome})["transfers"] == 1


def test_ranks_of_one_transfer_are_one_transfer_of_all_their_bytes(tmp_path: Path) -> None:
    rows = [{**copy(0, took, MIB), "transfer_id": "t", "rank": rank} for rank, took in enumerate((8, 10))]
    row = one(tmp_path, *rows)
    assert (row["transfers"], row["bandwidth_bytes_per_s"]) == (1, pytest.approx(200 * MIB))


def test_paths_components_and_engines_are_apart(tmp_path: Path) -> None:
    rows = [
        copy(0, 1, MIB),
        {**copy(5, 1, MIB), "component": None},
        {**copy(10, 2, MIB), "tier_from": "disk", "engine": "e1"},
    ]
    run = drawn(tmp_path, *rows)
    found = bandwidth(run)
    assert found.select("tier_from", "component").rows() == [("disk", "c"), ("host", "c"), ("host", None)]
    assert bandwidth(run, engine="e1")["tier_from"].to_list() == ["disk"]


def test_bytes_beyond_64_bits_are_null_and_the_bandwidth_is_not(tmp_path: Path) -> None:
    row = one(tmp_path, *(copy(at, 1, 2**62) for at in (0, 5, 10)))
    assert row["bytes"] is None
    assert row["bandwidth_bytes_per_s"] == pytest.approx(2.0**62 * 1000)


def test_of_many_transfers_rare_sizes_stay_and_the_others_are_thinned_evenly() -> None:
    size = np.r_[np.full(50_000, 8), np.full(3, 4), np.full(50_000, 2)]
    took = np.r_[np.arange(50_000), [7, 8, 9], np.arange(50_000)]
    chosen = even_choice(took, size)
    assert len(chosen) <= MOST
    assert sorted(took[chosen][size[chosen] == 4].tolist()) == [7, 8, 9]
    for each in (2, 8):
        mine = took[chosen][size[chosen] == each]
        assert len(mine) > 590
        assert np.median(mine) == pytest.approx(25_000, abs=2)


def test_of_more_sizes_than_can_be_compared_evenly_many_stay() -> None:
    size = np.arange(10_000)
    chosen = even_choice(size, size)
    assert len(chosen) == MOST
    assert np.diff(np.sort(size[chosen])).max() <= 9


@pytest.mark.parametrize("confidence", [0.4, 1.0])
def test_a_confidence_that_is_none_is_refused(tmp_path: Path, confidence: float) -> None:
    with pytest.raises(UsageError, match="bandwidth: confidence must be at least"):
        bandwidth(write_run(tmp_path / "run"), confidence=confidence)


def test_an_empty_run_has_the_columns(tmp_path: Path) -> None:
    found = bandwidth(write_run(tmp_path / "run"))
    assert found.is_empty()
    assert found.schema == COLUMNS
