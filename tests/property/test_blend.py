"""Laws of two answers side by side, and the same by a plain walk with Python's own floats."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrace.analyses._logits import Distance, matrix_of, of_logits, of_tokens

Matrix = list[list[float]]
numbers = st.floats(-30, 30, width=32)
cells = st.one_of(numbers, st.sampled_from([-math.inf, math.nan, math.inf]))


@st.composite
def matrices(
    draw: st.DrawFn, cell: st.SearchStrategy[float] = numbers, least: int = 1
) -> tuple[Matrix, Matrix]:
    """Two of one vocabulary."""
    vocabulary = draw(st.integers(1, 6))
    row = st.lists(cell, min_size=vocabulary, max_size=vocabulary)
    one, other = (draw(st.lists(row, min_size=least, max_size=5)) for _ in "ab")
    return one, other


def compared(full: Matrix, blended: Matrix) -> Distance:
    sides = (matrix_of(each, Path(), "r") for each in (full, blended))
    return of_logits(*sides, "r", None)


def walked(full: Matrix, blended: Matrix) -> Distance:
    """Row by row, cell by cell."""
    agreeing, kls, gaps = 0, [], []
    for x, y in zip(full, blended, strict=False):
        bad = any(math.isnan(v) or v == math.inf for v in (*x, *y))
        out = [v == -math.inf for v in x]
        if bad or all(out) or out != [v == -math.inf for v in y]:
            continue
        agreeing += x.index(max(x)) == y.index(max(y))
        lp, lq = (
            [v - max(r) - math.log(math.fsum(math.exp(u - max(r)) for u in r)) for v in r] for r in (x, y)
        )
        pairs = [(p, q) for p, q, gone in zip(lp, lq, out, strict=True) if not gone]
        kls.append(max(math.fsum(math.exp(p) * (p - q) for p, q in pairs), 0.0))
        gaps += [abs(p - q) for p, q in pairs]
    rows, longest = len(kls), max(len(full), len(blended))
    if not rows:
        return Distance("logits", 0, longest)
    return Distance(
        "logits", rows, longest - rows, agreeing / rows, math.fsum(kls) / rows, max(kls),
        math.fsum(gaps) / len(gaps), max(gaps),
    )  # fmt: skip


def close(one: Distance, other: Distance) -> bool:
    def values(each: Distance) -> list[float | None]:
        return [each.kl_mean, each.kl_max, each.logit_diff_mean, each.logit_diff_max, each.top1_agreement]

    same = (one.compared, one.positions, one.left_out) == (other.compared, other.positions, other.left_out)
    return same and values(one) == [
        v if v is None else pytest.approx(v, rel=1e-9, abs=1e-11) for v in values(other)
    ]


@given(matrices(cells, least=0))
def test_it_is_what_a_walk_over_every_cell_gives(both: tuple[Matrix, Matrix]) -> None:
    assert close(compared(*both), walked(*both))


@given(matrices())
def test_kl_is_never_negative_and_0_between_equals(both: tuple[Matrix, Matrix]) -> None:
    found = compared(*both)
    assert found.kl_mean is not None
    assert found.kl_max is not None
    assert 0 <= found.kl_mean <= found.kl_max
    same = compared(both[0], both[0])
    assert (same.kl_max, same.logit_diff_max, same.top1_agreement, same.left_out) == (0.0, 0.0, 1.0, 0)


@given(matrices(), st.lists(st.integers(-1000, 1000), min_size=5, max_size=5))
def test_adding_a_number_to_a_whole_row_changes_nothing(both: tuple[Matrix, Matrix], more: list[int]) -> None:
    """But the likeliest token where two are nearly alike, which rounding decides: it is not compared."""
    full, blended = both
    moved = [[value + add for value in row] for row, add in zip(blended, more, strict=False)]
    one, other = compared(full, blended), compared(full, moved)
    for name in ("kl_mean", "kl_max", "logit_diff_mean", "logit_diff_max"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-6, abs=1e-9), name
    assert one.positions == other.positions


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_of_token_ids_the_longer_answers_rest_disagrees(full: list[int], blended: list[int]) -> None:
    found, mirrored = of_tokens(full, blended), of_tokens(blended, full)
    assert found == mirrored
    longest = max(len(full), len(blended))
    equal = sum(a == b for a, b in zip(full, blended, strict=False))
    assert found.positions == longest
    assert found.top1_agreement == (equal / longest if longest else None)


@settings(max_examples=30)
@given(matrices(), st.integers(1, 3))
def test_it_does_not_matter_how_many_rows_are_read_at_a_time(both: tuple[Matrix, Matrix], rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvtrace.analyses._logits.distances.CHUNK_VALUES", rows * len(both[0][0]))
        parts = compared(*both)
    assert close(parts, compared(*both))
