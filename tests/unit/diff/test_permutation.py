from __future__ import annotations

import numpy as np
import pytest
from kvtrace.diff import permutation
from kvtrace.diff.permutation import p_values, relabelings, runs_needed, smallest_p, step_down, studentised


def test_two_and_two_runs_have_six_relabelings_and_the_one_seen_is_the_first() -> None:
    labels = relabelings(2, 2)
    assert labels.shape == (6, 4)
    assert list(labels[0]) == [False, False, True, True]
    assert len({tuple(row) for row in labels}) == 6
    assert set(labels.sum(axis=1)) == {2}


def test_two_and_two_by_hand() -> None:
    # base 0, 1 | head 10, 12: difference 10.5, variances 0.5 and 2 -> 10.5 / sqrt(0.25 + 1)
    statistics = studentised(np.array([[0.0, 1.0, 10.0, 12.0]]), relabelings(2, 2))
    assert statistics[0, 0] == pytest.approx(10.5 / np.sqrt(1.25))
    assert p_values(statistics) == pytest.approx([1 / 6])


def test_the_other_side_of_the_order_is_the_largest_p() -> None:
    statistics = studentised(np.array([[10.0, 12.0, 0.0, 1.0]]), relabelings(2, 2))
    assert p_values(statistics) == pytest.approx([1.0])


def test_runs_that_are_all_equal_have_statistic_0_and_p_1() -> None:
    statistics = studentised(np.full((1, 6), 3.7), relabelings(3, 3))
    assert not statistics.any()
    assert p_values(statistics) == pytest.approx([1.0])


def test_no_spread_within_either_side_is_finite_and_the_smallest_p() -> None:
    statistics = studentised(np.array([[1.0, 1.0, 1.0, 2.0, 2.0, 2.0]]), relabelings(3, 3))
    assert np.isfinite(statistics).all()
    assert p_values(statistics) == pytest.approx([1 / 20])


def test_equal_runs_on_both_sides_are_counted_as_ties() -> None:
    # one head run equals one base run: two relabelings give the same groups of numbers
    statistics = studentised(np.array([[1.0, 2.0, 2.0, 3.0]]), relabelings(2, 2))
    assert p_values(statistics) == pytest.approx([2 / 6])


def test_one_run_against_many_uses_the_pooled_spread() -> None:
    statistics = studentised(np.array([[5.0, 1.0, 2.0, 3.0]]), relabelings(1, 3))
    # mean 2 against 5, pooled variance (0 + 2) / 2 = 1, over (1 + 1/3)
    assert statistics[0, 0] == pytest.approx(-3 / np.sqrt(4 / 3))
    assert p_values(statistics) == pytest.approx([1.0])


def test_one_clear_gate_among_quiet_ones_keeps_the_smallest_p() -> None:
    effects = np.vstack([[0.0, 0.1, 0.2, 5.0, 5.1, 5.3], np.zeros((29, 6))])
    adjusted = step_down(studentised(effects, relabelings(3, 3)))
    assert adjusted[0] == pytest.approx(1 / 20)
    assert adjusted[1:] == pytest.approx(np.ones(29))


def test_gates_that_move_together_cost_one_another_nothing() -> None:
    row = np.array([0.0, 0.3, 0.1, 0.9, 1.0, 0.25])
    statistics = studentised(np.vstack([row, 2 * row, 7 * row]), relabelings(3, 3))
    assert step_down(statistics) == pytest.approx(p_values(statistics))


@pytest.mark.parametrize(("alpha", "runs"), [(0.5, 1), (0.05, 3), (0.01, 5), (0.004, 5), (0.003, 6)])
def test_the_runs_needed_are_the_fewest_whose_smallest_p_reaches_alpha(alpha: float, runs: int) -> None:
    assert runs_needed(alpha) == runs
    assert smallest_p(runs, runs) <= alpha
    assert runs == 1 or smallest_p(runs - 1, runs - 1) > alpha


def test_no_number_of_runs_reaches_an_alpha_below_all() -> None:
    assert runs_needed(1e-9) is None


def test_five_and_five_runs_reach_1_in_252() -> None:
    assert smallest_p(5, 5) == pytest.approx(1 / 252)


def test_beyond_what_can_be_enumerated_a_draw_with_the_one_seen_stands_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(permutation, "MOST", 100)
    labels = relabelings(5, 5)
    assert labels.shape == (100, 10)
    assert list(labels[0]) == [False] * 5 + [True] * 5
    assert set(labels.sum(axis=1)) == {5}
    assert smallest_p(5, 5) == pytest.approx(1 / 100)


def test_step_down_by_hand() -> None:
    # Two relabelings matter: the one seen, and heads = runs 2 and 4, where the second gate has 10 / 0.0707.
    #   first gate   9.39 seen; elsewhere less, but the second gate's 141 counts against it: 1/6 -> 2/6
    #   second gate  0.1 / 7.07 seen; alone it is beaten once: 2/6
    statistics = studentised(np.array([[0.0, 1.0, 10.0, 12.0], [0.0, 10.0, 0.1, 10.1]]), relabelings(2, 2))
    assert p_values(statistics) == pytest.approx([1 / 6, 2 / 6])
    assert step_down(statistics) == pytest.approx([2 / 6, 2 / 6])
