"""`kvtrace import RUN_VLLM RUN_LMCACHE --out RUN`: one time line, and what commands say of planted faults.

What LMCache's server alone can show is in lmcache_alone/test_checked.py. Minutes: `pytest -m engine`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run
    from tests.engines.native import Played

pytestmark = pytest.mark.engine
QUEUED, LONGER = "cmpl-req-003-0-", "cmpl-req-004-0-"
"""The longer one begins as the one before it, which LMCache's lazy client has not stored yet."""
LONG, SHORT = "cmpl-req-006-0-", "cmpl-req-007-0-"
LONG_TOKENS = 1500
"""The two that come back from L2, as vLLM calls them: prompts of 1,500 and of 600 tokens, chunks of 256."""


def kvtrace(*words: str) -> subprocess.CompletedProcess[str]:
    """The command line, as a user types it."""
    command = [sys.executable, "-m", "kvtrace", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def imported(played: Played, out: Path) -> Path:
    """One run of vLLM's and the cache server's."""
    done = kvtrace("import", str(played.run), str(played.cache), "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out


def answer(question: str, run: Path) -> dict[str, dict[str, Any]]:
    """The rows of a question by their request, without the random end of its name."""
    return {row["request_id"].rpartition("-")[0] + "-": row for row in rows_of(question, run)}


def rows_of(question: str, run: Path) -> list[dict[str, Any]]:
    """The answer to a question, as the command gives it."""
    done = kvtrace("analyze", question, str(run), "--format", "json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


@pytest.fixture(scope="module")
def both(partial: Played, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two runs of a vLLM and a server whose L2 fails to load the third object of every load."""
    return imported(partial, tmp_path_factory.mktemp("both") / "run")


def _rows(run: Run, query: str, **values: Any) -> list[tuple[Any, ...]]:
    return run.sql(query, **values).rows()


def test_a_load_that_failed_in_part_is_partial_and_one_that_did_not_is_loaded(both: Path) -> None:
    """Nothing failed for the engine: it was told less. Five chunks were promised, two arrived."""
    rows = answer("fallbacks", both)
    picked = ("verdict", "expected_tokens", "loaded_tokens", "status")
    assert [rows[LONG][name] for name in picked] == ["partial", 1280, 512, "ok"]
    assert rows[LONG]["reason"] == "not_found"
    assert [rows[SHORT][name] for name in picked] == ["loaded", 512, 512, "ok"]
    others = {row["verdict"] for name, row in rows.items() if name not in {LONG, SHORT}}
    assert others == {"miss"}


def test_what_did_not_arrive_was_computed_without_a_word(both: Path) -> None:
    """Nobody selected it: it is computed in the first admission, and counted as nothing else."""
    row = answer("hit_funnel", both)[LONG]
    assert row["computed_tokens"] == row["prompt_tokens"] - 512 == LONG_TOKENS - 512
    assert row["recomputed_tokens"] == 0


def test_it_breaks_no_contract(both: Path) -> None:
    done = kvtrace("check", str(both), "--format", "json")
    found = [(row["invariant"], row["status"], row["detail"]) for row in json.loads(done.stdout)]
    assert [row for row in found if row[1] in {"violated", "inconclusive"}] == []
    assert done.returncode == 0


@pytest.mark.parametrize("name", [LONG, SHORT])
def test_a_load_goes_from_the_request_to_the_lock_to_the_read_of_l2_to_the_copy(
    both: Path, name: str
) -> None:
    """Two processes of vLLM and a server, one time line: each step has its own time, from the nearest."""
    run = open_run(both)
    ((request,),) = _rows(run, "SELECT request_id FROM request WHERE starts_with(request_id, $n)", n=name)
    ((arrived, first_token),) = _rows(
        run, "SELECT start_ns, first_token_ns FROM request WHERE request_id = $r", r=request
    )
    ((looked,),) = _rows(
        run, "SELECT min(start_ns) FROM span WHERE op = 'lookup' AND request_id = $r", r=request
    )
    ((locked,),) = _rows(
        run,
        "SELECT min(time_ns) FROM block WHERE event = 'locked' AND reason = 'landed' AND key IN "
        "(SELECT key FROM request_key WHERE request_id = $r) AND time_ns > $at",
        r=request, at=looked,
    )  # fmt: skip
    read, copy = _rows(
        run,
        "SELECT name, tier_from, tier_to, start_ns, end_ns, observer FROM transfer "
        "WHERE op = 'load' AND request_id = $r ORDER BY start_ns",
        r=request,
    )
    assert (read[0], *read[1:3]) == ("l2.load_task", "disk", "host")
    assert (copy[0], *copy[1:3], copy[5]) == ("mp.retrieve", "host", "gpu", "server")
    steps = [arrived, looked, read[3], read[4], locked, copy[3], copy[4], first_token]
    assert steps == sorted(steps)


def test_what_came_from_l2_is_credited_to_it(both: Path) -> None:
    """Also of the load that failed in part: L1 was empty, so what was used came from below."""
    done = kvtrace("analyze", "hit_ratio", str(both), "--format", "json")
    loaded = {row["tier"]: row["loaded_tokens"] for row in json.loads(done.stdout)}
    assert loaded == {"gpu": 0, "host": 0, "disk": 1024}


def test_a_whole_load_from_l2_has_its_tokens(both: Path) -> None:
    query = (
        "SELECT starts_with(request_id, $n), outcome, tokens, bytes FROM transfer "
        "WHERE name = 'l2.load_task' ORDER BY start_ns"
    )
    assert _rows(open_run(both), query, n=SHORT) == [
        (False, "partial", None, None), (True, "ok", 512, 2 * 524_288),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def late(lazy: Played, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two runs of a vLLM that stores lazily until it dies, and its server."""
    return imported(lazy, tmp_path_factory.mktemp("late") / "run")


def test_a_lookup_missed_what_still_waited_in_the_lazy_queue(late: Path) -> None:
    """Five chunks of the prompt before it were decided and not stored yet; later they were, by the server."""
    run = open_run(late)
    query = "SELECT max(request_id) FROM request WHERE starts_with(request_id, $n)"
    ((first,),), ((longer,),) = (_rows(run, query, n=name) for name in (QUEUED, LONGER))
    query = "SELECT start_ns, found_tokens FROM lookup WHERE request_id = $r"
    ((asked, found),) = _rows(run, query, r=longer)
    query = "SELECT end_ns FROM span WHERE name = 'mp.store' AND outcome = 'ok' AND request_id = $r"
    ((stored,),) = _rows(run, query, r=first)
    assert found == 0
    assert asked < stored
    assert rows_of("missed_by_lag", late) == [
        {"request_id": longer, "producer_request_id": first, "tokens": 1280, "late_by_ns": stored - asked}
    ]


def test_of_what_it_missed_the_longer_one_stored_nothing_itself(late: Path) -> None:
    """The server's word about a key names no request, and the longer one asked for these keys last."""
    rows = answer("store_lag", late)
    assert [rows[QUEUED][name] for name in ("stored_tokens", "never_stored")] == [1280, False]
    row = rows[LONGER]
    assert [row[name] for name in ("stored_tokens", "completed_ns", "never_stored")] == [0, None, True]
    assert (row["skip_reason"], row["skipped_tokens"]) == ("never_drained", 512)


def test_the_lazy_tail_is_never_stored(late: Path) -> None:
    """What waited in the client's queue when its engine died is nowhere: the server never heard of it."""
    query = (
        "SELECT request_id FROM span WHERE name = 'lmcache_lazy_queue' AND end_ns IS NULL AND request_id IN "
        "(SELECT request_id FROM request WHERE end_ns IS NOT NULL)"
    )
    tail = {request.rpartition("-")[0] + "-" for (request,) in _rows(open_run(late), query)}
    assert tail
    rows = answer("store_lag", late)
    assert {name for name, row in rows.items() if row["never_stored"]} >= tail
    assert {rows[name]["skip_reason"] for name in tail} <= {"never_drained", "stale"}
    assert any(row["never_stored"] is False for row in rows.values())
