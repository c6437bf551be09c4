"""What holds, what is broken, and what cannot be judged: one literal run an answer. Seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.lock_contract import COLUMNS, invariants, lock_contract
from kvtrace.analyses.lock_contract._findings import weakest
from kvtrace.errors import UsageError
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

S = 1_000_000_000
Row = dict[str, Any]
ACTIVE = {"BlockPool.get_new_blocks": "active", "BlockPool.free_blocks": "active"}


def engine(process: str = "e0", *, active: bool = True, allocations: int | None = 7, **more: Any) -> Row:
    """A scheduler of vLLM that was recorded from inside."""
    told = {} if allocations is None else {"checked_allocations": str(allocations)}
    row = {
        "process": process,
        "product": "vllm",
        "role": "scheduler",
        "instruments": list((ACTIVE if active else {"BlockPool.free_blocks": "active"}).items()),
        "attributes": list({"kvtrace": "0.1", **told}.items()),
        "last_ns": 200 * S,
    }
    return row | more


def hold(start: float, end: float | None, number: int = 1, **more: Any) -> Row:
    """A hold of the scheduler, or a piece of one."""
    row = {"op": "hold", "process": "e0", "request_id": "a", "span_id": number, "evidence": "shim"}
    times = {"start_ns": round(start * S), "end_ns": None if end is None else round(end * S)}
    return row | times | {"attributes": [("hold", str(number))]} | more


def broken(reason: str, block: str = "7") -> Row:
    """What the instrument writes when the pool breaks a contract."""
    row = {"event": "failed", "tier": "gpu", "component": "vllm.gpu", "reason": reason, "key": block}
    return row | {"time_ns": 3 * S, "request_id": "a", "process": "e0", "evidence": "shim"}


def load(start: float, end: float | None, **more: Any) -> Row:
    """A load that a worker saw."""
    row = {"op": "load", "tier_from": "host", "tier_to": "gpu", "process": "w0", "observer": "worker"}
    row |= {"request_id": "a", "evidence": "shim", "span_id": round(start * 10) + 100}
    return row | {"start_ns": round(start * S), "end_ns": None if end is None else round(end * S)} | more


def lock(event: str, at: float, key: str = "k", count: int | None = 1, **more: Any) -> Row:
    """A lock of an LMCache server."""
    row = {"event": event, "key": key, "key_space": "s", "component": "lmcache.l1", "process": "l0"}
    return row | {"time_ns": round(at * S), "count": count, "evidence": "native"} | more


def told(run: Run, invariant: str, **options: Any) -> list[tuple[str, str]]:
    """Status and detail of an invariant's rows."""
    found = lock_contract(run, only=(invariant,), **options)
    assert found.schema == COLUMNS
    assert set(found["invariant"]) == {invariant}
    return [(row["status"], row["detail"]) for row in found.to_dicts()]


def status(run: Run, invariant: str, **options: Any) -> str:
    (one,) = told(run, invariant, **options)
    return one[0]


def test_every_file_of_the_folder_is_an_invariant_and_gives_at_least_a_row(tmp_path: Path) -> None:
    found = lock_contract(write_run(tmp_path / "run"))
    assert {"completes_within_bound", "freed_once", "held_block_not_reused", "released_once"} < set(
        invariants()
    )
    assert found["invariant"].to_list() == list(invariants())


def test_of_an_empty_run_no_invariant_is_applicable(tmp_path: Path) -> None:
    assert set(lock_contract(write_run(tmp_path / "run"))["status"]) == {"not_applicable"}


POOL = ("held_block_not_reused", "freed_once")


@pytest.mark.parametrize("invariant", POOL)
def test_a_pool_that_was_compared_with_its_holds_passes(tmp_path: Path, invariant: str) -> None:
    run = write_run(tmp_path / "run", span=[hold(1, 2)], process=[engine()])
    assert status(run, invariant) == "pass"


@pytest.mark.parametrize(
    ("invariant", "reason"),
    [("held_block_not_reused", "held_block_reused"), ("freed_once", "freed_twice")],
)
@pytest.mark.parametrize("losses", [[], [{"cause": "dropped", "process": "e0", "count": 1}]])
def test_a_violation_is_a_row_whatever_was_lost(
    tmp_path: Path, invariant: str, reason: str, losses: list[Row]
) -> None:
    blocks = [broken(reason), broken(reason, "9")]
    run = write_run(tmp_path / "run", span=[hold(1, 2)], process=[engine()], block=blocks, loss=losses)
    rows = [row for row in lock_contract(run).to_dicts() if row["invariant"] == invariant]
    assert [(row["status"], row["severity"], row["key"]) for row in rows] == [
        ("violated", "error", "7"),
        ("violated", "error", "9"),
    ]
    assert {(row["request_id"], row["time_ns"], row["evidence"]) for row in rows} == {("a", 3 * S, "shim")}
    others = lock_contract(run).filter(invariant=next(name for name in POOL if name != invariant))
    assert others["status"].to_list() == ["inconclusive" if losses else "pass"]


@pytest.mark.parametrize("invariant", POOL)
@pytest.mark.parametrize("process", ["e0", None])
def test_losses_of_the_scheduler_make_it_inconclusive_and_others_do_not(
    tmp_path: Path, invariant: str, process: str | None
) -> None:
    losses = [
        {"cause": "dropped", "process": process, "count": 2},
        {"cause": "duplicate", "process": "e0", "count": 5},
    ]
    run = write_run(tmp_path / "run", span=[hold(1, 2)], process=[engine()], loss=losses)
    assert status(run, invariant) == ("inconclusive" if process else "pass")


@pytest.mark.parametrize("invariant", POOL)
def test_a_scheduler_that_did_not_compare_is_unobserved_and_one_of_two_inconclusive(
    tmp_path: Path, invariant: str
) -> None:
    old = [engine("e1", active=False)]
    spans = [hold(1, 2), hold(1, 2, 5, process="e1")]
    assert status(write_run(tmp_path / "one", span=spans, process=old), invariant) == "unobserved"
    both = write_run(tmp_path / "two", span=spans, process=[*old, engine()])
    assert status(both, invariant) == "inconclusive"


@pytest.mark.parametrize("invariant", POOL)
def test_without_a_hold_nothing_was_seen(tmp_path: Path, invariant: str) -> None:
    assert told(write_run(tmp_path / "run", process=[engine()]), invariant) == [
        ("unobserved", "no block was held for a transfer")
    ]


@pytest.mark.parametrize("invariant", POOL)
def test_vllm_seen_from_outside_is_unobserved_and_without_vllm_nothing_is_applicable(
    tmp_path: Path, invariant: str
) -> None:
    outside = write_run(tmp_path / "one", process=[engine(attributes=None, role="scheduler, worker")])
    assert told(outside, invariant) == [
        ("unobserved", "vLLM was not recorded from inside (kvtrace run would)")
    ]
    other = write_run(tmp_path / "two", process=[engine(product="sglang")])
    assert status(other, invariant) == "not_applicable"


@pytest.mark.parametrize("allocations", [0, None])
def test_without_an_allocation_beside_a_hold_reuse_was_not_seen(
    tmp_path: Path, allocations: int | None
) -> None:
    run = write_run(tmp_path / "run", span=[hold(1, 2)], process=[engine(allocations=allocations)])
    assert status(run, "held_block_not_reused") == "unobserved"
    assert status(run, "freed_once") == "pass"


def test_a_hold_whose_last_piece_is_open_has_not_ended(tmp_path: Path) -> None:
    pieces = [hold(1, 2), hold(2, None, 2, attributes=[("hold", "1")])]
    run = write_run(tmp_path / "run", span=pieces, process=[engine()])
    assert told(run, "freed_once") == [("unobserved", "no hold ended")]
    assert status(run, "held_block_not_reused") == "pass"


WORKER = {"process": "w0", "product": "vllm", "role": "worker", "last_ns": 200 * S}


def moved(tmp_path: Path, *rows: Row, loss: tuple[Row, ...] = (), last: int = 200) -> Run:
    return write_run(
        tmp_path / "run", span=list(rows), loss=list(loss), process=[WORKER | {"last_ns": last * S}]
    )


def test_what_completed_in_time_passes(tmp_path: Path) -> None:
    run = moved(tmp_path, load(1, 5), load(100, 160, op="store"))
    assert told(run, "completes_within_bound") == [("pass", "2 transfers completed within 60 s")]


#  submit 0 |---- 61 s ----| end, start at 50
def test_what_completed_too_late_after_its_submit_is_a_violation_even_with_losses(tmp_path: Path) -> None:
    run = moved(tmp_path, load(50, 61, submit_ns=0), load(1, 2), loss=({"cause": "dropped", "count": 1},))
    (row,) = [row for row in lock_contract(run).to_dicts() if row["status"] == "violated"]
    assert (row["invariant"], row["time_ns"], row["request_id"]) == ("completes_within_bound", 60 * S, "a")
    assert row["detail"] == "load host -> gpu completed after 61 s"


def test_an_open_transfer_of_a_process_that_recorded_on_hangs(tmp_path: Path) -> None:
    run = moved(tmp_path, load(10, None), load(1, 5))
    assert told(run, "completes_within_bound") == [("violated", "load host -> gpu open after 3.17 min")]


@pytest.mark.parametrize(
    ("last", "losses", "why"),
    [
        (60, (), "1 transfer open, not recorded for the bound"),
        (
            200,
            ({"cause": "dropped", "process": "w0", "op": "load", "count": 1},),
            "whose end may be among lost",
        ),
        (200, ({"cause": "dropped", "count": 1},), "whose end may be among lost"),
    ],
)
def test_an_open_transfer_that_may_have_completed_is_inconclusive(
    tmp_path: Path, last: int, losses: tuple[Row, ...], why: str
) -> None:
    run = moved(tmp_path, load(10, None), loss=losses, last=last)
    ((found, detail),) = told(run, "completes_within_bound")
    assert found == "inconclusive"
    assert why in detail


def test_losses_of_another_process_or_op_do_not_excuse_an_open_transfer(tmp_path: Path) -> None:
    losses = (
        {"cause": "dropped", "process": "x", "count": 1},
        {"cause": "dropped", "op": "step", "count": 1},
    )
    assert status(moved(tmp_path, load(10, None), loss=losses), "completes_within_bound") == "violated"


def test_with_losses_that_may_be_transfers_nothing_passes(tmp_path: Path) -> None:
    losses = ({"cause": "dropped", "process": "x", "op": "store", "count": 3},)
    assert status(moved(tmp_path, load(1, 2), loss=losses), "completes_within_bound") == "inconclusive"


def test_an_open_transfer_of_an_unknown_process_is_inconclusive(tmp_path: Path) -> None:
    assert status(moved(tmp_path, load(1, None, process=None)), "completes_within_bound") == "inconclusive"


def test_a_failed_transfer_without_an_end_has_completed(tmp_path: Path) -> None:
    run = moved(tmp_path, load(1, None, outcome="failed"), load(3, 4))
    assert told(run, "completes_within_bound") == [("pass", "1 transfer completed within 60 s")]


def test_without_transfers_completion_is_unobserved(tmp_path: Path) -> None:
    assert status(moved(tmp_path), "completes_within_bound") == "unobserved"


def test_the_bound_is_an_option(tmp_path: Path) -> None:
    run = moved(tmp_path, load(1, 5))
    assert status(run, "completes_within_bound", bound_s=4) == "pass"
    assert status(run, "completes_within_bound", bound_s=3.9) == "violated"


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_that_is_none_is_refused(tmp_path: Path, bound: float) -> None:
    with pytest.raises(UsageError, match="lock_contract: bound_s must be above 0"):
        lock_contract(write_run(tmp_path / "run"), bound_s=bound)


def locks(tmp_path: Path, *rows: Row, loss: tuple[Row, ...] = ()) -> Run:
    return write_run(tmp_path / "run", block=list(rows), loss=list(loss))


def test_as_many_releases_as_locks_pass_asked_or_granted(tmp_path: Path) -> None:
    rows = [lock("locked", 1, count=2), lock("unlocked", 2), lock("unlocked", 3)]
    rows += [lock(word, 1, "q", reason="asked", process="l1") for word in ("locked", "unlocked")]
    assert told(locks(tmp_path, *rows), "released_once") == [
        ("pass", "3 locks asked for and 3 released, on 2 keys")
    ]


def test_a_release_too_many_is_a_violation_when_it_happens(tmp_path: Path) -> None:
    rows = [lock("locked", 1, reason="asked", request_id="a"), lock("unlocked", 2), lock("unlocked", 3)]
    (row,) = [row for row in lock_contract(locks(tmp_path, *rows)).to_dicts() if row["status"] == "violated"]
    assert (row["invariant"], row["key"], row["request_id"]) == ("released_once", "k", "a")
    assert (row["severity"], row["time_ns"], row["evidence"]) == ("error", 3 * S, "native")
    assert row["detail"] == "released 2 times, asked for 1 times"


@pytest.mark.parametrize(
    "more", [{"rank": 1}, {"object_group": "1"}, {"key_space": "t"}, {"engine": "e1"}, {"process": "l1"}]
)
def test_a_key_of_another_rank_group_space_engine_or_process_is_another_lock(
    tmp_path: Path, more: Row
) -> None:
    rows = [lock("locked", 1, count=3), lock("locked", 1, **more)]
    rows += [lock("unlocked", 2, **more), lock("unlocked", 3, **more)]
    assert told(locks(tmp_path, *rows), "released_once") == [("violated", "released 2 times, locked 1 times")]


def test_locks_asked_for_and_not_released_prove_nothing(tmp_path: Path) -> None:
    rows = [
        lock("locked", 1, reason="asked"),
        lock("locked", 900, "q", reason="asked"),
        lock("unlocked", 901, "q"),
    ]
    assert told(locks(tmp_path, *rows), "released_once") == [
        ("inconclusive", "2 locks asked for and 1 released; which were granted was not told")
    ]


def test_a_granted_lock_that_is_kept_beyond_the_bound_is_a_violation(tmp_path: Path) -> None:
    rows = [lock("locked", 1), lock("locked", 80, "q")]
    assert told(locks(tmp_path, *rows), "released_once") == [
        ("violated", "locked and not released 79 s later")
    ]
    assert status(locks(tmp_path / "more", *rows), "released_once", bound_s=80) == "inconclusive"


def test_a_granted_lock_that_ran_out_is_a_warning(tmp_path: Path) -> None:
    rows = [lock("locked", 1, ttl_ns=5 * S), lock("locked", 8, "q"), lock("unlocked", 9, "q")]
    (row,) = [row for row in lock_contract(locks(tmp_path, *rows)).to_dicts() if row["status"] == "violated"]
    assert (row["severity"], row["time_ns"]) == ("warning", 6 * S)
    assert row["detail"] == "ttl_expired: not released within its time to live of 5 s"


def test_a_key_whose_first_record_is_a_release_was_locked_before(tmp_path: Path) -> None:
    rows = [lock("unlocked", 1), lock("locked", 2), lock("unlocked", 3)]
    assert status(locks(tmp_path, *rows), "released_once") == "inconclusive"


@pytest.mark.parametrize("process", ["l0", None])
def test_with_losses_of_their_source_locks_are_inconclusive(tmp_path: Path, process: str | None) -> None:
    rows = [lock("locked", 1), lock("unlocked", 2), lock("unlocked", 3)]
    run = locks(tmp_path, *rows, loss=({"cause": "sequence_gap", "process": process, "count": 1},))
    assert status(run, "released_once") == "inconclusive"


def test_losses_of_another_process_leave_locks_alone(tmp_path: Path) -> None:
    run = locks(
        tmp_path, lock("locked", 1), lock("unlocked", 2),
        loss=({"cause": "dropped", "process": "x", "count": 1},),
    )  # fmt: skip
    assert status(run, "released_once") == "pass"


def test_an_lmcache_without_lock_records_is_unobserved(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", process=[{"process": "l0", "product": "lmcache"}])
    assert status(run, "released_once") == "unobserved"


@pytest.mark.parametrize(
    ("words", "found"),
    [(["native", "shim"], "shim"), (["derived", "native"], "derived"), (["native", None], None), ([], None)],
)
def test_the_weakest_evidence_counts(words: list[str | None], found: str | None) -> None:
    assert weakest(words) == found
