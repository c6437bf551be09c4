from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from kvtrace.diff.pairing import pair
from kvtrace.errors import InputError


def run(*rows: tuple[str | None, float | None]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"key": pl.String, "value": pl.Float64}, orient="row")


def test_an_effect_is_the_mean_ratio_over_the_requests_that_every_run_has() -> None:
    # a: 1, 4 -> mean log 0.5 log 4; b: 10, 10 -> no effect; c is in one run alone
    found = pair([run(("a", 1.0), ("b", 10.0), ("c", 99.0)), run(("b", 10.0), ("a", 4.0))], relative=True)
    assert found is not None
    assert found.paired
    assert (found.keys, found.left_out) == (2, 1)
    assert found.effects == pytest.approx([-math.log(4) / 4, math.log(4) / 4])
    assert np.exp(found.levels) == pytest.approx([math.sqrt(10), math.sqrt(40)])


def test_where_0_is_possible_the_effect_is_a_difference() -> None:
    found = pair([run(("a", 0.0), ("b", 10.0)), run(("a", 6.0), ("b", 10.0))], relative=False)
    assert found is not None
    assert list(found.effects) == [-1.5, 1.5]
    assert list(found.levels) == [5.0, 8.0]


def test_a_key_without_a_value_in_one_run_is_compared_in_none() -> None:
    found = pair([run(("a", 1.0), ("b", 2.0)), run(("a", None), ("b", 2.0))], relative=True)
    assert found is not None
    assert (found.keys, found.left_out, list(found.effects)) == (1, 1, [0.0, 0.0])


def test_a_key_twice_within_a_run_leaves_all_unpaired() -> None:
    found = pair([run(("a", 1.0), ("a", 4.0)), run(("a", 8.0))], relative=True)
    assert found is not None
    assert not found.paired
    assert np.exp(found.levels) == pytest.approx([2.0, 8.0])
    assert found.effects == pytest.approx([-math.log(2), math.log(2)])


@pytest.mark.parametrize("keys", [("a", "b"), (None, None), ("a", None)])
def test_without_a_common_key_runs_are_unpaired(keys: tuple[str | None, str | None]) -> None:
    found = pair([run((keys[0], 1.0)), run((keys[1], 4.0))], relative=True)
    assert found is not None
    assert (found.paired, found.keys) == (False, 1)


@pytest.mark.parametrize("missing", [run(), run(("a", None))])
def test_a_run_that_observed_nothing_cannot_be_compared(missing: pl.DataFrame) -> None:
    assert pair([run(("a", 1.0)), missing], relative=True) is None


def test_a_zero_has_no_ratio_and_is_left_out() -> None:
    found = pair([run(("a", 0.0), ("b", 3.0)), run(("a", 5.0), ("b", 3.0))], relative=True)
    assert found is not None
    assert (found.keys, found.left_out) == (1, 1)
    assert pair([run(("a", 0.0)), run(("a", 5.0))], relative=True) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_a_value_that_is_no_measurement_is_refused(value: float) -> None:
    with pytest.raises(InputError, match=r"run 2: .* \(request a\) cannot be compared"):
        pair([run(("a", 1.0)), run(("a", value))], relative=True)


def test_a_negative_difference_is_one() -> None:
    found = pair([run(("a", -3.0)), run(("a", 1.0))], relative=False)
    assert found is not None
    assert list(found.effects) == [-2.0, 2.0]


def test_a_key_twice_in_one_run_and_never_in_another_is_no_pair() -> None:
    found = pair([run(("a", 1.0), ("a", 4.0), ("b", 3.0)), run(("b", 3.0))], relative=True)
    assert found is not None
    assert not found.paired
