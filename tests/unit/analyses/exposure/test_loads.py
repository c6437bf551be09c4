"""Loads: which hop an instant belongs to, submit delay and promotion, observers, ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.analyses.exposure.drawing import (
    drawn,
    exposed,
    load,
    part,
    path,
    request,
    scheduler,
    step,
    value,
    wait,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_the_worked_example_of_the_design(tmp_path: Path) -> None:
    """The numbers of docs/exposure.md.

    queue(capacity) [0---20)
    lookup            [5-12)
    disk->host          [10--------50)
    host->gpu   submit 9     [30--------62)  usable 68
    step                                          [70------100)
    wait(load)                                    [70-75)
    """
    run = drawn(
        tmp_path,
        request(0, 100, 100),
        scheduler("queue", 0, 20, reason="capacity"),
        scheduler("lookup", 5, 12),
        load(10, 50, "disk->host"),
        load(30, 62, submit_ns=9, usable_ns=68),
        step(70, 100),
        wait(70, 75),
    )
    assert exposed(run, "ttft") == {
        "queue_capacity": 20, "disk->host": 30, "host->gpu": 12, "load_wait": 6, "other": 2, "wait_load": 5,
        "compute": 25,
    }  # fmt: skip
    assert part(run, "disk->host", "ttft") == (30, 40, 0, 0, 10, 0, 0)
    assert part(run, "host->gpu", "ttft") == (12, 32, 0, 0, 0, 20, 0)
    assert part(run, "lookup", "ttft") == (0, 7, 0, 0, 7, 0, 0)


def test_overlapping_hops_belong_to_the_one_with_the_larger_union_in_the_window(tmp_path: Path) -> None:
    """The union decides, not who came first, and each window decides for itself.

    disk->host  [0------20)              first token 20: it has 20, host->gpu 10
    host->gpu        [10--------40)      whole life: it has 20, host->gpu 30
    """
    run = drawn(tmp_path, request(0, 40, 20), load(0, 20, "disk->host"), load(10, 40))
    assert exposed(run, "ttft") == {"disk->host": 20}
    assert exposed(run, "e2e") == {"disk->host": 10, "host->gpu": 30}
    assert part(run, "disk->host") == (10, 20, None, 0, 0, 10, 0)


@pytest.mark.parametrize(
    ("one", "two", "winner"),
    [
        ("disk->host", "host->gpu", "host->gpu"),  # tier_to: gpu < host
        ("disk->gpu", "host->gpu", "host->gpu"),  # then tier_from: host < disk
        ("object->disk", "peer->host", "peer->host"),
        ("unknown->gpu", "object->gpu", "object->gpu"),
    ],
)
def test_equal_unions_go_by_tier_to_then_tier_from(tmp_path: Path, one: str, two: str, winner: str) -> None:
    """Both copy during all of [0, 10)."""
    for name, order in (("a", (one, two)), ("b", (two, one))):
        run = drawn(tmp_path / name, request(0, 10), *(load(0, 10, hop) for hop in order))
        assert exposed(run) == {winner: 10}


def test_a_tier_that_nobody_named_is_unknown(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 10), load(0, 10, tier_from=None))
    assert exposed(run) == {"unknown->gpu": 10}


def test_submit_delay_and_promotion_are_load_wait(tmp_path: Path) -> None:
    """Asked for at 10, copied [20, 30), usable at 45.

    submit 10 |- load_wait -|20 copy 30|- load_wait -| 45 usable
    """
    run = drawn(tmp_path, request(0, 50), load(20, 30, submit_ns=10, usable_ns=45))
    assert exposed(run) == {"other": 15, "load_wait": 25, "host->gpu": 10}
    assert value(run, "work_ns", "load_wait") == 35


def test_a_gap_between_two_hops_of_one_promise_is_load_wait(tmp_path: Path) -> None:
    """Between the hops nothing copies, and the state is promised.

    disk->host  [0---10)
    host->gpu   submit 0      [20---30)
    """
    run = drawn(tmp_path, request(0, 30), load(0, 10, "disk->host"), load(20, 30, submit_ns=0))
    assert exposed(run) == {"disk->host": 10, "load_wait": 10, "host->gpu": 10}


def test_three_observers_of_one_transfer_count_once_as_the_nearest_saw_it(tmp_path: Path) -> None:
    """Worker, server and client see the same retrieve; without an id of its own each is a load.

    client  [0----------------40)
    server     [5---------30)
    worker        [10--20)
    """
    seen = [
        load(0, 40, observer="client", transfer_id="t", process="e0/scheduler"),
        load(5, 30, observer="server", transfer_id="t", process="cache"),
        load(10, 20, observer="worker", transfer_id="t"),
    ]
    run = drawn(tmp_path, request(0, 50), *seen)
    assert exposed(run) == {"host->gpu": 10, "other": 40}
    loose = drawn(tmp_path / "loose", request(0, 50), *({**row, "transfer_id": None} for row in seen))
    assert exposed(loose) == {"host->gpu": 40, "other": 10}


def test_two_ranks_are_one_transfer_union_max_and_sum(tmp_path: Path) -> None:
    """Each rank moves its share of the same tokens.

    rank 0  [10----30)
    rank 1     [20-----50)
    """
    run = drawn(
        tmp_path,
        request(0, 60),
        load(10, 30, transfer_id="t", rank=0, tokens=64, bytes=1000),
        load(20, 50, transfer_id="t", rank=1, tokens=64, bytes=1200),
        load(0, 60, transfer_id="t", observer="client", tokens=99, bytes=9999),
    )
    assert exposed(run) == {"host->gpu": 40, "other": 20}
    assert value(run, "work_ns", "host->gpu") == 50
    columns = "request_id, start_ns, end_ns, tokens, bytes, ranks, observer"
    assert run.sql(f"SELECT {columns} FROM transfer").rows() == [("r0", 10, 50, 64, 2200, 2, "worker")]


def test_a_transfer_is_open_while_one_rank_is(tmp_path: Path) -> None:
    run = drawn(tmp_path, load(10, 30, transfer_id="t", rank=0), load(20, None, transfer_id="t", rank=1))
    assert run.sql("SELECT start_ns, end_ns FROM transfer").rows() == [(10, None)]


def test_a_merged_load_is_everybody_s_who_is_a_member(tmp_path: Path) -> None:
    """One load for two requests, named as members."""
    merged = load(0, 10, request_id=None, members=[{"request_id": "r0"}, {"request_id": "r1"}])
    run = drawn(tmp_path, request(0, 20), request(0, 20, request_id="r1"), merged)
    for name in ("r0", "r1"):
        assert exposed(run, request_id=name) == {"host->gpu": 10, "other": 10}


def test_intervals_exactly_back_to_back_are_one_time_and_two_spans(tmp_path: Path) -> None:
    """[0, 10)[10, 20): nothing between them, nothing twice."""
    run = drawn(tmp_path, request(0, 20), load(0, 10), load(10, 20))
    assert part(run, "host->gpu")[:2] == (20, 20)
    assert path(run) == [(0, 10, "host->gpu", 2), (10, 20, "host->gpu", 3)]


def test_a_load_without_times_is_in_no_window_and_leaves_every_other_time_whole(tmp_path: Path) -> None:
    """SGLang counts the tokens of its loads and times none; unix times are beyond what a float holds."""
    now = 1_796_030_371_000_000_001
    timed = load(now + 3, now + 7)
    untimed = load(0, None, span_id=9, start_ns=None)
    alone = drawn(tmp_path / "alone", request(now, now + 10), timed)
    beside = drawn(tmp_path / "beside", request(now, now + 10), timed, untimed)
    assert path(beside) == path(alone) == [
        (now, now + 3, "other", None), (now + 3, now + 7, "host->gpu", 2), (now + 7, now + 10, "other", None),
    ]  # fmt: skip
    assert exposed(beside) == exposed(alone) == {"host->gpu": 4, "other": 6}


def test_a_step_without_times_serves_nobody_at_any_time(tmp_path: Path) -> None:
    now = 1_796_030_371_000_000_001
    run = drawn(tmp_path, request(now, now + 10), step(now + 3, now + 7), step(0, None, start_ns=None))
    assert exposed(run) == {"compute": 4, "other": 6}
