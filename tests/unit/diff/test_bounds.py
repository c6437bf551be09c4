from __future__ import annotations

import numpy as np
import pytest
from kvtrace.diff.noise import holm, noise_bounds
from kvtrace.diff.welch import welch
from scipy import stats

BASE, HEAD = np.array([1.0, 2.0, 4.0]), np.array([3.0, 3.5, 7.0, 9.0])


def test_welch_is_scipys_test_of_unequal_variances() -> None:
    found = welch(BASE, HEAD)
    assert found is not None
    oracle = stats.ttest_ind(HEAD, BASE, equal_var=False)
    two_sided, one_sided = oracle.confidence_interval(0.95), oracle.confidence_interval(0.90)
    assert found.degrees == pytest.approx(oracle.df)
    assert found.interval() == pytest.approx((two_sided.low, two_sided.high))
    assert (found.lower(), found.upper()) == pytest.approx((one_sided.low, one_sided.high))
    above = stats.ttest_ind(HEAD, BASE, equal_var=False, alternative="greater")
    assert found.p_above() == pytest.approx(above.pvalue)


def test_with_one_run_on_a_side_the_spread_is_the_other_sides() -> None:
    found = welch(np.array([1.0]), HEAD)
    oracle = stats.ttest_ind(HEAD, [1.0], equal_var=True).confidence_interval(0.95)
    assert found is not None
    assert found.interval() == pytest.approx((oracle.low, oracle.high))


def test_one_run_a_side_has_no_bounds() -> None:
    assert welch(np.array([1.0]), np.array([2.0])) is None


def test_without_spread_the_bounds_are_the_difference() -> None:
    found = welch(np.array([1.0, 1.0]), np.array([3.0, 3.0]))
    assert found is not None
    assert (found.lower(), found.interval(), found.p_above()) == (2.0, (2.0, 2.0), 0.0)
    still = welch(np.array([1.0, 1.0]), np.array([1.0, 1.0]))
    assert still is not None
    assert still.p_above() == 1.0


def test_a_tiny_spread_keeps_its_degrees() -> None:
    found = welch(np.array([0.0, 1e-150]), np.array([0.0, 1e-150]))
    assert found is not None
    assert found.degrees == pytest.approx(2)


def test_noise_runs_give_the_spread_that_one_run_a_side_lacks() -> None:
    # A/A runs 1, 2, 3: variance 1 with 2 degrees; a difference of two single runs has variance 2
    found = noise_bounds(np.array([10.0]), np.array([15.0]), [np.array([1.0, 2.0, 3.0])])
    assert found is not None
    reach = np.sqrt(2) * stats.t.ppf(0.95, 2)
    assert (found.difference, found.degrees) == (5.0, 2)
    assert found.lower() == pytest.approx(5 - reach)
    assert found.p_above() == pytest.approx(stats.t.sf(5 / np.sqrt(2), 2))


def test_groups_of_noise_runs_are_pooled_around_their_own_means() -> None:
    groups = [np.array([1.0, 3.0]), np.array([101.0, 105.0]), np.array([7.0])]
    found = noise_bounds(np.array([0.0]), np.array([1.0]), groups)
    assert found is not None
    assert (found.degrees, found.error) == (2, pytest.approx(np.sqrt((2 + 8) / 2 * 2)))


@pytest.mark.parametrize("groups", [[], [np.array([1.0])], [np.array([])]])
def test_fewer_than_two_noise_runs_say_nothing(groups: list[np.ndarray]) -> None:
    assert noise_bounds(np.array([0.0]), np.array([1.0]), groups) is None


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []
