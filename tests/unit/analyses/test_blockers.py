"""Whose waits and held blocks: literal rows, small numbers, one rule a test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.blockers import COLUMNS, blockers
from kvtrace.analyses.blockers.cache import shares
from kvtrace.analyses.exposure import exposure
from tests.rows import write_run
from tests.unit.analyses import killed
from tests.unit.analyses.exposure.drawing import drawn, load, request, scheduler, step, wait

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
Part = tuple[str | None, str, str | None, int | None, int]


def hold(name: str | None, start: int, end: int | None, blocks: int | None, **more: Any) -> Row:
    return scheduler("hold", start, end, **{"request_id": name, "blocks": blocks, "reason": "store", **more})


def lack(start: int, end: int, needed: int | None, free: int | None, **more: Any) -> Row:
    """r0 queues for capacity."""
    return scheduler("queue", start, end, reason="capacity", blocks=needed, free_blocks=free, **more)


def parts(run: Run, window: str = "e2e", request_id: str = "r0") -> list[Part]:
    """(blocker, class, reason, exposed, overlap) of r0, sorted."""
    rows = blockers(run, window=window).to_dicts()  # type: ignore[arg-type]
    names = ("blocker_request_id", "class", "reason", "exposed_ns", "overlap_ns")
    found = [tuple(row[name] for name in names) for row in rows if row["request_id"] == request_id]
    return sorted(found, key=str)  # type: ignore[arg-type]


def test_held_blocks_share_the_time_in_which_they_are_enough_to_be_why(tmp_path: Path) -> None:
    """Needs 11, free 1: L = 10.

    queue  [0---------------------------60)
    a 8   [-10 ...............................  open
    b 8         [10-------------50)
    c 4      [5----20)
    H      |8 |12|   20   |  16  |    8  |      enough in [5, 50): 45 ns
    a      |0 |10/3| 10*8/20 | 15 | 0   = 22.3,  b 4 + 15 = 19,  c 5/3 + 2 = 3.7
    """
    run = drawn(
        tmp_path,
        request(0, 100),
        lack(0, 60, 11, 1),
        hold("a", -10, None, 8),
        hold("b", 10, 50, 8),
        hold("c", 5, 20, 4, reason="load"),
        step(60, 100),
    )
    assert parts(run) == [
        ("a", "queue_capacity", "store", 22, 60),
        ("b", "queue_capacity", "store", 19, 40),
        ("c", "queue_capacity", "load", 4, 15),
    ]
    assert 22 + 19 + 4 == 45


@pytest.mark.parametrize(("needed", "free"), [(5, 5), (4, 9)])
def test_who_lacks_no_blocks_waits_for_nobody_s(tmp_path: Path, needed: int, free: int) -> None:
    """It waits for a slot or for budget: L <= 0."""
    run = drawn(tmp_path, request(0, 100), lack(0, 60, needed, free), hold("a", 0, 60, 8))
    assert parts(run) == [("a", "queue_capacity", "store", 0, 60)]


def test_holds_that_are_too_few_are_not_why(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 100), lack(0, 60, 10, 0), hold("a", 0, 60, 9))
    assert parts(run) == [("a", "queue_capacity", "store", 0, 60)]


@pytest.mark.parametrize(("needed", "free", "blocks"), [(None, 1, 8), (8, None, 8), (8, 1, None)])
def test_an_unknown_lack_or_hold_gives_a_null_part_and_its_overlap(
    tmp_path: Path, needed: int | None, free: int | None, blocks: int | None
) -> None:
    run = drawn(tmp_path, request(0, 100), lack(0, 60, needed, free), hold("a", 10, 90, blocks))
    assert parts(run) == [("a", "queue_capacity", "store", None, 50)]


def test_without_a_lack_an_uncounted_hold_has_0(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 100), lack(0, 60, 3, 3), hold("a", 10, 90, None))
    assert parts(run) == [("a", "queue_capacity", "store", 0, 50)]


def test_two_holds_of_one_request_are_one_row_and_overlap_once(tmp_path: Path) -> None:
    """The first 4 of 8 blocks, then 2 of 6: 10 * 4/8 + 10 * 6/10 + 10 * 2/6.

    a 4    [0--------20)
    a 2         [10-------30)
    b 4    [0-------------30)
    H      |  8  | 10  | 6  |
    """
    run = drawn(
        tmp_path,
        request(0, 100),
        lack(0, 30, 6, 0),
        hold("a", 0, 20, 4),
        hold("a", 10, 30, 2),
        hold("b", 0, 30, 4),
    )
    assert parts(run) == [("a", "queue_capacity", "store", 14, 30), ("b", "queue_capacity", "store", 16, 30)]


def test_a_hold_of_another_engine_is_nothing(tmp_path: Path) -> None:
    assert parts(drawn(tmp_path, request(0, 100), lack(0, 60, 9, 0), hold("a", 0, 60, 9, engine="e1"))) == []


def test_a_stronger_class_takes_the_time_and_leaves_the_overlap(tmp_path: Path) -> None:
    """The step of its first token runs in [0, 20); of the queue row 40 are its own.

    queue [0-----------60)
    step  [0--20)
    hold  [0-----------60)
    """
    run = drawn(tmp_path, request(0, 100), step(0, 20), lack(0, 60, 9, 0), hold("a", 0, 60, 9))
    assert parts(run) == [("a", "queue_capacity", "store", 40, 60)]


def test_of_two_queue_rows_the_earlier_says_what_is_lacking(tmp_path: Path) -> None:
    """The first row lacks 20 until 30, then the second lacks 5."""
    run = drawn(
        tmp_path, request(0, 100), lack(0, 30, 20, 0), lack(10, 60, 5, 0, span_id=9), hold("a", 0, 60, 9)
    )
    assert parts(run) == [("a", "queue_capacity", "store", 30, 60)]


def test_an_open_hold_lasts_to_its_process_s_last_record(tmp_path: Path) -> None:
    """Its process last says something at 40."""
    late = hold("a", 0, None, 9, process="e0/other")
    said = scheduler("queue", 39, 40, reason="policy", process="e0/other", request_id="r9")
    run = drawn(tmp_path, request(0, 100), lack(0, 60, 9, 0), late, said)
    assert parts(run) == [("a", "queue_capacity", "store", 40, 40)]


def test_interference_is_of_whom_the_wait_names(tmp_path: Path) -> None:
    """Between its steps; r1 and r2 are named together, then nobody is.

    wait [0-----10) names r1, r2    wait [10--16) names nobody
    """
    members = [{"request_id": "r1"}, {"request_id": "r2"}]
    run = drawn(tmp_path, request(0, 40), wait(0, 10, members=members), wait(10, 16, "store"), step(20, 40))
    assert parts(run) == [
        ("r1", "interference", "load", 5, 10),
        ("r2", "interference", "load", 5, 10),
        (None, "interference", "store", 6, 6),
    ]


def test_two_ranks_of_one_wait_count_once(tmp_path: Path) -> None:
    """Rank 0 [0, 10), rank 1 [4, 14): r1 for 14."""
    run = drawn(tmp_path, request(0, 40), wait(0, 10, name="r1", rank=0), wait(4, 14, name="r1", rank=1))
    assert parts(run) == [("r1", "interference", "load", 14, 14)]


def test_a_wait_of_another_in_a_shared_step_is_that_wait_s_class(tmp_path: Path) -> None:
    """r0's step holds r1's wait; it is no interference, which is another's wait between steps."""
    run = drawn(tmp_path, request(0, 30), step(0, 30, "r0", "r1"), wait(10, 20, name="r1"))
    assert parts(run) == [("r1", "wait_load", "load", 10, 10)]


def test_a_wait_that_names_the_request_too_is_its_own(tmp_path: Path) -> None:
    """Its own wait [10, 20), another's of the same reason [10, 25): 5 are the other's."""
    run = drawn(tmp_path, request(0, 30), step(0, 30), wait(10, 20, name="r0"), wait(10, 25, name="r1"))
    assert parts(run) == [("r1", "wait_load", "load", 5, 15)]


def test_a_wait_of_nobody_in_its_step_is_the_step_s_own(tmp_path: Path) -> None:
    assert parts(drawn(tmp_path, request(0, 30), step(0, 30), wait(10, 20))) == []


def test_what_the_request_does_itself_leaves_interference_its_overlap(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 20), load(0, 10), wait(0, 20, name="r9"))
    assert parts(run) == [("r9", "interference", "load", 10, 20)]


def test_the_window_is_asked_for(tmp_path: Path) -> None:
    """First token at 30: the hold costs 30 before it and 20 after."""
    run = drawn(tmp_path, request(0, 100, 30), lack(0, 50, 9, 0), hold("a", 0, 60, 9))
    assert parts(run, "ttft") == [("a", "queue_capacity", "store", 30, 30)]
    assert parts(run, "decode") == [("a", "queue_capacity", "store", 20, 20)]


def test_the_killed_server_s_fourth_request_waited_for_three_finished_ones(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", killed.POOL, **killed.tables())
    rows = blockers(run).to_dicts()
    assert {row["request_id"] for row in rows} == {"cmpl-r3-0-dd"}
    assert [row["blocker_request_id"] for row in rows] == ["cmpl-r0-0-aa", "cmpl-r1-0-bb", "cmpl-r2-0-cc"]
    assert sum(row["exposed_ns"] for row in rows) == 13_490 * killed.MS
    of_it = [
        row["exposed_ns"]
        for row in exposure(run, window="e2e").to_dicts()
        if (row["request_id"], row["class"]) == ("cmpl-r3-0-dd", "queue_capacity")
    ]
    assert of_it == [13_490 * killed.MS]


def test_an_empty_run_has_the_columns(tmp_path: Path) -> None:
    frame = blockers(write_run(tmp_path / "run"))
    assert (frame.height, frame.schema) == (0, COLUMNS)


def test_the_answer_is_kept_beside_the_run(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 100), lack(0, 60, 9, 0), hold("a", 0, 60, 9))
    first = shares(run)
    assert first.parent == run.path / ".derived"
    assert shares(run).stat().st_mtime_ns == first.stat().st_mtime_ns
