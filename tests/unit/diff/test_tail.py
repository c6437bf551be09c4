from __future__ import annotations

from math import log

import numpy as np
import pytest
from kvtrace.diff.tail import ALPHA, LEAST_SHARE, Counted, Tails, count, judge, requests_needed, slow
from scipy import stats

QUIET = Counted((0,), (0,), 10_000)


def judged(by_pair: Counted, noise: Counted | None = None, *, by_request: Counted = QUIET) -> str:
    return judge(Tails(by_pair, by_request), noise, alpha=ALPHA, least_share=LEAST_SHARE)


def test_ratios_are_counted_beyond_1_8_of_their_median_on_either_side() -> None:
    base = np.zeros((7, 1))
    # all are 1.5 times slower: the median; of them 1.79x, 1.81x, 3x, and as much faster
    head = np.log(1.5 * np.array([[1.0], [1.0], [1.0], [1.79], [1.81], [1 / 1.81], [3.0]]))
    assert count(base, head) == Tails(Counted((2,), (1,), 7), Counted((2,), (1,), 7))


def test_runs_are_compared_in_pairs_and_one_without_a_partner_is_left_out() -> None:
    base = np.zeros((3, 2))
    head = np.array([[0.0, 0.0, 9.0], [0.0, 0.0, 9.0], [log(2), -log(2), 0.0]])
    found = count(base, head).by_pair
    assert (found.slower, found.faster) == ((1, 0), (0, 1))
    assert (found.requests, found.share, found.shares()) == (6, 0.0, (1 / 3, -1 / 3))


def test_the_p_is_that_of_the_sign_test() -> None:
    found = Counted((8, 2), (1, 1), 1000)
    assert found.p_slower() == stats.binomtest(10, 12, 0.5, alternative="greater").pvalue
    assert Counted((0,), (0,), 10).p_slower() == 1.0


def test_two_percent_of_the_requests_three_times_slower_are_worse() -> None:
    assert judged(Counted((20, 20), (0, 0), 1000)) == "worse"
    assert judged(Counted((0, 0), (20, 20), 1000)) == "better"


def test_a_sure_excess_of_less_than_half_a_percent_is_not_worse() -> None:
    found = Counted((40, 40), (0, 0), 10_000)
    assert found.p_slower() < 1e-9
    assert judged(found) == "same"


def test_a_wide_but_balanced_spread_is_not_worse() -> None:
    assert judged(Counted((100, 105), (99, 100), 1000)) == "inconclusive"


def test_what_one_pair_alone_shows_is_not_worse() -> None:
    found = Counted((60, 0, 0), (0, 1, 1), 1000)
    assert found.p_slower() <= ALPHA
    assert found.share >= LEAST_SHARE
    assert judged(found) == "inconclusive"


def test_a_single_pair_is_judged_only_beside_noise_runs() -> None:
    single = Counted((20,), (0,), 1000)
    assert judged(single) == "inconclusive"
    assert judged(single, Counted((3,), (1,), 1000)) == "worse"
    assert judged(single, Counted((0,), (21,), 1000)) == "inconclusive"


def test_identical_runs_are_the_same() -> None:
    values = np.log(np.arange(1.0, 1001.0))[:, None].repeat(2, axis=1)
    found = count(values, values)
    assert judged(found.by_pair, by_request=found.by_request) == "same"
    assert (found.by_pair.share, found.by_request.share) == (0.0, 0.0)


def test_too_few_requests_cannot_be_called_the_same() -> None:
    assert judged(Counted((0, 0), (0, 0), 20)) == "inconclusive"


@pytest.mark.parametrize("share", [0.005, 0.02, 0.3])
def test_the_requests_needed_are_the_fewest_that_can_be_called_the_same(share: float) -> None:
    needed = requests_needed(share)
    for keys, said in ((needed, "same"), (needed - 1, "inconclusive")):
        quiet = Counted((0,), (0,), keys)
        assert (
            judge(Tails(Counted((0, 0), (0, 0), keys), quiet), None, alpha=ALPHA, least_share=share) == said
        )
    assert requests_needed(LEAST_SHARE) == 390


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_scaling_all_times_changes_no_count(scale: float) -> None:
    rng = np.random.default_rng(3)
    base, head = rng.normal(0, 0.6, (50, 2)), rng.normal(0, 0.6, (50, 2))
    assert count(base, head) == count(base, head + log(scale))


def test_by_request_the_medians_over_the_runs_are_compared_so_that_one_stall_counts_nothing() -> None:
    base, head = np.zeros((9, 3)), np.zeros((9, 3))
    head[0] = log(3)  # slow in all three
    head[1, :2] = log(3)  # in two
    head[2, 0] = log(100)  # in one
    found = count(base, head)
    assert found.by_request == Counted((2,), (0,), 9)
    assert found.by_pair == Counted((3, 2, 1), (0, 0, 0), 9)


def test_the_same_requests_slow_in_all_runs_are_worse_where_pairs_stray_too_much_to_say() -> None:
    astray = Counted((100, 105), (99, 100), 1000)
    assert judged(astray, by_request=Counted((20,), (0,), 1000)) == "worse"
    assert judged(astray, by_request=Counted((0,), (20,), 1000)) == "better"


def test_asking_twice_costs_a_factor_of_two() -> None:
    nine, ten = (Counted((number,), (0,), 1000) for number in (9, 10))
    assert judged(nine, Counted((0,), (0,), 1000)) == "worse"  # one pair: p 1/512
    assert judged(Counted((0, 0), (0, 0), 1000), by_request=nine) == "inconclusive"
    assert judged(Counted((0, 0), (0, 0), 1000), by_request=ten) == "worse"
    assert Tails(QUIET, nine).p_slower() == 1 / 512
    assert Tails(Counted((0, 0), (0, 0), 10), nine).p_slower() == 2 / 512


def test_slow_requests_are_those_of_the_count_that_shows_them_more_plainly() -> None:
    base, head = np.zeros((9, 3)), np.zeros((9, 3))
    head[0] = log(3)  # slow in all three: by pair 3 + 1, by request 1
    head[1, 2] = log(3)
    assert list(np.flatnonzero(slow(base, head))) == [0, 1]
    astray = np.where(np.arange(9)[:, None] % 2, 1.0, -1.0) * log(3) * (np.arange(9)[:, None] > 2)
    head[:, 1] += astray[:, 0]
    base[:, 2] += astray[:, 0]
    assert list(np.flatnonzero(slow(base, head))) == [0]
