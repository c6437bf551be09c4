"""What loads restore for groups of layers: one literal run an answer. Seconds.

first = 12, blocks of 4

full          |0 . . 4 . . 8 . . 12      needs all of it
window of 6   |. . . . . . 7 . . 12      needs the five before it: restored from the block's begin, 4
recurrent     |. . . . . . . . .11=      needs the state after token 11
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.lock_contract import lock_contract
from tests.rows import write_run
from tests.unit.analyses.retained_rows import VLLM, S, load, need, restored

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
COVERED, COMPLETE = "retained_state_covered", "restored_completely"
FULL = need(0, "full", 0, 12)
WINDOW = need(1, "window", 7, 12, span=6)
STATE = need(1, "recurrent", 11, 12)
ALL = restored(0, 0, 12)


def drawn(tmp_path: Path, *spans: Row, loss: tuple[Row, ...] = (), name: str = "run") -> Run:
    return write_run(tmp_path / name, span=list(spans), loss=list(loss), process=[VLLM])


def told(run: Run, invariant: str = COVERED) -> list[tuple[str, str]]:
    return [(row["status"], row["detail"]) for row in lock_contract(run, only=(invariant,)).to_dicts()]


def test_what_was_restored_for_every_group_covers_the_load(tmp_path: Path) -> None:
    run = drawn(tmp_path, load(), FULL, WINDOW, ALL, restored(1, 4, 12))
    assert told(run) == [("pass", "1 load covered (kv 1, window 1)")]
    assert told(run, COMPLETE) == [("pass", "vllm.offloading: 1 load restored completely, 12 tokens")]


#  full     |cached 0-4|restored 4-12|
def test_what_the_gpu_has_already_need_not_be_restored(tmp_path: Path) -> None:
    run = drawn(
        tmp_path, load(), need(0, "full", 0, 12, on_gpu="0-4", had=4), WINDOW, restored(0, 4, 12),
        restored(1, 4, 12),
    )  # fmt: skip
    assert told(run) == [("pass", "1 load covered (kv 1, window 1)")]


#  window of 6      . . . . . . |7 . . . .|12
#  restored                       |8 . . .|12      lacks token 7
def test_a_window_that_lacks_its_first_token_is_a_violation_of_both(tmp_path: Path) -> None:
    run = drawn(tmp_path, load(), FULL, WINDOW, ALL, restored(1, 8, 12))
    (row,) = lock_contract(run, only=(COVERED,)).to_dicts()
    assert (row["status"], row["severity"], row["request_id"]) == ("violated", "error", "a")
    assert row["detail"] == "group 1 (window of 6) lacks 1 of the 5 tokens before token 12 on rank 0"
    assert (row["time_ns"], row["evidence"], row["key"]) == (2 * S, "shim", None)
    (other,) = lock_contract(run, only=(COMPLETE,)).to_dicts()
    assert (other["status"], other["severity"], other["key"]) == ("violated", "error", "vllm.offloading")
    assert other["detail"] == (
        "vllm.offloading: a load of 12 tokens was reported as good, and 1 group of layers lacked state"
    )


#  full     |restored 0-4|        |cached 8-12|        lacks 4 to 8; needs nothing behind 10
def test_a_hole_in_a_prefix_is_counted_once_whatever_overlaps(tmp_path: Path) -> None:
    full = need(0, "full", 0, 10, on_gpu="8-12")
    pieces = [restored(0, 0, 4), restored(0, 0, 3), restored(0, 9, 12)]
    run = drawn(tmp_path, load(), full, *pieces)
    assert told(run) == [("violated", "group 0 (full) lacks 4 of the 10 tokens before token 10 on rank 0")]


def test_a_group_that_got_nothing_is_a_violation_and_the_others_do_not_help(tmp_path: Path) -> None:
    run = drawn(tmp_path, load(), FULL, WINDOW, ALL, restored(1, 12, 12))
    assert [status for status, _ in told(run)] == ["violated"]


@pytest.mark.parametrize(
    ("first", "given", "status"),
    [
        (12, restored(1, 8, 12), "pass"),
        (12, restored(1, 4, 8), "violated"),  # the state after token 7
        (12, restored(1, 0, 16), "pass"),  # the block that ends at 12 is among them
        (10, restored(1, 8, 12), "pass"),  # a state that was stored in the middle of a block
        (10, restored(1, 8, 16), "violated"),  # the last one is of a later block
    ],
)
def test_a_recurrent_state_is_that_of_exactly_one_token(
    tmp_path: Path, first: int, given: Row, status: str
) -> None:
    run = drawn(tmp_path, load(), need(1, "recurrent", first - 1, first), given)
    ((found, detail),) = told(run)
    assert found == status
    if status == "violated":
        assert detail == f"group 1 (recurrent) has no state of exactly token {first} on rank 0"


@pytest.mark.parametrize(("first", "status"), [(12, "pass"), (11, "violated")])
def test_a_cached_block_has_the_state_after_its_last_token(tmp_path: Path, first: int, status: str) -> None:
    state = need(1, "recurrent", first - 1, first, on_gpu="8-12")
    run = drawn(tmp_path, load(), state, restored(1, 0, 0))
    assert told(run)[0][0] == status


def test_every_rank_needs_its_share(tmp_path: Path) -> None:
    run = drawn(tmp_path, load(), FULL, ALL, restored(0, 0, 8, rank=1))
    assert told(run) == [("violated", "group 0 (full) lacks 4 of the 12 tokens before token 12 on rank 1")]


#  rank 1 speaks of b and not of a
def test_a_rank_that_speaks_of_other_loads_and_not_of_this_one_leaves_it_open(tmp_path: Path) -> None:
    other = [load("b", span_id=2), need(0, "full", 0, 12, request="b"), restored(0, 0, 12, request="b")]
    run = drawn(tmp_path, load(), FULL, ALL, *other, restored(0, 0, 12, request="b", rank=1))
    said = "2 loads covered (kv 3); of 1 load nobody said what was restored"
    assert told(run) == [("inconclusive", said)]


#  request a in two engines: e0 restored 4-12 after a hit of 0-4, of e1 no worker speaks
def of_two_engines(*, lacks: bool = False) -> list[Row]:
    full = need(0, "full", 0, 12, groups=1, on_gpu="" if lacks else "0-4", had=4, engine="e0")
    other = {"process": "e1", "engine": "e1", "component": "lmcache"}
    return [
        load(engine="e1" if lacks else "e0", usable=8), full, restored(0, 4, 12, engine="e0"),
        load(span_id=7, **other), need(0, "full", 0, 12, groups=1, **other),
    ]  # fmt: skip


def test_one_name_of_a_request_in_two_engines_mixes_up_nothing(tmp_path: Path) -> None:
    assert told(drawn(tmp_path, *of_two_engines())) == [("pass", "2 loads covered (kv 2)")]
    broken = drawn(tmp_path, *of_two_engines(lacks=True), name="broken")
    assert told(broken) == [("violated", "group 0 (full) lacks 4 of the 12 tokens before token 12 on rank 0")]
    assert [status for status, _ in told(broken, COMPLETE)] == ["violated"]


def test_a_copy_that_failed_restored_nothing(tmp_path: Path) -> None:
    run = drawn(tmp_path, load(), FULL, restored(0, 0, 12, outcome="failed"))
    assert told(run) == [("violated", "group 0 (full) lacks 12 of the 12 tokens before token 12 on rank 0")]


@pytest.mark.parametrize("outcome", ["failed", "partial"])
def test_a_load_that_was_told_to_be_bad_is_counted_and_breaks_nothing(tmp_path: Path, outcome: str) -> None:
    bad = [load("b", outcome, usable=0, span_id=2), need(0, "full", 0, 12, request="b")]
    run = drawn(tmp_path, load(), FULL, ALL, *bad, restored(0, 0, 4, request="b"))
    assert told(run) == [("pass", "1 load covered (kv 1), 1 told to be bad")]
    complete = "vllm.offloading: 1 load restored completely, 12 tokens; 1 told to be bad"
    assert told(run, COMPLETE) == [("pass", complete)]


def test_each_connector_has_a_result_of_its_own(tmp_path: Path) -> None:
    other = load("b", component="lmcache", tokens=8, span_id=2)
    third = load("c", "failed", component="nixl", span_id=3)
    rows = lock_contract(drawn(tmp_path, load(), other, third), only=(COMPLETE,)).to_dicts()
    assert [(row["key"], row["status"], row["detail"]) for row in rows] == [
        ("lmcache", "pass", "lmcache: 1 load restored completely, 8 tokens"),
        ("nixl", "unobserved", "nixl: 0 loads restored completely, 0 tokens; 1 told to be bad"),
        ("vllm.offloading", "pass", "vllm.offloading: 1 load restored completely, 12 tokens"),
    ]


def test_without_a_worker_the_scheduler_stands_in_for_one_group_and_not_for_several(tmp_path: Path) -> None:
    alone = need(0, "full", 0, 12, groups=1, on_gpu="0-4", had=4)
    assert told(drawn(tmp_path, load(usable=8), alone, name="one")) == [("pass", "1 load covered (kv 1)")]
    assert told(drawn(tmp_path, load(usable=7), alone, name="short"))[0][0] == "violated"
    ((status, detail),) = told(drawn(tmp_path, load(), FULL, WINDOW, name="two"))
    said = "of 1 load nobody said what was restored by group (vLLM's native offloading does)"
    assert (status, detail) == ("unobserved", f"{said}; 0 loads covered")


def test_a_group_of_which_a_worker_said_nothing_is_inconclusive_beside_those_it_spoke_of(
    tmp_path: Path,
) -> None:
    run = drawn(tmp_path, load(), FULL, WINDOW, ALL)
    assert told(run) == [("inconclusive", "1 load covered (kv 1); of 1 load nobody said what was restored")]


def test_an_open_load_and_lost_records_are_inconclusive_and_hide_no_violation(tmp_path: Path) -> None:
    still = [load("b", None, span_id=2), need(0, "full", 0, 12, request="b")]
    lost = ({"cause": "dropped", "process": "w0", "count": 3},)
    good = [load(), FULL, ALL]
    assert told(drawn(tmp_path, *good, *still, name="open")) == [
        ("inconclusive", "1 load covered (kv 1); 1 load open")
    ]
    assert told(drawn(tmp_path, *good, *still, name="same"), COMPLETE)[0][0] == "inconclusive"
    assert told(drawn(tmp_path, *good, loss=lost, name="lost")) == [
        ("inconclusive", "1 load covered (kv 1); 3 records missing")
    ]
    assert told(drawn(tmp_path, *good, loss=lost, name="more"), COMPLETE)[0][0] == "inconclusive"
    broken = drawn(tmp_path, load(), FULL, restored(0, 0, 4), loss=lost, name="broken")
    assert told(broken)[0][0] == told(broken, COMPLETE)[0][0] == "violated"


def test_a_request_that_was_over_before_its_load_judges_nothing(tmp_path: Path) -> None:
    run = drawn(tmp_path, load(outcome="cancelled"), FULL, restored(0, 0, 4))
    assert told(run) == [("unobserved", "0 loads covered, 1 of requests that were over")]
    assert told(run, COMPLETE)[0][0] == "unobserved"


def test_without_rows_of_groups_it_is_unobserved_and_without_vllm_not_applicable(tmp_path: Path) -> None:
    assert told(drawn(tmp_path, load())) == [
        ("unobserved", "what a load is needed for was not recorded (kvtrace run would)")
    ]
    assert told(write_run(tmp_path / "none"))[0][0] == "not_applicable"
    assert told(write_run(tmp_path / "empty"), COMPLETE)[0][0] == "not_applicable"
    assert told(drawn(tmp_path, name="idle"), COMPLETE) == [
        ("unobserved", "no connector's load to the GPU was recorded")
    ]


def test_a_load_between_other_tiers_a_prefetch_and_a_prediction_are_no_restoring(tmp_path: Path) -> None:
    rows = [load(tier_to="host"), load("b", purpose="prefetch"), load("c", evidence="predicted")]
    assert told(drawn(tmp_path, *rows), COMPLETE)[0][0] == "unobserved"


@pytest.mark.parametrize("wrong", [{"low": 2**62, "first": -5}, {"low": 0, "first": 2**63 - 1, "block": 0}])
def test_numbers_that_no_engine_writes_break_nothing(tmp_path: Path, wrong: dict[str, int]) -> None:
    low, first = wrong.pop("low"), wrong.pop("first")
    run = drawn(tmp_path, load(), need(0, "full", low, first, on_gpu="x-y 3 -", **wrong), ALL)
    assert len(told(run)) == 1
