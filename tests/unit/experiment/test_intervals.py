"""Intervals: Student's over runs, and the bootstrap of a quantile without resampling."""

from __future__ import annotations

import numpy as np
import pytest
from kvtrace.experiment.groups.intervals import of_quantile, over_runs, possible
from scipy import stats


def test_over_runs_it_is_students() -> None:
    values = [10.0, 12.0, 11.0, 15.0]
    wanted = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert over_runs(values) == pytest.approx((wanted.low, wanted.high))
    assert over_runs([3.0]) == (None, None)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_quantile_has_the_interval_that_resampling_goes_to(share: float) -> None:
    ordered = np.sort(np.random.default_rng(7).exponential(size=60))

    def of(sample: np.ndarray, axis: int) -> np.ndarray:
        return np.quantile(sample, share, axis=axis, method="inverted_cdf")

    drawn = stats.bootstrap(
        (ordered,), of, n_resamples=20_000, method="percentile", rng=np.random.default_rng(3)
    ).confidence_interval
    value, (low, high) = of_quantile(ordered, share)
    places = np.searchsorted(ordered, [low, high, drawn.low, drawn.high])
    assert value == np.quantile(ordered, share, method="inverted_cdf")
    assert abs(places[0] - places[2]) <= 1, "percentiles of a discrete distribution: a rank at most"
    assert abs(places[1] - places[3]) <= 1


def test_an_end_that_so_few_requests_cannot_tell_is_null() -> None:
    """0.9**36 is the first power of 0.9 below 2.5%: of 35 requests the p90 may lie beyond all."""
    assert of_quantile(np.arange(35.0), 0.9)[1][1] is None
    assert of_quantile(np.arange(36.0), 0.9)[1][1] in (34.0, 35.0)
    assert of_quantile(np.arange(5.0), 0.5)[1] == (None, None)
    low, high = of_quantile(np.arange(6.0), 0.5)[1]
    assert low is not None
    assert high is not None
    assert of_quantile(np.array([]), 0.5) == (None, (None, None))


@pytest.mark.parametrize(("count", "share"), [(40, 0.5), (60, 0.9), (500, 0.99)])
def test_its_ends_are_those_of_the_binomial_distribution(count: int, share: float) -> None:
    place = int(np.ceil(count * share))
    at_most = stats.binom.sf(place - 1, count, np.arange(1, count + 1) / count)
    wanted = tuple(float(np.argmax(at_most >= level)) for level in (0.025, 0.975))
    assert of_quantile(np.arange(float(count)), share)[1] == wanted


def test_an_interval_is_cut_to_what_can_be() -> None:
    assert possible(*over_runs([1.0, 0.75]), "share") == (0.0, 1.0)
    low, high = possible(*over_runs([1.0, 0.0]), "count")
    assert (low, high) == (0.0, pytest.approx(6.853, abs=1e-3))
    assert possible(-1.7, 0.4, "share", change=True) == (-1.0, 0.4)
    assert possible(-3.0, 4.0, "ns", change=True) == (-3.0, 4.0)
    assert possible(None, None, "ns") == (None, None)
