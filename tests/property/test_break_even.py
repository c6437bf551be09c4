"""break_even against plain loops on drawn runs; the laws of its lines through prefill steps."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvtrace.analyses._served import table as served_table
from kvtrace.analyses.bandwidth import bandwidth
from kvtrace.analyses.bandwidth.rows import measured, seen
from kvtrace.analyses.break_even import break_even
from kvtrace.analyses.break_even.recompute import fitted
from kvtrace.analyses.break_even.steps import prefill_steps
from kvtrace.analyses.exposure import exposure
from kvtrace.analyses.hit_funnel import hit_funnel
from kvtrace.analyses.verdict import verdict
from tests.property.drawn_funnel import Drawn, rarely, runs
from tests.property.oracle_break_even import (
    bound,
    computing,
    first_loads,
    least_deviation,
    moved,
    paid,
)
from tests.property.test_exposure import cases
from tests.rows import write_run

Row = dict[str, Any]


def with_bytes(run: Drawn) -> list[Row]:
    """The spans, with bytes for most loads; every other request's loads all end well."""
    rows = []
    for number, row in enumerate(run.span):
        more: Row = {}
        if row["op"] == "load":
            more = {"bytes": None if number % 7 == 0 else (row["tokens"] or 3) * 64, "component": "c"}
            if int(row["request_id"][1:]) % 2:
                more |= {
                    "outcome": "ok",
                    "end_ns": row["start_ns"] + 5,
                    "purpose": "reuse",
                    "bytes": 64 * number,
                }
        rows.append({**row, **more})
    return rows


@given(runs())
@cases(6)
def test_bytes_bounds_and_cost_are_what_plain_loops_give(run: Drawn) -> None:
    with tempfile.TemporaryDirectory() as folder:
        opened = write_run(Path(folder) / "run", span=with_bytes(run), request_key=run.request_key)
        rows = break_even(opened).to_dicts()
        transfers = opened.connection().sql("SELECT * FROM transfer").pl().to_dicts()
        facts = {row["request_id"]: row for row in pl.read_parquet(served_table(opened)).to_dicts()}
        funnel = {row["request_id"]: row["loaded_tokens"] for row in hit_funnel(opened).to_dicts()}
        parts, paths = exposure(opened).to_dicts(), bandwidth(opened).to_dicts()
        moves = measured(seen(opened)).to_dicts()
        hits = {row["request_id"]: row for row in verdict(opened).to_dicts()}
    loads = first_loads(transfers, {name: fact["again_ns"] for name, fact in facts.items()})
    assert {row["request_id"] for row in rows} == set(loads)
    for row in rows:
        name = row["request_id"]
        mine = loads[name]
        size, tokens = moved(mine, "bytes"), moved(mine, "tokens")
        used = funnel[name] if facts[name]["handoffs"] == 0 else None
        assert row["moved_bytes"] == size, run.of(name)
        if used == 0:
            assert row["useful_bytes"] == 0
        elif used is None or not tokens or size is None:
            assert row["useful_bytes"] is None
        else:
            assert row["useful_bytes"] == min(size, used * size // tokens)
        slowest, total = bound(mine, paths, moves)
        assert row["load_lower_bound_pipelined_ns"] == pytest.approx(slowest, abs=1), run.of(name)
        assert row["load_lower_bound_serial_ns"] == pytest.approx(total, abs=1)
        if (cost := paid(parts, name)) is not None:
            assert row["cost_ns"] == cost
        if name in hits:
            said = {"worth": "yes", "not_worth": "no", "unclear": "unclear"}[row["verdict"]]
            assert hits[name]["worth_it"] == said
        laws(row)


def laws(row: Row) -> None:
    """What holds of every row."""
    slowest, total = row["load_lower_bound_pipelined_ns"], row["load_lower_bound_serial_ns"]
    assert (slowest is None) == (total is None)
    assert slowest is None or slowest <= total
    assert (
        row["useful_bytes"] is None or row["moved_bytes"] is None or row["useful_bytes"] <= row["moved_bytes"]
    )
    estimate, cost = row["recompute_estimate_ns"], row["cost_ns"]
    known = estimate is not None and cost is not None
    assert row["saved_ns"] == (estimate - cost if known else None)
    if row["verdict"] != "unclear" and known:
        assert (row["saved_ns"] > 0) == (row["verdict"] == "worth")


member = st.fixed_dictionaries(
    {
        "request_id": st.just("r"), "phase": st.sampled_from(("prefill", "prefill", "decode", None)),
        "scheduled_tokens": rarely(st.integers(0, 9)), "computed_before": rarely(st.integers(0, 9)),
    }
)  # fmt: skip
step = st.tuples(st.integers(0, 80), st.integers(0, 20), st.lists(member, min_size=1, max_size=3))
stall = st.tuples(st.integers(0, 80), st.integers(1, 9))


@cases(20)
@given(st.lists(step, max_size=12), st.lists(stall, max_size=5))
def test_steps_compute_where_no_earlier_one_and_no_wait_is(
    steps: list[tuple[int, int, list[Row]]], stalls: list[tuple[int, int]]
) -> None:
    rows: list[Row] = [
        {"op": "step", "start_ns": at, "end_ns": at + long, "engine": "e", "members": members,
         "observer": "scheduler"}
        for at, long, members in steps
    ]  # fmt: skip
    waits: list[Row] = [
        {"op": "wait", "start_ns": at, "end_ns": at + long, "engine": "e"} for at, long in stalls
    ]
    with tempfile.TemporaryDirectory() as folder:
        opened = write_run(Path(folder) / "run", span=[*rows, *waits])
        found = prefill_steps(opened.connection()).get("e")
    told = [] if found is None else sorted(found.select("took_ns", "tokens").iter_rows())
    assert told == sorted(computing(rows, waits))


def frame(sizes: list[tuple[int, int]], took: list[int]) -> pl.DataFrame:
    """Steps of (tokens, tokens before) that took so long."""
    tokens = [float(size) for size, _ in sizes]
    work = [size * (before + size / 2) for size, before in sizes]
    return pl.DataFrame({"took_ns": took, "tokens": tokens, "work": work})


sized = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 60), st.integers(1, 2000)), min_size=3, max_size=8
)


@cases(150)
@given(sized)
def test_no_line_has_a_smaller_sum_of_deviations(rows: list[tuple[int, int, int]]) -> None:
    steps = frame([row[:2] for row in rows], [row[2] for row in rows])
    found = fitted(steps)
    if found is None:
        return
    told = np.c_[np.ones(len(rows)), steps["tokens"], steps["work"]]
    took = steps["took_ns"].to_numpy().astype(float)
    width = (
        3
        if len(np.unique(told, axis=0)) >= 4 and np.linalg.matrix_rank(told / told.max(axis=0), 1e-6) == 3
        else 2
    )
    assert (found.line >= 0).all()
    deviation = np.abs(took - found.estimate(told)).sum()
    assert deviation == pytest.approx(least_deviation(told[:, :width], took), rel=1e-6, abs=1e-6)


@cases(60)
@given(
    st.floats(0, 5e6), st.floats(100, 1e5), st.floats(0, 50), st.integers(8, 60), st.integers(0, 2**32 - 1)
)
def test_a_known_line_is_found_again_however_wild_a_fifth_of_the_steps_is(
    fixed: float, token: float, pair: float, number: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    sizes = [(int(rng.integers(1, 4000)), int(rng.integers(0, 20_000))) for _ in range(number)]
    exact = [fixed + token * size + pair * size * (before + size / 2) for size, before in sizes]
    took = np.array(exact)
    took[: number // 8] *= rng.uniform(3, 30, number // 8)
    found = fitted(frame(sizes, [round(time) for time in took]))
    assert found is not None
    asked = np.array([[0.0, 1000.0, 1000 * 2500.0]])
    assert found.estimate(asked)[0] == pytest.approx(token * 1000 + pair * 1000 * 2500, rel=0.02)


@cases(40)
@given(sized, st.integers(2, 1000))
def test_n_times_the_times_are_n_times_the_estimate(rows: list[tuple[int, int, int]], times: int) -> None:
    sizes, took = [row[:2] for row in rows], [row[2] for row in rows]
    one, more = fitted(frame(sizes, took)), fitted(frame(sizes, [time * times for time in took]))
    assert (one is None) == (more is None)
    if one is not None and more is not None:
        told = np.array([[1.0, 10.0, 200.0]])
        assert more.estimate(told) == pytest.approx(one.estimate(told) * times, rel=1e-6)


def test_the_interval_holds_a_single_step_as_often_as_it_says() -> None:
    """80 drawn worlds of 40 steps with 20% noise, at 90%: binomial, five standard deviations wide."""
    held = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        sizes = [(int(rng.integers(16, 2048)), int(rng.integers(0, 8000))) for _ in range(40)]

        def time(size: int, before: int, rng: np.random.Generator = rng) -> float:
            exact = 2e6 + 4e4 * size + 3 * size * (before + size / 2)
            return float(exact * np.exp(rng.normal(0, 0.2)))

        found = fitted(frame(sizes, [round(time(*size)) for size in sizes]))
        assert found is not None
        ends = found.interval(np.array([[1.0, 1500.0, 1500 * 4750.0]]), 0.9)
        assert ends is not None
        held += ends[0][0] <= time(1500, 4000) <= ends[1][0]
    assert 0.9 - 5 * math.sqrt(0.9 * 0.1 / 80) < held / 80


def test_the_order_of_steps_changes_nothing() -> None:
    rng = np.random.default_rng(1)
    sizes = [(int(rng.integers(1, 2000)), int(rng.integers(0, 4000))) for _ in range(900)]
    took = [round(1e6 + 4e4 * size + 2e6 * rng.random()) for size, _ in sizes]
    one, other = fitted(frame(sizes, took)), fitted(frame(sizes[::-1], took[::-1]))
    assert one is not None
    assert other is not None
    assert one.line == pytest.approx(other.line, rel=1e-9)
    assert one.lines == pytest.approx(other.lines, rel=1e-9, abs=1e-12)
