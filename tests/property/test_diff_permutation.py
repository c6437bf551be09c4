"""Laws of the permutation and of its adjustment, against plain loops over all relabelings."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrace.diff.permutation import LEAST_ERROR, TIE, p_values, relabelings, step_down, studentised

SIDES = st.tuples(st.integers(2, 4), st.integers(2, 4))


@st.composite
def drawn(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """Gate x run effects, ties and constant gates among them, and the runs of either side."""
    base, head = draw(SIDES)
    gates = draw(st.integers(1, 5))
    number = st.integers(-4, 4).map(float) | st.floats(-3, 3).map(lambda x: round(x, 3))
    rows = draw(st.lists(st.lists(number, min_size=base + head, max_size=base + head),
                         min_size=gates, max_size=gates))  # fmt: skip
    return np.array(rows), base, head


def statistic(row: list[float], heads: tuple[int, ...]) -> float:
    mean = sum(row) / len(row)
    size = max(abs(x - mean) for x in row)
    if size == 0:
        return 0.0
    one = [(x - mean) / size for at, x in enumerate(row) if at in heads]
    two = [(x - mean) / size for at, x in enumerate(row) if at not in heads]
    means = [sum(side) / len(side) for side in (one, two)]
    error = sum(
        sum((x - middle) ** 2 for x in side) / (len(side) - 1) / len(side)
        for side, middle in zip((one, two), means, strict=True)
    )
    return (means[0] - means[1]) / max(math.sqrt(error), LEAST_ERROR)


def brute(effects: np.ndarray, base: int, head: int) -> tuple[list[float], list[float]]:
    """Raw and adjusted p, one relabeling after another."""
    runs = base + head
    ways = list(combinations(range(runs), head))
    seen_way = tuple(range(base, runs))
    table = {way: [statistic(list(row), way) for row in effects] for way in ways}
    seen = table[seen_way]
    bars = [value - TIE * max(1.0, abs(value)) for value in seen]
    raw = [sum(table[way][g] >= bars[g] for way in ways) / len(ways) for g in range(len(seen))]
    order = sorted(range(len(seen)), key=lambda g: -seen[g])
    adjusted, least = [0.0] * len(seen), 0.0
    for rank, g in enumerate(order):
        count = sum(max(table[way][other] for other in order[rank:]) >= bars[g] for way in ways)
        least = max(least, count / len(ways))
        adjusted[g] = least
    return raw, adjusted


@settings(max_examples=60, deadline=None)
@given(drawn())
def test_p_and_adjusted_p_are_those_of_a_plain_loop(case: tuple[np.ndarray, int, int]) -> None:
    effects, base, head = case
    statistics = studentised(effects, relabelings(base, head))
    raw, adjusted = brute(*case)
    assert p_values(statistics) == pytest.approx(raw)
    assert step_down(statistics) == pytest.approx(adjusted)


@settings(max_examples=60, deadline=None)
@given(drawn())
def test_p_is_a_share_of_the_relabelings_and_adjusting_never_lowers_it(
    case: tuple[np.ndarray, int, int],
) -> None:
    effects, base, head = case
    statistics = studentised(effects, relabelings(base, head))
    raw, adjusted = p_values(statistics), step_down(statistics)
    total = math.comb(base + head, base)
    for p in (*raw, *adjusted):
        assert p * total == pytest.approx(round(p * total))
        assert 1 / total <= p <= 1
    assert (adjusted >= raw - 1e-12).all()
    ranked = adjusted[np.argsort(-statistics[:, 0], kind="stable")]
    assert (np.diff(ranked) >= 0).all()


@settings(max_examples=60, deadline=None)
@given(drawn(), st.randoms())
def test_the_order_of_runs_within_a_side_and_of_gates_changes_nothing(
    case: tuple[np.ndarray, int, int], random: object
) -> None:
    effects, base, head = case
    labels = relabelings(base, head)
    rng = np.random.default_rng(random.getrandbits(32))  # type: ignore[attr-defined]
    runs = np.concatenate([rng.permutation(base), base + rng.permutation(head)])
    gates = rng.permutation(len(effects))
    shuffled = studentised(effects[gates][:, runs], labels)
    straight = studentised(effects, labels)
    assert p_values(shuffled) == pytest.approx(p_values(straight)[gates])
    assert step_down(shuffled) == pytest.approx(step_down(straight)[gates])


@settings(max_examples=60, deadline=None)
@given(drawn(), st.sampled_from([1e-9, 0.25, 8.0, 1e9]), st.sampled_from([0.0, -5.0, 64.0]))
def test_scale_and_level_change_nothing(
    case: tuple[np.ndarray, int, int], scale: float, level: float
) -> None:
    effects, base, head = case
    labels = relabelings(base, head)
    moved = step_down(studentised(effects * scale + level * scale, labels))
    assert moved == pytest.approx(step_down(studentised(effects, labels)))


@settings(max_examples=60, deadline=None)
@given(drawn())
def test_swapping_the_sides_turns_every_statistic_around(case: tuple[np.ndarray, int, int]) -> None:
    effects, base, head = case
    turned = np.concatenate([effects[:, base:], effects[:, :base]], axis=1)
    there, back = studentised(effects, relabelings(base, head)), studentised(turned, relabelings(head, base))
    assert back[:, 0] == pytest.approx(-there[:, 0])
    assert np.sort(back, axis=1) == pytest.approx(np.sort(-there, axis=1))
