"""critical_path by user: the prefill and the decode request of one call are one thing that is waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.critical_path import COLUMNS, critical_path
from kvtrace.errors import UsageError
from tests.unit.analyses.exposure.drawing import drawn, load, request, scheduler, step, store, wait

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]

P: Row = {"request_id": "p", "engine": "prefill", "process": "prefill/x"}
D: Row = {"request_id": "d", "engine": "decode", "process": "decode/x"}


def prefill(start: int, end: int | None, token: int | None = None) -> Row:
    return request(start, end, token, **P, user_request_id="u")


def decode(start: int, end: int | None, token: int | None = None) -> Row:
    return request(start, end, token, **D, user_request_id="u")


def on(row: Row, who: Row) -> Row:
    """The same row on the engine of p or d; a step serves that request."""
    moved = {**row, "engine": who["engine"], "process": who["process"]}
    if row["op"] == "step":
        return {**moved, "members": [{**row["members"][0], "request_id": who["request_id"]}]}
    return moved if row["op"] == "wait" else {**moved, "request_id": who["request_id"]}


def path(run: Run, window: str = "e2e", user: str = "u") -> list[tuple[int, int, str]]:
    """(start, end, class) of every segment of a user."""
    rows = critical_path(run, window=window, by="user").to_dicts()  # type: ignore[arg-type]
    return [
        (row["start_ns"], row["end_ns"], row["hop"] or row["class"])
        for row in rows
        if row["request_id"] == user
    ]


def disaggregated(folder: Path) -> Run:
    """Prefill, handoff, decode.

    p   [queue 0-10)[compute 10-40)                          0 .. 42, a token of its own at 40
    d                       [load peer->gpu 45-60) usable 62, [compute 65-100)   44 .. 100, first token 90
    """
    return drawn(
        folder,
        prefill(0, 42, 40),
        decode(44, 100, 90),
        on(scheduler("queue", 0, 10, reason="policy"), P),
        on(step(10, 40, out=1), P),
        on(load(45, 60, "peer->gpu", purpose="handoff", submit_ns=44, usable_ns=62), D),
        on(step(65, 90, out=1), D),
        on(step(90, 100, out=1), D),
    )


def test_the_path_leads_from_the_arrival_over_the_handoff_to_the_last_end(tmp_path: Path) -> None:
    """Nobody has the request in [42, 44): it is on its way; a handoff is a load like any other."""
    assert path(disaggregated(tmp_path)) == [
        (0, 10, "queue"),
        (10, 40, "compute"),
        (40, 44, "other"),
        (44, 45, "load_wait"),
        (45, 60, "peer->gpu"),
        (60, 62, "load_wait"),
        (62, 65, "other"),
        (65, 90, "compute"),
        (90, 100, "compute"),
    ]


def test_the_first_token_is_that_of_the_request_that_ends_last(tmp_path: Path) -> None:
    """Not the prefill's at 40, which nobody reads."""
    run = disaggregated(tmp_path)
    assert path(run, "ttft") == [one for one in path(run) if one[1] <= 90]
    assert path(run, "decode") == [(90, 100, "compute")]


@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_whichever_arrives_first(tmp_path: Path, first: str) -> None:
    """Some routers give the request to the decode engine, which asks the prefill engine.

    d   0 ----------------------------------- 50, first token 40
    p        10 --- 20, first token 20                              (or both the other way round)
    """
    p, d = (10, 0) if first == "decode" else (0, 10)
    run = drawn(tmp_path, prefill(p, 20, 20), decode(d, 50, 40))
    assert path(run, "ttft") == [(0, 40, "other")]
    assert path(run, "decode") == [(40, 50, "other")]


def test_where_the_last_to_end_has_no_first_token_ttft_lasts_to_the_end(tmp_path: Path) -> None:
    run = drawn(tmp_path, prefill(0, 20, 15), decode(25, 60))
    assert path(run, "ttft") == [(0, 60, "other")]
    assert path(run, "decode") == []


def test_where_both_are_active_the_stronger_class_wins(tmp_path: Path) -> None:
    """A store of the one hides nothing of the other.

    p   [==store 10-40===)
    d        [load 20-30)[lookup 30-35)      0 ----------- 50
    """
    run = drawn(
        tmp_path, prefill(0, 45), decode(0, 50),
        on(store(10, 40), P), on(load(20, 30), D), on(scheduler("lookup", 30, 35), D),
    )  # fmt: skip
    assert path(run) == [
        (0, 10, "other"), (10, 20, "store"), (20, 30, "host->gpu"), (30, 35, "lookup"), (35, 40, "store"),
        (40, 50, "other"),
    ]  # fmt: skip


def test_a_wait_of_one_engine_does_not_stop_the_other_ones_step(tmp_path: Path) -> None:
    """Each request is judged on its own engine.

    p     [==step 50, 5-30==)
    d   [====step 51, 0-40==========)
            [wait 52, 10-35==)          d's engine alone
    """
    run = drawn(
        tmp_path, prefill(0, 30), decode(0, 40), on(step(5, 30, span_id=50), P),
        on(step(0, 40, span_id=51), D), on(wait(10, 35, span_id=52), D),
    )  # fmt: skip
    assert path(run) == [
        (0, 10, "compute"), (10, 30, "compute"), (30, 35, "wait_load"), (35, 40, "compute"),
    ]  # fmt: skip
    assert critical_path(run, by="user")["span_id"].to_list() == [51, 50, 52, 51]


def test_a_request_counts_only_in_its_own_time(tmp_path: Path) -> None:
    """The prefill engine stores on after p has ended: d does not wait for that."""
    run = drawn(tmp_path, prefill(0, 30), decode(10, 60), on(store(20, 50), P))
    assert path(run) == [(0, 20, "other"), (20, 30, "store"), (30, 60, "other")]


def test_a_token_beyond_every_end_that_nobody_reads_moves_nothing(tmp_path: Path) -> None:
    """The prefill is said to have put out its token at 200, after all has ended."""
    run = drawn(
        tmp_path, prefill(0, 30, 200), decode(0, 50, 40), request(0, 45, request_id="v"),
        on(store(25, 300), P), on(load(5, 15), D), load(20, 45, request_id="v"),
    )  # fmt: skip
    assert path(run) == [
        (0, 5, "other"), (5, 15, "host->gpu"), (15, 25, "other"), (25, 50, "store"),
    ]  # fmt: skip
    assert path(run, user="v") == [(0, 20, "other"), (20, 45, "host->gpu")]


def test_the_bottleneck_is_chosen_over_all_requests(tmp_path: Path) -> None:
    """disk->host 10 of p and 15 of d: more than host->gpu with its 20."""
    run = drawn(
        tmp_path, prefill(0, 60), decode(0, 60),
        on(load(0, 10, "disk->host"), P), on(load(10, 25, "disk->host"), D), on(load(5, 25, "host->gpu"), D),
    )  # fmt: skip
    assert path(run) == [(0, 10, "disk->host"), (10, 25, "disk->host"), (25, 60, "other")]


def test_compute_is_known_where_it_is_of_every_request_that_is_there(tmp_path: Path) -> None:
    """No step of p was recorded: until d's first token at 60 nobody knows; in its decode, d is alone."""
    run = drawn(tmp_path, prefill(0, 30), decode(30, 80, 60), on(step(40, 80), D))
    assert path(run, "ttft") == [(0, 60, "other")]
    assert path(run, "decode") == [(60, 80, "compute")]


def test_a_request_without_a_user_stands_alone_under_its_own_id(tmp_path: Path) -> None:
    """One whose id is a user's is that user's."""
    run = drawn(
        tmp_path, request(0, 10), request(20, 30, request_id="r1"),
        request(5, 15, request_id="r2", user_request_id="r1"),
    )  # fmt: skip
    assert path(run, user="r0") == [(0, 10, "other")]
    assert path(run, user="r1") == [(5, 30, "other")]
    assert path(run, user="r2") == []


def test_requests_are_chosen_by_the_users_id(tmp_path: Path) -> None:
    run = drawn(tmp_path, prefill(0, 10), decode(10, 20), request(0, 5))
    assert critical_path(run, by="user", requests=("u",))["request_id"].unique().to_list() == ["u"]
    assert critical_path(run, by="user", requests=("p",)).height == 0


def test_a_run_without_requests_has_the_same_columns(tmp_path: Path) -> None:
    found = critical_path(drawn(tmp_path), by="user")
    assert found.height == 0
    assert dict(found.schema) == COLUMNS


def test_by_anything_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="by must be request or user"):
        critical_path(drawn(tmp_path), by="engine")  # type: ignore[arg-type]


def test_a_request_without_a_length_still_ends_its_users_window(tmp_path: Path) -> None:
    """P 0 .. 42, its unread token at 50; d came and went at 100: until then nothing is known of the user.

    p   [compute 10-40)
    d                                                                    | 100
    """
    run = drawn(tmp_path, prefill(0, 42, 50), decode(100, 100), on(step(10, 40, out=1), P))
    assert path(run) == [(0, 10, "other"), (10, 40, "compute"), (40, 100, "other")]
    assert path(run, "ttft")[-1][1] == 100
