"""What freed holds, eager stores and lookups in time would save: nothing counted twice or made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.missed_by_lag import missed_by_lag
from kvtrace.analyses.whatif import whatif
from tests.unit.analyses.break_even_rows import MS, copied, loading, others, prefill, took, world
from tests.unit.analyses.exposure.drawing import drawn, load, request, scheduler, step

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
LACK = scheduler("queue", 0, 100, reason="capacity", blocks=11, free_blocks=1)
HELD = scheduler("hold", 0, 100, request_id="r1", blocks=10, reason="store")
SPACES = ("a:b:c", "d:e:f")


def median(run: Run, **options: Any) -> Row:
    """The row of the median of the one change that was asked for."""
    (row,) = whatif(run, **options).filter(quantile=0.5).to_dicts()
    return row


def keys(*names: str, many: int = 1, spaces: tuple[str, ...] = SPACES[:1]) -> list[Row]:
    """Every one of these asks for k0, k1 ..., 1000 tokens each."""
    return [
        {"request_id": name, "position": at, "key": f"k{at}", "key_space": space, "tokens": 1000}
        for name in names for space in spaces for at in range(many)
    ]  # fmt: skip


def stored(queued: float, submitted: float, name: str = "first") -> Row:
    """A store of 1000 tokens that is over 10 ms after it began."""
    row = copied(1000, 2**20, submitted, 10, "gpu->host", op="store", request_id=name)
    return {**row, "queued_ns": round(queued * MS), "submit_ns": round(submitted * MS)}


def late(
    tmp_path: Path,
    *stores: Row,
    asked: list[Row],
    found: int = 0,
    hit: int | None = 0,
    computed: int = 1100,
    more: tuple[Row, ...] = (),
) -> Run:
    """The request `late` looks up at 905 ms, and computes so many tokens at once."""
    step_ms = took(computed, max(found, hit or 0))
    end = round((910 + step_ms) * MS)
    own = [
        request(905 * MS, 2000 * MS, end, request_id="late", gpu_hit_tokens=hit, selected_tokens=found),
        {
            **scheduler("lookup", 905 * MS, 906 * MS, request_id="late"),
            "found_tokens": found,
            "outcome": "ok",
        },
        prefill(910, step_ms, computed, "late", max(found, hit or 0)),
    ]
    producers = [request(0, 890 * MS, 50 * MS, request_id=name)
                 for name in sorted({store["request_id"] for store in stores})]  # fmt: skip
    base = loading(1000, copied(1000, 2**30, took_ms=20), token=200)
    return world(tmp_path, *base, *others(), *producers, *stores, *own, *more, request_key=asked)


def eager_ms(run: Run) -> float:
    """What eager stores take off the ttft of `late`, ms."""
    row = median(run, stores="eager", requests=("late",))
    return (row["ttft_ns"] - row["predicted_ns"]) / MS


SAVED = pytest.approx(80, abs=1)
"""1000 tokens computed take 100 ms, loaded 20."""


def test_what_lay_in_gpu_blocks_anyway_is_not_saved_by_an_eager_store(tmp_path: Path) -> None:
    """Of 1100 tokens 100 were computed, in 15 ms: the ttft of 20 ms stays."""
    run = late(tmp_path, stored(0, 900), asked=keys("late", "first"), hit=1000, computed=100)
    row = median(run, stores="eager", requests=("late",))
    assert (row["ttft_ns"], row["predicted_ns"], row["changed"]) == (20 * MS, 20 * MS, 0)


def test_half_of_it_in_gpu_blocks_halves_what_is_saved(tmp_path: Path) -> None:
    run = late(tmp_path, stored(0, 900), asked=keys("late", "first"), hit=500, computed=600)
    assert eager_ms(run) == pytest.approx(40, abs=1)


def test_where_nobody_told_the_gpu_hit_nothing_is_said(tmp_path: Path) -> None:
    row = median(late(tmp_path, stored(0, 900), asked=keys("late", "first"), hit=None),
                 stores="eager", requests=("late",))  # fmt: skip
    assert (row["requests"], row["left_out"]) == (0, 1)
    assert row["left_out_why"] == "1 what the change would save cannot be estimated"


def test_two_key_spaces_of_the_same_tokens_count_once(tmp_path: Path) -> None:
    run = late(tmp_path, stored(0, 900), asked=keys("late", "first", spaces=SPACES))
    assert missed_by_lag(run)["tokens"].to_list() == [1000]
    assert eager_ms(run) == SAVED


def test_two_key_spaces_of_two_producers_count_once(tmp_path: Path) -> None:
    asked = [*keys("late", spaces=SPACES), *keys("first"), *keys("second", spaces=SPACES[1:])]
    run = late(tmp_path, stored(0, 900), stored(0, 901, "second"), asked=asked)
    assert eager_ms(run) == SAVED


@pytest.mark.parametrize(("first", "second", "saved"), [
    ((100, 100), (100, 900), SAVED),
    ((0, 800), (900, 900), 0),
])  # fmt: skip
def test_the_store_of_the_missed_key_decides_how_much_earlier_it_could_have_begun(
    tmp_path: Path, first: tuple[int, int], second: tuple[int, int], saved: float
) -> None:
    """K0 was found, the store of k1 ran [900, 910): what k0's store waited is not its own."""
    run = late(tmp_path, stored(*first), stored(*second), asked=keys("late", "first", many=2), found=1000)
    assert eager_ms(run) == saved


def test_nothing_is_loaded_beyond_the_first_key_that_is_late_all_the_same(tmp_path: Path) -> None:
    """K0's store was decided when it began; k1's could have been over, but nobody would have asked for it."""
    run = late(tmp_path, stored(900, 900), stored(0, 901), asked=keys("late", "first", many=2), computed=2100)
    assert eager_ms(run) == 0


def test_a_simulated_lookup_is_not_the_one_that_missed(tmp_path: Path) -> None:
    simulated = scheduler(
        "lookup", 800 * MS, 806 * MS, request_id="late", found_tokens=1000, observer="router"
    )
    run = late(
        tmp_path, stored(0, 900), asked=keys("late", "first"), more=({**simulated, "evidence": "predicted"},)
    )
    assert missed_by_lag(run)["tokens"].to_list() == [1000]
    assert eager_ms(run) == SAVED


@pytest.mark.parametrize(("rows", "expected"), [
    ((HELD, load(0, 60, "disk->host"), load(0, 60, "host->gpu")), 160),
    (({**HELD, "end_ns": 40}, load(60, 100, "host->gpu")), 160),
    ((HELD, load(0, 60, "host->gpu")), 160),
    ((HELD, load(0, 100, "host->gpu")), 200),
    ((HELD,), 100),
])  # fmt: skip
def test_of_held_time_only_that_without_a_transfer_is_gone(
    tmp_path: Path, rows: tuple[Row, ...], expected: int
) -> None:
    """Two hops at once hide one time, and a load after the hold hides none of it."""
    run = drawn(tmp_path, request(0, 220, 200), LACK, *rows, step(150, 200))
    row = median(run, holds="freed")
    assert (row["ttft_ns"], row["predicted_ns"]) == (200, expected)


def test_a_lack_of_unknown_size_is_left_out(tmp_path: Path) -> None:
    unsized = {**LACK, "blocks": None, "free_blocks": None}
    row = median(drawn(tmp_path, request(0, 220, 200), unsized, HELD, step(150, 200)), holds="freed")
    assert (row["predicted_ns"], row["requests"], row["left_out"]) == (None, 0, 1)
    assert row["left_out_why"] == "1 what the change would save cannot be estimated"


def test_where_every_lookup_timed_out_it_is_not_known_how_long_an_answer_takes(tmp_path: Path) -> None:
    gone = scheduler("lookup", 0, 50, outcome="timeout")
    row = median(drawn(tmp_path, request(0, 120, 100), gone, step(60, 100)), without="failures")
    assert (row["ttft_ns"], row["predicted_ns"]) == (100, None)
    assert row["assumption"].startswith("Cannot be said: no lookup that did not time out was recorded")
