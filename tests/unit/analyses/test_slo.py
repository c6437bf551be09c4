"""Who was served in time, who was not, and of whom nobody can tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.slo import COLUMNS, slo
from kvtrace.errors import UsageError
from tests.rows import write_run
from tests.unit.analyses.exposure.drawing import drawn, request, step

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
S = 1_000_000_000


def answer(run: Run, metric: str = "ttft_ns", **options: Any) -> list[tuple[int, int | None, int]]:
    """(requests, attained, censored) of one metric's rows."""
    only = {"ttft_ns": None, "itl_p99_ns": None} | options
    rows = slo(run, **only).to_dicts()
    return [(r["requests"], r["attained"], r["censored"]) for r in rows if r["metric"] == metric]


def served(name: str, start: int, token: int | None, end: int | None, status: str = "ok", **more: Any) -> Row:
    return request(start, end, token, request_id=name, status=status, **more)


def test_a_run_without_requests_has_the_columns(tmp_path: Path) -> None:
    frame = slo(write_run(tmp_path / "run"))
    assert (frame.schema, frame.height) == (COLUMNS, 0)


def test_a_value_at_its_target_is_in_time(tmp_path: Path) -> None:
    run = drawn(tmp_path, served("a", 0, 50, 90), served("b", 0, 51, 90), served("c", 10, 60, 100))
    assert answer(run, ttft_ns=50) == [(3, 2, 0)]
    assert answer(run, "e2e_ns", e2e_ns=89) == [(3, 0, 0)]


def test_a_request_that_failed_is_not_in_time_however_fast_it_was(tmp_path: Path) -> None:
    run = drawn(tmp_path, served("a", 0, 5, 9), served("b", 0, 5, 9, "error"))
    assert answer(run, ttft_ns=50) == [(2, 1, 0)]
    assert answer(run, "e2e_ns", e2e_ns=50) == [(2, 1, 0)]


def test_an_open_request_is_late_once_its_target_is_over(tmp_path: Path) -> None:
    """The engine's last record is at 100: young began at 70, its target of 50 lies beyond what was seen.

    old    |-------------------------  open
    young           |----------------  open
    done   |---------------------|100
    """
    run = drawn(
        tmp_path, served("old", 0, None, None, "open"), served("young", 70, None, None, "open"),
        served("done", 0, 20, 100),
    )  # fmt: skip
    assert answer(run, ttft_ns=50) == [(2, 1, 1)]
    assert answer(run, "e2e_ns", e2e_ns=50) == [(2, 0, 1)]


def test_what_a_client_gave_up_is_late_only_behind_its_target(tmp_path: Path) -> None:
    run = drawn(
        tmp_path, served("soon", 0, None, 20, "aborted"), served("late", 0, None, 60, "aborted"),
        served("told", 0, 10, 20, "aborted"),
    )  # fmt: skip
    assert answer(run, ttft_ns=50) == [(2, 1, 1)]
    assert answer(run, "e2e_ns", e2e_ns=50) == [(1, 0, 2)]


def test_a_first_token_that_nobody_saw_was_before_the_finish(tmp_path: Path) -> None:
    """Finished at 40: it was within 50. Finished at 90: not known."""
    run = drawn(tmp_path, served("a", 0, None, 40), served("b", 0, None, 90), served("c", 0, 60, 90))
    assert answer(run, ttft_ns=50) == [(2, 1, 1)]


def test_where_nobody_records_first_tokens_an_open_request_is_no_late_one(tmp_path: Path) -> None:
    run = drawn(tmp_path, served("a", 0, None, None, "open"), served("b", 90, None, 99))
    assert answer(run, ttft_ns=5) == [(0, None, 2)]


def test_times_between_tokens_come_from_steps(tmp_path: Path) -> None:
    """A: 20 and 30 between its tokens. B put out one token: it has no such time. C's steps are missing.

    a  |--o----|10 |30    |60
    """
    steps = [step(at - 5, at, "a", out=1) for at in (10, 30, 60)]
    run = drawn(
        tmp_path, *steps, step(0, 4, "b", out=1), served("a", 0, 10, 60, output_tokens=3),
        served("b", 0, 4, 5, output_tokens=1), served("c", 0, 10, 60, output_tokens=9),
    )  # fmt: skip
    assert answer(run, "itl_p99_ns", itl_p99_ns=30) == [(1, 1, 1)]
    assert answer(run, "itl_p99_ns", itl_p99_ns=29) == [(1, 0, 1)]
    assert answer(run, "itl_p50_ns", itl_p50_ns=20) == [(1, 1, 1)]


def test_a_first_token_on_a_clock_without_a_date_is_no_time_after_the_arrival(tmp_path: Path) -> None:
    """The front end is dated and saw no first token, the scheduler counts from its own start."""
    dated = 1_790_000_000 * S
    run = drawn(
        tmp_path, request(dated, dated + S, None),
        request(1_000, S, S // 2, observer="scheduler", process="e0/scheduler", evidence="native"),
    )  # fmt: skip
    assert answer(run, ttft_ns=S // 2) == [(0, None, 1)]
    assert answer(run, ttft_ns=S) == [(1, 1, 0)], "it had finished by then"


def test_a_request_that_ends_before_it_begins_took_nobody_knows_how_long(tmp_path: Path) -> None:
    assert answer(drawn(tmp_path, served("a", 100, None, 40)), "e2e_ns", e2e_ns=50) == [(0, None, 1)]
    steps = [step(at - 5, at, "a", out=1) for at in (10, 30)]
    run = drawn(tmp_path / "steps", *steps, served("a", 100, None, 200))
    assert answer(run, ttft_ns=50) == [(0, None, 1)]


LOST: Row = {
    "cause": "dropped",
    "process": "e0/scheduler",
    "op": "step",
    "count": 1,
    "from_ns": 31,
    "to_ns": 60,
}


@pytest.mark.parametrize(
    ("output", "lost", "found"),
    [
        (4, LOST, (0, None, 1)),
        (4, None, (0, None, 1)),
        (3, LOST, (1, 0, 0)),
        (None, LOST, (0, None, 1)),
        (None, LOST | {"op": None, "process": None}, (0, None, 1)),
        (None, LOST | {"op": "load"}, (1, 0, 0)),
        (None, LOST | {"process": "e0/worker"}, (1, 0, 0)),
        (None, LOST | {"cause": "duplicate"}, (1, 0, 0)),
        (None, LOST | {"from_ns": 71, "to_ns": 90}, (1, 0, 0)),
        (None, LOST | {"from_ns": 0, "to_ns": 9}, (1, 0, 0)),
        (None, None, (1, 0, 0)),
    ],
)
def test_a_time_between_tokens_over_a_lost_step_is_no_late_one(
    tmp_path: Path, output: int | None, lost: Row | None, found: tuple[Any, ...]
) -> None:
    """The step that ended at 50 is not recorded.

    a  |10     |30     x      |70
    """
    steps = [step(at - 5, at, "a", out=1) for at in (10, 30, 70)]
    request = served("a", 0, 10, 70, output_tokens=output)
    run = drawn(tmp_path, *steps, request, loss=[] if lost is None else [lost])
    assert answer(run, "itl_p99_ns", itl_p99_ns=25) == [found]


def test_a_first_token_behind_a_lost_step_is_no_late_one(tmp_path: Path) -> None:
    """Nobody but the steps saw first tokens: b's arrival is behind the loss."""
    steps = [step(40, 50, "a", out=1), step(60, 90, "a", "b", out=1)]
    lost = LOST | {"from_ns": 10, "to_ns": 30}
    run = drawn(tmp_path, *steps, served("a", 0, None, 90), served("b", 50, None, 90), loss=[lost])
    assert answer(run, ttft_ns=45) == [(1, 1, 1)]


@pytest.mark.parametrize("scheduler", [True, False])
def test_a_step_that_two_processes_tell_is_one(tmp_path: Path, *, scheduler: bool) -> None:
    """Both ranks say each step, the second 1 ns later and not the last one; perhaps their scheduler too."""
    steps = [step(at - 5, at, "a", out=1) for at in (10, 30, 50, 70)] if scheduler else []
    ranks = [step(at - 5, at, "a", out=1, observer="worker", process="e0/w0") for at in (10, 30, 50, 70)]
    ranks += [step(at - 4, at + 1, "a", out=1, observer="worker", process="e0/w1") for at in (10, 30, 50)]
    run = drawn(tmp_path, *steps, *ranks, served("a", 0, 10, 70, output_tokens=4))
    assert answer(run, "itl_p50_ns", itl_p50_ns=19) == [(1, 0, 0)]
    assert answer(run, "itl_p99_ns", itl_p99_ns=20) == [(1, 1, 0)]


def test_a_simulated_request_is_in_no_row(tmp_path: Path) -> None:
    run = drawn(tmp_path, served("a", 0, 5, 9), served("b", 0, 5, 9, evidence="predicted"))
    assert answer(run, ttft_ns=50) == [(1, 1, 0)]


def test_groups_are_the_runs_own_or_its_engines(tmp_path: Path) -> None:
    spans = [served("a", 0, 5, 9), served("b", 0, 50, 90, engine="e1"), served("c", 0, 5, 9, engine=None)]
    rows = [row | {"run_id": "r", "span_id": number} for number, row in enumerate(spans)]
    run = write_run(tmp_path / "run", {"group": "tiered"}, span=rows)
    found = slo(run, ttft_ns=10, itl_p99_ns=None)
    assert found.rows() == [("tiered", "ttft_ns", 10, 3, 2, 0)]
    found = slo(run, ttft_ns=10, itl_p99_ns=None, by="engine")
    assert found.rows() == [
        (None, "ttft_ns", 10, 1, 1, 0), ("e0", "ttft_ns", 10, 1, 1, 0), ("e1", "ttft_ns", 10, 1, 0, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"ttft_ns": None, "itl_p99_ns": None},
        {"ttft_ns": -1},
        {"ttft_ns": 2**63},
        {"e2e_ns": 10**30},
        {"by": "tenant"},
    ],
)
def test_options_that_mean_nothing_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="slo: "):
        slo(write_run(tmp_path / "run"), **options)


def test_a_target_may_be_as_long_as_64_bits_hold(tmp_path: Path) -> None:
    assert answer(drawn(tmp_path, served("a", 0, 5, 9)), ttft_ns=2**63 - 1) == [(1, 1, 0)]
