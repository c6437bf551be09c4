"""Laws of the measured bandwidth, on drawn transfers; and a known line with noise is found again."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kvtrace.analyses.bandwidth import bandwidth, speeds
from kvtrace.analyses.bandwidth.fitting import alone
from kvtrace.analyses.bandwidth.sharing import busy, overlap_of
from polars.testing import assert_frame_equal
from tests.property.test_exposure import cases
from tests.rows import write_run

SPEEDS = ["bandwidth_bytes_per_s", "bandwidth_low", "bandwidth_high"]

Transfer = tuple[int, int, int]
transfers = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(1, 60), st.sampled_from((1, 2, 3, 8, 40))),
    min_size=1,
    max_size=40,
)


def frame(rows: list[Transfer]) -> pl.DataFrame:
    """Start, duration and bytes -> measured transfers of one path."""
    where = {"tier_from": "host", "tier_to": "gpu", "component": "c", "includes_queue": False}
    made = [{**where, "start_ns": at, "end_ns": at + took, "bytes": size} for at, took, size in rows]
    return pl.DataFrame(made).sort("bytes", "start_ns", "end_ns")


@cases(100)
@given(transfers, st.integers(2, 1000))
def test_n_times_the_bytes_in_n_times_the_time_is_the_same_bandwidth(
    rows: list[Transfer], times: int
) -> None:
    grown = [(at * times, took * times, size * times) for at, took, size in rows]
    assert_frame_equal(
        speeds(frame(grown)).select(*SPEEDS, "overlap"), speeds(frame(rows)).select(*SPEEDS, "overlap")
    )


@cases(100)
@given(transfers, st.integers(2, 1000))
def test_n_times_the_bytes_in_the_same_time_is_n_times_the_bandwidth(
    rows: list[Transfer], times: int
) -> None:
    grown = [(at, took, size * times) for at, took, size in rows]
    expected = speeds(frame(rows))
    found = speeds(frame(grown))
    assert_frame_equal(found.select(SPEEDS), expected.select(pl.col(SPEEDS) * times))
    assert_frame_equal(found.select("latency_ns"), expected.select("latency_ns"), abs_tol=1e-6)


@cases(100)
@given(transfers, st.integers(-1000, 1_790_000_000_000_000_000))
def test_when_it_was_changes_nothing(rows: list[Transfer], later: int) -> None:
    shifted = [(at + later, took, size) for at, took, size in rows]
    assert_frame_equal(speeds(frame(shifted)), speeds(frame(rows)))


@cases(100)
@example([(143, 20, 3), (413, 20, 3), (20, 20, 8)])
@given(transfers)
def test_bytes_over_busy_time_and_overlap_are_those_of_a_plain_count(rows: list[Transfer]) -> None:
    moved = frame(rows)
    start, end = moved["start_ns"].to_numpy(), moved["end_ns"].to_numpy()
    instants = {ns for at, took, _ in rows for ns in range(at, at + took)}
    begin, stop = busy(start, end)
    assert int((stop - begin).sum()) == len(instants)
    assert overlap_of(start, end) == pytest.approx(sum(took for _, took, _ in rows) / len(instants))
    (row,) = speeds(moved).to_dicts()
    if row["overlap"] > 1.1:
        total = sum(size for *_, size in rows)
        assert row["bandwidth_bytes_per_s"] == pytest.approx(total / len(instants) * 1e9)
    low, high = row["bandwidth_low"], row["bandwidth_high"]
    middle = row["bandwidth_bytes_per_s"]
    if middle is not None:
        assert low is None or low <= middle * (1 + 1e-9)
        assert high is None or middle <= high * (1 + 1e-9)


@cases(30)
@given(
    st.floats(0.1, 400),
    st.integers(0, 5_000_000),
    st.integers(20, 200),
    st.integers(0, 2**32 - 1),
)
def test_a_known_line_with_noise_is_recovered(
    gib_per_s: float, latency_ns: int, number: int, seed: int
) -> None:
    """At 99.9999% confidence: a law that is wrong one time in twenty is no law."""
    rng = np.random.default_rng(seed)
    size = rng.choice([2**20, 2**22, 2**23, 2**24], number)
    exact = latency_ns + size / (gib_per_s * 2**30) * 1e9
    took = np.maximum(1, np.rint(exact * (1 + rng.normal(0, 0.02, number))).astype(np.int64))
    found = alone(took, size, 0.999999)
    if len(np.unique(size)) > 1 and found.low is not None:
        assert found.low <= gib_per_s * 2**30 * (1 + 1e-3)
        assert (found.high or math.inf) >= gib_per_s * 2**30 * (1 - 1e-3)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """400 drawn worlds at 95%: binomial, five standard deviations wide."""
    held = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        size = rng.choice([2**20, 2**22, 2**24], 60)
        took = np.rint(200_000 + size / 2**34 * 1e9 + rng.normal(0, 60_000, 60)).astype(np.int64)
        found = alone(np.maximum(took, 1), size, 0.95)
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 2**34 <= found.high
    assert 0.95 - 5 * math.sqrt(0.95 * 0.05 / 400) < held / 400


def test_the_order_of_rows_changes_nothing() -> None:
    rng = np.random.default_rng(3)
    rows: list[dict[str, Any]] = [
        {
            "op": "load", "tier_from": "host", "tier_to": "gpu", "component": "c", "observer": "worker",
            "request_id": f"r{number}", "outcome": "ok", "start_ns": number * 100, "span_id": number,
            "end_ns": number * 100 + int(rng.integers(10, 60)), "bytes": int(rng.choice([64, 128, 512])),
        }
        for number in range(3000)
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        one = bandwidth(write_run(Path(folder) / "one", span=rows))
        other = bandwidth(write_run(Path(folder) / "other", span=rows[::-1]))
    assert one.height == 1
    assert_frame_equal(one, other)
