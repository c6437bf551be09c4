"""Laws of pairing what two sources tell of the same happening."""

from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from kvtrace.importer.matching import SLACK_NS, matched

STEP = SLACK_NS // 2
SIDES = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12)), max_size=7)


def _side(drawn: list[tuple[str, int]]) -> pl.DataFrame:
    schema = {"at": pl.Int64, "group": pl.String, "time_ns": pl.Int64}
    rows = [(at, group, step * STEP) for at, (group, step) in enumerate(drawn)]
    return pl.DataFrame(rows, schema=schema, orient="row")


def _fits(one: tuple[str, int], other: tuple[str, int]) -> bool:
    return one[0] == other[0] and abs(one[1] - other[1]) * STEP <= SLACK_NS


def _most(rows: list[tuple[str, int]], own: list[tuple[str, int]]) -> int:
    """Most pairs that there can be, in whatever order: by augmenting paths."""
    taken: dict[int, int] = {}

    def place(at: int, seen: set[int]) -> bool:
        for number, other in enumerate(own):
            if number not in seen and _fits(rows[at], other):
                seen.add(number)
                if number not in taken or place(taken[number], seen):
                    taken[number] = at
                    return True
        return False

    return sum(place(at, set()) for at in range(len(rows)))


@given(SIDES, SIDES)
def test_pairs_fit_and_are_one_to_one_and_as_many_as_can_be(
    rows: list[tuple[str, int]], own: list[tuple[str, int]]
) -> None:
    pairs = matched(_side(rows), _side(own), ["group"]).rows()
    assert all(_fits(rows[at], own[other]) for at, other in pairs)
    assert len({at for at, _ in pairs}) == len({other for _, other in pairs}) == len(pairs)
    assert len(pairs) == _most(rows, own)


@given(SIDES, st.randoms(use_true_random=False))
def test_what_both_tell_is_paired_whole_whatever_the_order_of_the_rows(
    rows: list[tuple[str, int]], random: object
) -> None:
    frame = _side(rows)
    shuffled = frame.sample(fraction=1, shuffle=True, seed=random.randint(0, 9))  # type: ignore[attr-defined]
    pairs = matched(shuffled, frame, ["group"])
    assert pairs.height == len(rows)
    times = dict(frame.select("at", "time_ns").iter_rows())
    assert all(times[at] == times[own] for at, own in pairs.iter_rows())
