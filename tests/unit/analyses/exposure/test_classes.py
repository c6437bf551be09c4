"""Every class wins once, and what is stronger hides what is weaker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.analyses.exposure.drawing import (
    ask,
    drawn,
    exposed,
    load,
    part,
    path,
    request,
    scheduler,
    step,
    store,
    value,
    wait,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_every_class_wins_where_nothing_stronger_is_there(tmp_path: Path) -> None:
    """Ten instants each, one after the other.

    0     10    20     30      40     50        60     70    80   90     100  110    120    130   140
    |other|queue|lookup|lock   |load  |load_wait|store |capac|comp|w_load|w_st|w_look|w_lock|inter|
    """
    run = drawn(
        tmp_path,
        request(0, 140),
        scheduler("queue", 10, 20, reason="policy"),
        scheduler("lookup", 20, 30),
        scheduler("lock_wait", 30, 40),
        load(40, 50, usable_ns=60),
        store(60, 70),
        scheduler("queue", 70, 80, reason="capacity"),
        step(80, 90),
        wait(90, 100, "load", "r0"),
        wait(100, 110, "store", "r0"),
        wait(110, 120, "lookup", "r0"),
        wait(120, 130, "lock", "r0"),
        wait(130, 140, "load", "r9"),
    )
    assert exposed(run) == {
        **dict.fromkeys(("compute", "wait_load", "wait_store", "wait_lookup", "wait_lock"), 10),
        **dict.fromkeys(("queue_capacity", "host->gpu", "load_wait", "lock", "lookup", "store"), 10),
        **dict.fromkeys(("interference", "queue", "other"), 10),
    }
    assert [row["class"] for row in ask(run)] == [
        "compute", "wait_load", "wait_store", "wait_lookup", "wait_lock", "queue_capacity", "load",
        "load_wait", "lock", "lookup", "store", "interference", "queue", "other",
    ]  # fmt: skip
    assert [name for _, _, name, _ in path(run)] == [
        "other", "queue", "lookup", "lock", "host->gpu", "load_wait", "store", "queue_capacity", "compute",
        "wait_load", "wait_store", "wait_lookup", "wait_lock", "interference",
    ]  # fmt: skip


def test_where_all_are_active_the_strongest_wins_and_hides_the_others(tmp_path: Path) -> None:
    """All of [0, 10) at once, except waits: they would stop compute."""
    run = drawn(
        tmp_path,
        request(0, 10),
        step(0, 10),
        scheduler("queue", 0, 10, reason="capacity"),
        scheduler("queue", 0, 10, reason="policy"),
        scheduler("lookup", 0, 10),
        scheduler("lock_wait", 0, 10),
        load(0, 10),
        store(0, 10),
    )
    assert exposed(run) == {"compute": 10}
    for hidden in ("queue_capacity", "queue", "lookup", "lock", "host->gpu", "store"):
        assert part(run, hidden) == (0, 10, 10, 0, 0, 0, 0)


def test_a_load_is_hidden_by_whoever_wins_while_it_copies(tmp_path: Path) -> None:
    """Who hides which part of one load.

    queue(capacity)  [0------20)
    load host->gpu      [10----------------------60)
    step                              [40----50)
                     |  | by queue |  |  comp |  |
    """
    run = drawn(
        tmp_path, request(0, 60), scheduler("queue", 0, 20, reason="capacity"), load(10, 60), step(40, 50)
    )
    assert part(run, "host->gpu") == (30, 50, 10, 0, 10, 0, 0)
    assert value(run, "work_ns", "host->gpu") == 50


def test_a_transfer_is_hidden_by_load_wait_lock_and_interference_as_rest_or_load(tmp_path: Path) -> None:
    """A store under everything that is stronger than it, ten instants each.

    store        [0-----------------------------------50)
    load            [10--20)  usable 30
    lock_wait                       [30--40)
    """
    run = drawn(
        tmp_path, request(0, 50), store(0, 50), load(10, 20, usable_ns=30), scheduler("lock_wait", 30, 40)
    )
    assert part(run, "store") == (20, 50, None, 0, 0, 20, 10)


def test_an_undifferentiated_queue_never_hides_a_transfer(tmp_path: Path) -> None:
    """The queue time of vLLM contains the whole asynchronous load: it counts where nothing else is known.

    queue(unknown)  [0----------------30)
    load               [10----20)
    """
    run = drawn(tmp_path, request(0, 30), scheduler("queue", 0, 30, reason="unknown"), load(10, 20))
    assert exposed(run) == {"host->gpu": 10, "queue": 20}
    assert part(run, "queue") == (20, 30, None, 0, 0, 10, 0)


def test_a_queue_without_a_reason_is_a_queue(tmp_path: Path) -> None:
    assert exposed(drawn(tmp_path, request(0, 30), scheduler("queue", 0, 30))) == {"queue": 30}


def test_a_member_without_scheduled_tokens_does_not_compute(tmp_path: Path) -> None:
    """A step may carry a request along without computing for it; unknown tokens are not none."""
    run = drawn(tmp_path, request(0, 30), step(0, 10, tokens=0), step(10, 20, tokens=None))
    assert exposed(run) == {"compute": 10, "other": 20}
    assert value(run, "bound") == "exact"


def test_work_is_the_plain_sum_and_never_less_than_the_total(tmp_path: Path) -> None:
    """Two loads on one hop, overlapping: union 30, work 40.

    load  [0--------20)
    load       [10--------30)
    """
    run = drawn(tmp_path, request(0, 30), load(0, 20), load(10, 30))
    assert part(run, "host->gpu")[:2] == (30, 30)
    assert value(run, "work_ns", "host->gpu") == 40
    assert ask(drawn(tmp_path / "empty", request(0, 30)))[0]["work_ns"] is None
