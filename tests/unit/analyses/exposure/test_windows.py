"""ttft, decode and e2e: where windows begin and end, open spans, losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.exposure import COLUMNS, exposure
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


def windows(run: Any) -> dict[str, int]:
    """Window -> its length, as the sum of its exposed parts."""
    found: dict[str, int] = {}
    for row in exposure(run).to_dicts():
        found[row["window"]] = found.get(row["window"], 0) + (row["exposed_ns"] or 0)
    return found


def test_decode_begins_where_ttft_ends(tmp_path: Path) -> None:
    """The token is where one ends and the next begins.

    arrival 0 |---- ttft ----| 40 |-- decode --| 100 finish
    """
    run = drawn(tmp_path, request(0, 100, 40), step(30, 50))
    assert windows(run) == {"ttft": 40, "decode": 60, "e2e": 100}
    assert exposed(run, "ttft") == {"other": 30, "compute": 10}
    assert exposed(run, "decode") == {"compute": 10, "other": 50}


def test_without_a_first_token_ttft_ends_at_the_finish_and_is_censored(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 100))
    assert windows(run) == {"ttft": 100, "e2e": 100}
    assert value(run, "censored", window="ttft") is True
    assert value(run, "censored", window="e2e") is False


def test_a_first_token_after_the_finish_leaves_no_decode(tmp_path: Path) -> None:
    """The front end's clock of the finish lies behind: times are what they are."""
    run = drawn(tmp_path, request(0, 50, 80), load(40, 70))
    assert windows(run) == {"ttft": 80, "e2e": 50}
    assert exposed(run, "ttft") == {"other": 50, "host->gpu": 30}
    assert exposed(run, "e2e") == {"other": 40, "host->gpu": 10}


def test_a_first_token_before_the_arrival_is_none(tmp_path: Path) -> None:
    assert windows(drawn(tmp_path, request(20, 50, 10))) == {"ttft": 30, "e2e": 30}


def test_the_first_token_comes_from_the_steps_only_where_the_front_end_saw_none(tmp_path: Path) -> None:
    """The end of the first step with output: 40, not 20 (no output) nor 60."""
    steps = step(10, 20, out=0), step(30, 40, out=1), step(50, 60, out=1)
    assert windows(drawn(tmp_path, request(0, 100), *steps)) == {"ttft": 40, "decode": 60, "e2e": 100}
    assert windows(drawn(tmp_path / "api", request(0, 100, 45), *steps))["ttft"] == 45


def test_an_unfinished_request_ends_at_the_last_record_of_its_engine(tmp_path: Path) -> None:
    """No end; the last that anybody of e0 recorded is 90. The worker of e1 does not matter."""
    run = drawn(
        tmp_path,
        request(0, None, 40),
        step(30, 50),
        wait(60, 90, name="r9"),
        load(95, 99, engine="e1", process="e1/w"),
    )
    assert windows(run) == {"ttft": 40, "decode": 50, "e2e": 90}
    assert [value(run, "censored", window=name) for name in ("ttft", "decode", "e2e")] == [False, True, True]


def test_the_process_table_knows_later_last_records(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, None), process=[{"process": "e0/api", "engine": "e0", "last_ns": 70}])
    assert windows(run) == {"ttft": 70, "e2e": 70}


def test_an_open_span_lasts_to_the_last_record_of_its_process_and_says_so(tmp_path: Path) -> None:
    """The worker's last record is 60; the request goes on to 100.

    load   [20 ....... 60)      open
    wait         [50---60)
    """
    run = drawn(tmp_path, request(0, 100), load(20, None), wait(50, 60, engine="e1"))
    assert part(run, "host->gpu")[:2] == (40, 40)
    assert value(run, "open_ns", "host->gpu") == 40
    assert value(run, "open_ns", "other") == 0


def test_an_open_span_of_no_known_process_lasts_to_the_end_of_the_window(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 100), load(20, None, process=None))
    assert (part(run, "host->gpu")[1], value(run, "open_ns", "host->gpu")) == (80, 80)


def test_only_the_open_part_of_a_class_is_open(tmp_path: Path) -> None:
    """Closed [0, 30), open [20, 50): open_ns 30 of 50; a closed load under it does not close it."""
    run = drawn(tmp_path, request(0, 100), store(0, 30), store(20, None), wait(50, 50, engine="e1"))
    assert (part(run, "store")[1], value(run, "open_ns", "store")) == (50, 30)


def test_an_open_load_whose_promise_was_kept_is_open_only_as_a_copy(tmp_path: Path) -> None:
    """Usable 40 was seen, the end of the copy was not: [10, 30) copies, open; [30, 40) waits, not open."""
    run = drawn(
        tmp_path, request(0, 50), load(10, None, usable_ns=40, process="w"), wait(30, 30, process="w")
    )
    assert value(run, "open_ns", "host->gpu") == 30  # the process's last record is the promise itself: 40
    assert exposed(run) == {"other": 20, "host->gpu": 30}


@pytest.mark.parametrize("end", [10, 5])
def test_zero_and_negative_durations_count_for_nothing(tmp_path: Path, end: int) -> None:
    rows = [
        scheduler("queue", 10, end, reason="capacity"),
        scheduler("lookup", 10, end), scheduler("lock_wait", 10, end),
        load(10, end), store(10, end), wait(10, end, name="r0"), step(10, end),
    ]  # fmt: skip
    assert exposed(drawn(tmp_path, request(0, 20), *rows)) == {"other": 20}


def test_a_request_that_ends_before_it_starts_or_never_started_has_no_rows(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(20, 10), request(None, 10, request_id="r1"), request(5, 5, request_id="r2"))  # type: ignore[arg-type]
    assert exposure(run).rows() == []
    assert path(run) == []


def test_a_clock_that_steps_back_breaks_nothing(tmp_path: Path) -> None:
    """The step's clock lies an hour before the request's: it is not in the window; nothing is invented."""
    hour = 3_600_000_000_000
    start = 1_764_400_000_000_000_000
    run = drawn(
        tmp_path,
        request(start, start + 100),
        scheduler("lookup", start + 10, start + 30),
        step(start + 50 - hour, start + 90 - hour),
    )
    assert exposed(run) == {"lookup": 20, "other": 80}
    assert value(run, "bound") == "exact"
    other = drawn(tmp_path / "b", request(start, None), step(start - hour, start - hour + 9))
    assert windows(other) == {}  # the engine's last record is the arrival


def test_an_unfinished_request_after_the_last_record_of_its_engine_has_no_length(tmp_path: Path) -> None:
    """The steps are of e1, whose clock lies behind: its last record is 50, the arrival is 100."""
    run = drawn(
        tmp_path, request(100, None), step(10, 50, "r0", "r1", engine="e1"), request(0, 60, request_id="r1")
    )
    assert ask(run) == []
    assert exposed(run, request_id="r1") == {"compute": 40, "other": 20}


def test_rows_beyond_the_window_are_clipped(tmp_path: Path) -> None:
    """A load of [0, 50) in a life of [20, 40)."""
    run = drawn(tmp_path, request(20, 40), load(0, 50, submit_ns=0, usable_ns=60))
    assert part(run, "host->gpu")[:2] == (20, 20)
    assert value(run, "work_ns", "host->gpu") == 20


def test_three_observers_of_a_request_are_one_by_preference(tmp_path: Path) -> None:
    """The order is api > scheduler > the engine's own span; what one does not know comes from the next."""
    run = drawn(
        tmp_path,
        request(5, 90, 40, observer=None, process="e0/otel", prompt_tokens=7, output_tokens=9),
        request(10, 80, 30, observer="scheduler", process="e0/scheduler", prompt_tokens=8),
        request(12, 70, observer="api"),
    )
    columns = "start_ns, end_ns, first_token_ns, prompt_tokens, output_tokens, observer, observers"
    assert run.sql(f"SELECT {columns} FROM request").rows() == [(12, 70, 30, 8, 9, "api", 3)]
    assert windows(run) == {"ttft": 18, "decode": 40, "e2e": 58}


def test_a_component_s_own_root_span_is_no_request(tmp_path: Path) -> None:
    """LMCache's `request` has op null."""
    run = drawn(tmp_path, request(0, 10), {**request(0, 99), "op": None, "name": "request"})
    assert run.sql("SELECT end_ns, observers FROM request").rows() == [(10, 1)]


def test_one_window_is_that_part_of_all(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(0, 100, 40), step(30, 50))
    every = exposure(run).to_dicts()
    for name in ("ttft", "decode", "e2e"):
        assert ask(run, name) == [row for row in every if row["window"] == name]


def test_an_empty_run_has_no_rows_and_the_same_columns(tmp_path: Path) -> None:
    found = exposure(drawn(tmp_path))
    assert found.height == 0
    assert dict(found.schema) == COLUMNS
