"""Waits of an engine: whose they are, inside a step and outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.analyses.exposure.drawing import (
    drawn,
    exposed,
    load,
    part,
    request,
    scheduler,
    step,
    value,
    wait,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_a_wait_in_a_shared_step_is_a_wait_of_all_it_serves(tmp_path: Path) -> None:
    """The step serves r0 and r1, its wait names r1 alone: both stand still.

    step [0------------30)
    wait      [10--20)      names r1
    """
    run = drawn(
        tmp_path,
        request(0, 30),
        request(0, 30, request_id="r1"),
        step(0, 30, "r0", "r1"),
        wait(10, 20, name="r1"),
    )
    for name in ("r0", "r1"):
        assert exposed(run, request_id=name) == {"compute": 20, "wait_load": 10}
    assert part(run, "interference") == (
        0,
        10,
        0,
        10,
        0,
        0,
        0,
    )  # another's wait, and a stronger class of its own


def test_a_wait_that_names_the_request_needs_no_step(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 30), step(20, 30), wait(0, 10, "store", "r0"))
    assert exposed(run) == {"wait_store": 10, "other": 10, "compute": 10}


def test_a_wait_that_names_another_is_interference(tmp_path: Path) -> None:
    """r0 is between its steps while the engine waits for r9."""
    run = drawn(tmp_path, request(0, 30), step(20, 30), wait(0, 10, "store", "r9"))
    assert exposed(run) == {"interference": 10, "other": 10, "compute": 10}


def test_interference_comes_after_what_the_request_does_itself(tmp_path: Path) -> None:
    """The wait of r9 is [0, 20), r0 loads during [0, 10)."""
    run = drawn(tmp_path, request(0, 20), load(0, 10), wait(0, 20, name="r9"))
    assert exposed(run) == {"host->gpu": 10, "interference": 10}
    assert part(run, "interference") == (10, 20, None, 0, 0, 10, 0)


def test_a_wait_of_nobody_is_the_step_s_inside_and_another_s_outside(tmp_path: Path) -> None:
    """No members, no request.

    step  [0------20)
    wait      [10------30)
           comp|w_load|interf.
    """
    run = drawn(tmp_path, request(0, 40), step(0, 20), wait(10, 30))
    assert exposed(run) == {"compute": 10, "wait_load": 10, "interference": 10, "other": 10}


def test_members_say_whom_a_wait_names_before_its_request_does(tmp_path: Path) -> None:
    """request_id r0, but members r1: it is a wait of r1."""
    named = wait(0, 10, name="r0", members=[{"request_id": "r1"}])
    assert exposed(drawn(tmp_path, request(0, 10), named)) == {"interference": 10}
    nobody = wait(0, 10, name="r0", members=[])
    assert exposed(drawn(tmp_path / "empty", request(0, 10), nobody)) == {"wait_load": 10}


def test_a_wait_of_another_engine_is_nothing(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 20), step(0, 10), wait(0, 20, name="r0", engine="e1"))
    assert exposed(run) == {"compute": 10, "other": 10}


def test_a_wait_stops_compute_even_without_a_reason(tmp_path: Path) -> None:
    """An unknown reason is no class: what is next in the list has the time."""
    run = drawn(tmp_path, request(0, 30), step(0, 30), wait(10, 20, None, "r0"), scheduler("lookup", 15, 20))
    assert exposed(run) == {"compute": 20, "lookup": 5, "other": 5}


def test_the_engine_of_a_request_is_that_of_its_steps(tmp_path: Path) -> None:
    """The front end is e0, the steps are of e1: waits of e1 count, whatever queue rows say."""
    run = drawn(
        tmp_path,
        request(0, 20),
        scheduler("queue", 0, 5, reason="policy"),
        step(10, 20, engine="e1"),
        wait(12, 15, engine="e1"),
        wait(16, 18, engine="e0"),
    )
    assert exposed(run) == {"queue": 5, "other": 5, "compute": 7, "wait_load": 3}


def test_without_steps_the_engine_is_that_of_queue_and_lookup_rows_members_too(tmp_path: Path) -> None:
    """A lookup for two requests names its engine e1 for both; the front end's row says e0."""
    shared = scheduler("lookup", 0, 5, engine="e1", request_id=None, members=[{"request_id": "r0"}])
    run = drawn(tmp_path, request(0, 20), shared, wait(10, 20, name="r9", engine="e1"))
    assert exposed(run) == {"lookup": 5, "other": 5, "interference": 10}


def test_agreement_is_interval_exposure_minus_measured_stall(tmp_path: Path) -> None:
    """Interval exposure 10 + 20, stalled 10 (named wait) + 5 (queue for the transfer): agreement 15.

    wait names r0     [0--10)
    load                       [20------40)
    queue(remote_kv)                 [35------50)   5 of it while copying, 10 after
    step                                    [50-60)
    """
    run = drawn(
        tmp_path,
        request(0, 60),
        wait(0, 10, name="r0"),
        load(20, 40),
        scheduler("queue", 35, 50, reason="remote_kv"),
        step(50, 60),
    )
    assert value(run, "agreement") == (10 + 20) - (10 + 15)
