from __future__ import annotations

from itertools import combinations

import pytest
from kvtrace.diff.verdicts import code, exact, exit_code, judge
from kvtrace.diff.welch import Bounds


def verdict(difference: float, error: float, **changed: object) -> str:
    asked: dict[str, object] = {
        "p_worse": 0.01, "p_better": 0.01, "direction": "lower", "relative": False, "min_effect": 2.0,
        "alpha": 0.05,
    }  # fmt: skip
    return judge(Bounds(difference, error, 8), **{**asked, **changed})  # type: ignore[arg-type]


# t(8) at 95% one-sided 1.86, two-sided 2.31
def test_worse_takes_both_a_small_p_and_a_bound_beyond_the_effect_that_matters() -> None:
    assert verdict(4.0, 1.0) == "worse"  # lower bound 2.14
    assert verdict(4.0, 1.0, p_worse=0.06) == "inconclusive"
    assert verdict(3.8, 1.0) == "inconclusive"  # lower bound 1.94
    assert verdict(4.0, 1.0, p_worse=0.05) == "worse"


def test_better_is_the_mirror_image() -> None:
    assert verdict(-4.0, 1.0) == "better"
    assert verdict(-4.0, 1.0, p_better=0.06) == "inconclusive"


def test_direction_says_which_way_is_good() -> None:
    assert verdict(4.0, 1.0, direction="higher") == "better"
    assert verdict(-4.0, 1.0, direction="higher") == "worse"


def test_same_takes_the_whole_interval() -> None:
    assert verdict(0.0, 0.8) == "same"  # +-1.84
    assert verdict(0.5, 0.8) == "inconclusive"  # up to 2.34
    assert verdict(-0.5, 0.8) == "inconclusive"
    assert verdict(0.0, 0.0, min_effect=0.0) == "same"


def test_a_relative_effect_is_no_logarithm() -> None:
    # log 1.5 = 0.405: a rise by half
    assert verdict(0.405, 0.0, relative=True, min_effect=0.45) == "worse"
    assert verdict(0.405, 0.0, relative=True, min_effect=0.51) == "same"
    assert verdict(-0.69, 0.0, relative=True, min_effect=0.45) == "better"
    assert verdict(-0.69, 0.0, relative=True, min_effect=0.6) == "same"


@pytest.mark.parametrize(
    ("base", "head", "lossy", "expected"),
    [
        ([0, 0], [0, 0], False, "same"),
        ([0, 0], [0, 1], False, "worse"),
        ([2, 2], [1, 2], False, "better"),
        ([1, 1, 1], [1], False, "same"),
        ([1, 1, 2], [1], False, "better"),
        ([0, 0], [0, 1], True, "worse"),
        ([0, 0], [0, 0], True, "inconclusive"),
        ([2, 2], [1, 2], True, "inconclusive"),
        ([0, None], [0, 0], False, None),
        ([], [], False, None),
    ],
)
def test_a_count_must_not_move_and_a_run_with_losses_never_passes(
    base: list[int | None], head: list[int | None], *, lossy: bool, expected: str | None
) -> None:
    assert exact(base, head, lossy=lossy) == expected


def test_codes_go_before_one_another_as_2_3_1_4_0() -> None:
    order = [2, 3, 1, 4, 0]
    assert all(exit_code([late, soon]) == soon for soon, late in combinations(order, 2))
    assert exit_code([]) == 4


def test_what_was_not_observed_is_neutral_unless_somebody_named_it() -> None:
    assert (code(None, named=False), code(None, named=True)) == (0, 4)
    assert [code(word, named=True) for word in ("worse", "better", "same", "inconclusive")] == [1, 0, 0, 4]
