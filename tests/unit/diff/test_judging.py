from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from kvtrace.diff.findings import COLUMNS, Finding, frame
from kvtrace.diff.gates import Gate
from kvtrace.diff.judging import Sides, judge_gates
from kvtrace.diff.pairing import pair

TTFT = Gate("ttft_ns", "relative", 0.02)
TOKENS = Gate("recomputed_tokens", "tokens", 1.0)


def runs(*means: float, keys: int = 3) -> list[pl.DataFrame]:
    """A run a mean; its requests are 1, 2, 3 ... times that."""
    return [
        pl.DataFrame({"key": [f"k{k}" for k in range(keys)], "value": [mean * (k + 1) for k in range(keys)]})
        for mean in means
    ]


def ask(gate: Gate, sides: Sides, *means: float) -> Finding:
    paired = pair(runs(*means), relative=gate.unit == "relative")
    (found,) = judge_gates([(gate, paired)], sides)
    return found


def test_a_clear_rise_over_three_and_three_runs_is_worse() -> None:
    found = ask(TTFT, Sides(3, 3), 100, 101, 99, 110, 111, 109)
    assert found.verdict == "worse"
    assert (found.runs, found.paired, found.unit) == ("3+3", True, "relative")
    assert found.change == pytest.approx(0.1, abs=1e-3)
    assert found.base is not None
    assert found.head == pytest.approx(found.base * (1 + found.change))
    assert (found.p_value, found.p_adjusted) == pytest.approx((0.05, 0.05))
    assert "3 requests paired" in found.because
    assert "\n" not in found.because


def test_the_same_change_the_other_way_is_better_and_higher_turns_both() -> None:
    assert ask(TTFT, Sides(3, 3), 110, 111, 109, 100, 101, 99).verdict == "better"
    higher = Gate("ttft_ns", "relative", 0.02, "higher")
    assert ask(higher, Sides(3, 3), 110, 111, 109, 100, 101, 99).verdict == "worse"
    assert ask(higher, Sides(3, 3), 100, 101, 99, 110, 111, 109).verdict == "better"


def test_the_same_runs_on_both_sides_are_same_and_move_by_0() -> None:
    found = ask(TTFT, Sides(3, 3), 100, 101, 100.5, 100, 101, 100.5)
    assert (found.verdict, found.change) == ("same", 0.0)


def test_scaling_all_times_changes_no_verdict_and_no_relative_number() -> None:
    one = ask(TTFT, Sides(3, 3), 100, 103, 99, 104, 111, 109)
    other = ask(TTFT, Sides(3, 3), *(1e6 * mean for mean in (100, 103, 99, 104, 111, 109)))
    assert (one.verdict, one.p_adjusted) == (other.verdict, other.p_adjusted)
    assert (one.change, one.ci_low, one.ci_high) == pytest.approx((other.change, other.ci_low, other.ci_high))


def test_a_rise_from_0_has_no_ratio_and_is_told_in_its_unit() -> None:
    found = ask(TOKENS, Sides(3, 3), 0, 0, 0, 10, 10, 10)
    assert (found.verdict, found.base, found.head, found.change) == ("worse", 0.0, 20.0, 20.0)


def test_runs_too_few_to_reject_are_inconclusive_and_name_the_runs_needed() -> None:
    found = ask(TTFT, Sides(2, 2), 100, 100, 200, 200)
    assert found.verdict == "inconclusive"
    assert "it takes 3+3 runs" in found.because
    assert found.change == pytest.approx(1.0)
    strict = Gate("ttft_ns", "relative", 0.02, alpha=0.001)
    assert "it takes 7+7 runs" in ask(strict, Sides(5, 5), *range(100, 110)).because


def test_one_run_a_side_needs_noise_runs() -> None:
    assert ask(TTFT, Sides(1, 1), 100, 200).verdict == "inconclusive"
    assert "--noise" in ask(TTFT, Sides(1, 1), 100, 200).because
    found = ask(TTFT, Sides(1, 1, 4), 100, 200, 100, 101, 99, 100)
    assert (found.verdict, found.runs) == ("worse", "1+1")
    assert ask(TTFT, Sides(1, 1, 4), 200, 100, 100, 101, 99, 100).verdict == "better"
    assert ask(TTFT, Sides(1, 1, 4), 100, 104, 100, 110, 90, 100).verdict == "inconclusive"
    assert ask(TTFT, Sides(1, 1, 1), 100, 200, 100).verdict == "inconclusive"
    higher = Gate("ttft_ns", "relative", 0.02, "higher")
    assert ask(higher, Sides(1, 1, 4), 200, 100, 100, 101, 99, 100).verdict == "worse"


def test_a_metric_that_a_run_did_not_observe_has_no_verdict_and_costs_the_others_nothing() -> None:
    paired = pair(runs(100, 101, 99, 110, 111, 109), relative=True)
    lone, none = judge_gates([(TTFT, paired), (TOKENS, None)], Sides(3, 3))
    assert (lone.verdict, lone.p_adjusted) == ("worse", pytest.approx(0.05))
    assert (none.verdict, none.base, none.p_value) == (None, None, None)
    assert none.because == "not observed in every run"


def test_quiet_gates_beside_a_loud_one_stay_quiet() -> None:
    rng = np.random.default_rng(5)
    quiet = [pair(runs(*(100 + rng.normal(0, 0.1, 10))), relative=True) for _ in range(20)]
    loud = pair(runs(*(100 + rng.normal(0, 0.1, 5)), *(106 + rng.normal(0, 0.1, 5))), relative=True)
    gates = [(TTFT, each) for each in (loud, *quiet)]
    found = judge_gates(gates, Sides(5, 5))
    assert [each.verdict for each in found] == ["worse"] + ["same"] * 20
    assert found[0].p_adjusted == pytest.approx(1 / 252)


def test_findings_are_rows_with_the_columns_of_the_contract() -> None:
    assert frame([]).schema == COLUMNS
    found = ask(TTFT, Sides(3, 3), 100, 101, 99, 110, 111, 109)
    assert frame([found]).row(0, named=True)["verdict"] == "worse"
