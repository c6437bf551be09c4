"""What the scheduler's observer records of vLLM's own scheduler, state by state.

Seconds: `pytest -m engine tests/engines/scheduler`. See test_vllm_lmcache.py for the environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from kvtrace.analyses.lock_contract import lock_contract
from kvtrace.run import Run, open_run
from tests.engines import model
from tests.engines.environment import engine_python, skip_when_missing

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.engine

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TIMEOUT_S = 300
DONE = (
    "plain", "gpu_hit", "async_load", "full_load", "sync_load", "chunked", "several", "drafts", "overlapped",
    "overlapped_drafts", "seats",
)  # fmt: skip
"""Cases in which no load failed and nothing was preempted."""


@dataclass(frozen=True)
class Played:
    """The run that was recorded, what was printed of each case, and vLLM's pages before and after them."""

    run: Run | None
    said: list[str]
    pages: tuple[Path, ...] = ()


def play(
    python: Path, folder: Path, environment: Mapping[str, str] | None = None, cases: tuple[str, ...] = ()
) -> Played:
    """All cases, or these, in the engines' interpreter, recorded by `kvtrace run`."""
    model.write_model(folder / model.NAME)
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    command = [str(python), str(HERE / "play.py"), *cases]
    plain = environment is not None and "KVTRACE_PLAIN" in environment
    if not plain:
        command = [sys.executable, "-m", "kvtrace", "run", "--out", "run", "--", *command]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        env={**os.environ, **quiet, "PYTHONPATH": str(ROOT), **(environment or {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    pages = tuple(folder / f"vllm-metrics-{moment}.txt" for moment in ("before", "after"))
    return Played(None if plain else open_run(folder / "run"), done.stdout.splitlines(), pages)


@pytest.fixture(scope="module")
def python() -> Path:
    skip_when_missing()
    return engine_python()


@pytest.fixture(scope="module")
def played(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(python, tmp_path_factory.mktemp("scheduler"))


@pytest.fixture
def run(played: Played) -> Run:
    assert played.run is not None
    return played.run


def rows(run: Run, query: str) -> list[tuple[Any, ...]]:
    return run.connection().sql(query).fetchall()


def queue(run: Run, name: str) -> list[tuple[Any, ...]]:
    """Reason, blocks, free blocks and attempt of a request's intervals, in time order."""
    columns = "reason, blocks, free_blocks, attempt"
    return rows(run, f"SELECT {columns} FROM queue WHERE request_id = '{name}' ORDER BY start_ns")


def lookup(run: Run, name: str) -> list[tuple[Any, ...]]:
    columns = "outcome, found_tokens, attributes['calls']::INT, attempt"
    return rows(run, f"SELECT {columns} FROM lookup WHERE request_id = '{name}' ORDER BY start_ns")


def load(run: Run, name: str) -> list[tuple[Any, ...]]:
    columns = "outcome, tokens, attributes['usable_tokens']::INT, usable_ns IS NOT NULL"
    return rows(
        run, f"SELECT {columns} FROM span WHERE op = 'load' AND request_id = '{name}' ORDER BY start_ns"
    )


def steps(run: Run, name: str) -> list[tuple[Any, ...]]:
    columns = "phase, scheduled_tokens, output_tokens, computed_before"
    served = f"request_id = '{name}' AND op = 'step'"
    return rows(run, f"SELECT {columns} FROM member WHERE {served} ORDER BY start_ns")


def test_the_scheduler_decides_the_same_with_and_without_hooks(
    python: Path, played: Played, tmp_path: Path
) -> None:
    assert play(python, tmp_path, {"KVTRACE_PLAIN": "1"}).said == played.said


def test_hooks_that_raise_change_nothing_and_are_counted(
    python: Path, played: Played, tmp_path: Path
) -> None:
    failing = play(python, tmp_path, {"KVTRACE_FAULT": "hooks"})
    assert failing.said == played.said
    assert failing.run is not None
    ((count,),) = rows(failing.run, "SELECT sum(count)::INT FROM loss WHERE cause = 'hook_failure'")
    assert count > len(failing.said)


def test_no_hook_failed(run: Run) -> None:
    assert rows(run, "SELECT cause, detail FROM loss") == []


def test_all_of_it_is_wrapped(run: Run) -> None:
    ((instruments,),) = rows(run, "SELECT instruments FROM process")
    assert {name for name, state in dict(instruments).items() if state != "active"} == set()
    assert len(dict(instruments)) > 20


@pytest.mark.parametrize("case", DONE)
def test_what_the_gpu_had_was_loaded_and_was_computed_is_the_prompt(run: Run, case: str) -> None:
    found = rows(
        run,
        f"""
        SELECT any_value(prompt_tokens), any_value(gpu_hit_tokens), min(computed_before),
               sum(least(scheduled_tokens, prompt_tokens - computed_before))::BIGINT
        FROM request JOIN member USING (request_id)
        WHERE request_id LIKE '{case}.%' AND computed_before < prompt_tokens
        GROUP BY request_id
        """,
    )
    assert found
    for prompt, hit, first, computed in found:
        assert hit + (first - hit) + computed == prompt
        assert first >= hit


@pytest.mark.parametrize("case", [*DONE, "preemption", "held", "by_priority", "repeated", "failed_load"])
def test_what_steps_put_out_is_what_the_request_put_out(run: Run, case: str) -> None:
    found = rows(
        run,
        f"""
        SELECT request_id, request.output_tokens, sum(member.output_tokens)
        FROM request JOIN member USING (request_id) WHERE request_id LIKE '{case}.%' GROUP BY ALL
        """,
    )
    assert found
    assert [name for name, told, counted in found if told != counted] == []


def test_queue_rows_are_back_to_back_from_the_arrival_to_the_first_step(run: Run) -> None:
    gaps = rows(
        run,
        """
        WITH own AS (
            SELECT request_id, attempt, start_ns, lag(end_ns) OVER (
                PARTITION BY request_id ORDER BY start_ns, end_ns
            ) AS before
            FROM queue
        )
        SELECT request_id FROM own JOIN request USING (request_id)
        WHERE own.start_ns != coalesce(before, request.start_ns) AND own.attempt = 1
        """,
    )
    assert gaps == []
    first = rows(
        run,
        """
        SELECT request_id FROM (SELECT request_id, min(start_ns) AS step_ns FROM member GROUP BY ALL)
        JOIN (SELECT request_id, max(end_ns) AS queue_ns FROM queue WHERE attempt = 1 GROUP BY ALL)
        USING (request_id)
        WHERE step_ns != queue_ns AND request_id NOT LIKE 'failed_load%'
        """,
    )
    assert first == []


def test_a_request_carries_its_callers_trace(run: Run) -> None:
    ((trace, status, reason),) = rows(
        run, "SELECT trace_id, status, attributes['finish_reason'] FROM request WHERE request_id = 'plain.a'"
    )
    assert (trace, status, reason) == ("4bf92f3577b34da6a3ce929d0e0e4736", "ok", "length")


def test_a_repeated_prompt_is_a_gpu_hit(run: Run) -> None:
    found = rows(
        run, "SELECT gpu_hit_tokens FROM request WHERE request_id LIKE 'gpu_hit.%' ORDER BY request_id"
    )
    assert found == [(0,), (64,)]


def test_an_asynchronous_load_is_asked_for_loaded_and_promoted(run: Run) -> None:
    assert [row[0] for row in queue(run, "async_load.a")] == ["unknown", "lookup", "remote_kv"]
    assert lookup(run, "async_load.a") == [("ok", 48, 3, 1)]
    assert load(run, "async_load.a") == [("ok", 48, 48, True)]
    assert steps(run, "async_load.a")[0] == ("prefill", 52, 1, 48)
    ((ordered,),) = rows(
        run,
        "SELECT submit_ns <= start_ns AND start_ns < end_ns AND end_ns < usable_ns FROM span "
        "WHERE op = 'load' AND request_id = 'async_load.a'",
    )
    assert ordered


def test_a_whole_prompt_that_was_loaded_computes_its_last_token(run: Run) -> None:
    assert steps(run, "full_load.a")[0] == ("prefill", 1, 1, 63)


def test_a_failed_load_is_followed_by_a_second_attempt(run: Run) -> None:
    assert load(run, "failed_load.a") == [("failed", 48, 0, False)]
    assert lookup(run, "failed_load.a") == [("ok", 48, 1, 1), ("miss", 0, 1, 2)]
    assert steps(run, "failed_load.a")[0] == ("prefill", 100, 1, 0)


def test_of_a_partly_failed_load_the_valid_prefix_is_used(run: Run) -> None:
    assert load(run, "partial_load.a") == [("partial", 48, 16, True)]
    assert steps(run, "partial_load.a")[0] == ("prefill", 84, 1, 16)


def test_a_load_whose_failure_fails_the_request(run: Run) -> None:
    assert load(run, "refused_load.a") == [("failed", 48, 0, False)]
    assert rows(run, "SELECT status FROM request WHERE request_id = 'refused_load.a'") == [("error",)]
    assert rows(run, "SELECT reason, blocks FROM hold WHERE request_id = 'refused_load.a'") == [("load", 3)]


def test_a_load_inside_a_step_is_selected_and_no_row_of_the_scheduler(run: Run) -> None:
    assert load(run, "sync_load.a") == []
    found = rows(run, "SELECT gpu_hit_tokens, selected_tokens FROM request WHERE request_id = 'sync_load.a'")
    assert found == [(0, 48)]
    assert steps(run, "sync_load.a")[0] == ("prefill", 52, 1, 48)


def test_a_preempted_request_waits_for_blocks_and_begins_again(run: Run) -> None:
    assert queue(run, "preemption.b") == [("unknown", None, None, 1), ("preempted", 5, 3, 2)]
    ((attempt, preemptions),) = rows(
        run,
        "SELECT attempt, attributes['preemptions']::INT FROM request WHERE request_id = 'preemption.b'",
    )
    assert (attempt, preemptions) == (2, 1)


def test_want_of_blocks_is_told_in_blocks_and_held_ones_have_their_holder(run: Run) -> None:
    assert queue(run, "held.c") == [("unknown", None, None, 1), ("capacity", 7, 2, 1)]
    assert queue(run, "held.d")[1] == ("capacity", 9, 2, 1)
    holds = rows(
        run, "SELECT request_id, blocks FROM hold WHERE request_id IN ('held.a', 'held.b') ORDER BY ALL"
    )
    assert holds == [("held.a", 5), ("held.b", 5)]
    assert lookup(run, "held.c") == [("miss", 0, 42, 1)]


def test_blame_for_the_wait_goes_to_the_holders(run: Run) -> None:
    from kvtrace.analyses.blockers import blockers

    found = blockers(run).filter(request_id="held.c", **{"class": "queue_capacity"})
    assert sorted(found["blocker_request_id"]) == ["held.a", "held.b"]


def test_a_hold_counts_shared_blocks_only_while_nobody_else_uses_them(run: Run) -> None:
    found = rows(run, "SELECT blocks FROM hold WHERE request_id = 'shared_hold.a' ORDER BY start_ns")
    assert found == [(5,), (1,), (5,)]


def test_references_of_a_connectors_own_are_a_hold(run: Run) -> None:
    found = rows(run, "SELECT blocks, reason, end_ns - start_ns > 5000000 FROM hold WHERE request_id IS NULL")
    assert found == [(3, "store", True)]


def test_want_of_a_seat_shows_that_blocks_were_free(run: Run) -> None:
    assert queue(run, "seats.b")[1] == ("capacity", 3, 96, 1)


def test_by_priority_the_first_of_the_queue_is_the_head(run: Run) -> None:
    assert queue(run, "by_priority.c") == [("unknown", None, None, 1), ("capacity", 3, 96, 1)]
    assert queue(run, "by_priority.b")[:2] == [("unknown", None, None, 1), ("capacity", None, None, 1)]


def test_an_abort_ends_what_was_going_on_in_every_state(run: Run) -> None:
    found = dict(rows(run, "SELECT request_id, status FROM request WHERE request_id LIKE 'aborted.%'"))
    assert set(found.values()) == {"aborted"}
    assert len(found) == 6
    assert [row[0] for row in queue(run, "aborted.unseen")] == ["unknown"]
    assert [row[0] for row in queue(run, "aborted.slot")] == ["unknown", "capacity"]
    assert lookup(run, "aborted.asking") == [("cancelled", None, 1, 1)]
    assert load(run, "aborted.loading") == [("cancelled", 48, 48, False)]
    assert rows(run, "SELECT op FROM span WHERE end_ns IS NULL AND request_id LIKE 'aborted.%'") == []


def test_an_inquiry_repeated_for_want_of_blocks_is_one_row(run: Run) -> None:
    ((outcome, found, calls, attempt),) = lookup(run, "repeated.b")
    assert (outcome, found, attempt) == ("miss", 0, 1)
    assert calls > 20


def test_rejected_drafts_are_no_output_and_not_computed(run: Run) -> None:
    expected = [("prefill", 40, 1, 0), *[("decode", 3, 2, before) for before in (40, 42, 44, 46)]]
    assert steps(run, "drafts.a") == expected
    assert steps(run, "overlapped_drafts.a")[:5] == expected


def test_overlapping_steps_are_told_apart(run: Run) -> None:
    assert steps(run, "overlapped.a") == [
        ("prefill", 40, 1, 0), ("decode", 1, 1, 40), ("decode", 1, 1, 41), ("decode", 1, 1, 42),
    ]  # fmt: skip
    ((overlap,),) = rows(
        run,
        """
        SELECT count(*) FROM member AS one JOIN member AS two
        ON one.request_id = 'overlapped.a' AND two.request_id = 'overlapped.a'
        AND one.start_ns < two.start_ns AND two.start_ns < one.end_ns
        """,
    )
    assert overlap == 3


def test_of_several_connectors_the_outermost_asks_and_the_chosen_one_loads(run: Run) -> None:
    found = rows(
        run,
        "SELECT component, attributes['children'], found_tokens FROM lookup WHERE request_id = 'several.a'",
    )
    assert found == [("vllm.multi", "fake=0 second=48", 48)]
    assert rows(run, "SELECT component FROM span WHERE op = 'load' AND request_id = 'several.a'") == [
        ("second",)
    ]


def test_what_had_not_ended_is_open(run: Run) -> None:
    found = rows(
        run,
        "SELECT op, request_id, outcome, reason FROM span "
        "WHERE end_ns IS NULL AND op != 'request' ORDER BY ALL",
    )
    assert found == [
        ("hold", "left_open.b", "open", "store"), ("load", "left_open.a", "open", None),
        ("lookup", "left_open.c", "open", None), ("queue", "left_open.a", "open", "remote_kv"),
        ("queue", "left_open.c", "open", "lookup"),
    ]  # fmt: skip
    opened = rows(run, "SELECT request_id FROM request WHERE status = 'open' ORDER BY ALL")
    assert opened == [("left_open.a",), ("left_open.c",)]


def test_blocks_of_the_real_pool_are_compared_with_their_holds(run: Run) -> None:
    ((instruments, checked),) = rows(
        run, "SELECT instruments, attributes['checked_allocations']::INT FROM process"
    )
    known = dict(instruments)
    for method in ("get_new_blocks", "free_blocks", "unpin_blocks"):
        assert known[f"BlockPool.{method}"] == "active"
    assert checked >= 1


def test_a_held_block_that_was_given_back_and_handed_out_is_both_told_and_nothing_else_is(run: Run) -> None:
    broken = rows(
        run, "SELECT reason, request_id, count(DISTINCT key) FROM block WHERE event = 'failed' GROUP BY ALL"
    )
    assert {reason: (name, count) for reason, name, count in broken} == {
        "freed_twice": ("broken_hold.a", 2),
        "held_block_reused": ("broken_hold.a", 2),
    }
    found = lock_contract(run).filter(status="violated")
    assert set(found.select("invariant", "request_id").rows()) == {
        ("freed_once", "broken_hold.a"),
        ("held_block_not_reused", "broken_hold.a"),
    }
    assert found.height == 4


def test_without_the_broken_case_the_pools_contract_passes(python: Path, tmp_path: Path) -> None:
    found = play(python, tmp_path, cases=("held", "shared_hold", "touched", "preemption", "async_load"))
    assert found.run is not None
    pool = lock_contract(found.run).filter(pl.col("invariant").is_in(["freed_once", "held_block_not_reused"]))
    assert pool["status"].to_list() == ["pass", "pass"]
