"""Numbers and names as a reader sees them."""

from __future__ import annotations

import pytest
from kvtrace.panels import _text as text


@pytest.mark.parametrize(
    ("ns", "said"),
    [
        (None, "not observed"),
        (0, "0 ns"),
        (999, "999 ns"),
        (1500, "1.50 µs"),
        (12_345_678, "12.3 ms"),
        (5_000_000_000, "5 s"),
        (-3_000_000, "-3 ms"),
        (300 * 10**9, "5 min"),
        (10**13, "2.78 h"),
    ],
)
def test_a_time_has_the_unit_that_suits_it(ns: int | None, said: str) -> None:
    assert text.duration(ns) == said


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (1, 3, "33.3 %"),
        (0, 3, "0 %"),
        (1, 10_000, "< 0.1 %"),
        (None, 3, "not observed"),
        (0, 0, "\N{EN DASH}"),
    ],
)
def test_a_share_of_nothing_is_no_share_and_null_is_no_0(part: int | None, whole: int, said: str) -> None:
    assert text.share(part, whole) == said


def test_an_upper_bound_has_its_sign_and_nothing_observed_has_none() -> None:
    assert text.bounded("12 ms", "upper") == "<= 12 ms"
    assert text.bounded("< 0.1 %", "upper") == "<= 0.1 %"
    assert text.bounded("not observed", "upper") == "not observed"
    assert text.bounded("12 ms", "exact") == "12 ms"


def test_names_from_outside_show_control_and_direction_characters() -> None:
    assert text.visible("a\u202eb\x1b[31m\n") == "a\\u202eb\\u001b[31m\\u000a"
    assert text.visible(None) == "not observed"
    assert text.visible("x" * 200) == "x" * 95 + "…"


def test_names_in_plotly_are_escaped() -> None:
    assert text.plain("<b>&lt;") == "&lt;b&gt;&amp;lt;"


def test_sizes_are_binary() -> None:
    assert text.size(4 << 20) == "4 MiB"
    assert text.size(1536) == "1.50 KiB"
    assert text.size(None) == "not observed"


def test_names_in_a_sentence_are_joined_and_long_lists_cut() -> None:
    assert text.listed(["a", "b", "c"]) == "a, b and c"
    assert text.listed(list("abcdefgh"), 3) == "a, b, c and 5 more"
    assert text.listed([]) == ""
