"""Every way in which a load fails, under both policies: each is told apart, and so is what follows.

Seconds: `pytest -m engine tests/engines/scheduler`. See test_vllm_lmcache.py for the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kvtrace
import polars as pl
import pytest
from kvtrace.importer import import_files
from kvtrace.run import open_run
from tests.engines.environment import engine_python, skip_when_missing
from tests.engines.scheduler.test_bare_scheduler import Played, load, lookup, play, queue, rows, steps
from tests.golden.truths.numbers import numbers

if TYPE_CHECKING:
    from kvtrace.run import Run

pytestmark = pytest.mark.engine

POLICIES = ("recompute", "fail")
FAILED: dict[str, tuple[str, int, str]] = {
    "async_named": ("failed", 0, "request"),
    "async_named_and_blocks": ("failed", 0, "request blocks"),
    "async_some_blocks": ("partial", 16, "blocks"),
    "async_all_blocks": ("failed", 0, "blocks"),
    "sync_some_blocks": ("partial", 16, "blocks"),
    "sync_all_blocks": ("failed", 0, "blocks"),
}
"""How it fails -> the outcome of its load, the tokens of 48 that are usable, and what told of it."""
OTHERS = ("without_end", "one_of_two", "shared", "strange_blocks")
CASES = tuple(f"failed_load_{how}_{policy}" for policy in POLICIES for how in (*FAILED, *OTHERS))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    skip_when_missing()
    found = play(engine_python(), tmp_path_factory.mktemp("failures"), cases=CASES)
    assert [line.split()[0] for line in found.said] == list(CASES)
    return found


@pytest.fixture(scope="module")
def run(played: Played) -> Run:
    assert played.run is not None
    return played.run


def name(how: str, policy: str, letter: str = "a") -> str:
    return f"failed_load_{how}_{policy}.{letter}"


def told(run: Run, request_id: str) -> tuple[Any, ...]:
    """Outcome, usable tokens, by what it was told, and whether the load was inside a step."""
    found = rows(
        run,
        "SELECT outcome, attributes['usable_tokens']::INT, attributes['failed_by'], "
        "coalesce(name = 'load_inside_step', false) FROM span "
        f"WHERE op = 'load' AND request_id = '{request_id}'",
    )
    (row,) = found
    return row


def ended(run: Run, request_id: str) -> tuple[Any, ...]:
    """Status, attempts, preemptions and output tokens of a request."""
    (row,) = rows(
        run,
        "SELECT status, attempt, attributes['preemptions']::INT, output_tokens "
        f"FROM request WHERE request_id = '{request_id}'",
    )
    return row


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("how", FAILED)
def test_a_load_that_failed_says_how_much_is_usable_and_what_told_of_it(
    run: Run, how: str, policy: str
) -> None:
    assert told(run, name(how, policy)) == (*FAILED[how], how.startswith("sync"))


@pytest.mark.parametrize("policy", POLICIES)
def test_no_two_failures_look_alike(run: Run, policy: str) -> None:
    seen = [told(run, name(how, policy)) for how in FAILED]
    assert len(set(seen)) == len(FAILED)


@pytest.mark.parametrize("how", FAILED)
def test_to_recompute_goes_on_from_what_is_usable(run: Run, how: str) -> None:
    """Nothing usable of an asynchronous load: a new attempt, which asks again. Else the same one goes on."""
    request_id = name(how, "recompute")
    usable = FAILED[how][1]
    inside = how.startswith("sync")
    attempts = 1 if usable or inside else 2
    assert ended(run, request_id) == ("ok", attempts, 0, 3)
    assert [row[3] for row in lookup(run, request_id)] == list(range(1, attempts + 1))
    lost = [("prefill", 52, 0, 48)] if inside else []
    assert steps(run, request_id) == [
        *lost, ("prefill", 100 - usable, 1, usable), ("decode", 1, 1, 100), ("decode", 1, 1, 101)
    ]  # fmt: skip


@pytest.mark.parametrize("how", FAILED)
def test_to_fail_ends_the_request_and_computes_nothing_again(run: Run, how: str) -> None:
    request_id = name(how, "fail")
    assert ended(run, request_id) == ("error", 1, 0, 0)
    inside = how.startswith("sync")
    assert steps(run, request_id) == ([("prefill", 52, 0, 48)] if inside else [])
    held = rows(run, f"SELECT reason, blocks FROM hold WHERE request_id = '{request_id}'")
    assert held == ([] if inside else [("load", 3)]), "an asynchronous load may still write"
    assert load(run, request_id)[0][3] is False, "nobody may use what has arrived"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("how", FAILED)
def test_its_verdict_is_the_policys(run: Run, how: str, policy: str) -> None:
    verdicts = kvtrace.analyze(run, "fallbacks", requests=(name(how, policy),))
    (verdict,) = verdicts["verdict"]
    kept = "partial" if FAILED[how][1] else "recompute_after_failure"
    assert verdict == (kept if policy == "recompute" else "failed")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("how", "names", "tokens"),
    [
        ("sync_some_blocks", "a", 32),
        ("sync_all_blocks", "a", 48),
        ("one_of_two", "b", 32),
        ("shared", "ab", 32),
    ],
)
def test_invalid_blocks_inside_a_step_name_everybody_who_was_cut_back(
    run: Run, how: str, names: str, tokens: int, policy: str
) -> None:
    found = rows(
        run,
        "SELECT list_transform(members, lambda m: m.request_id), tokens FROM span "
        f"WHERE name = 'kv_blocks_invalid' AND members[1].request_id LIKE 'failed_load_{how}_{policy}.%'",
    )
    assert found == [([name(how, policy, letter) for letter in names], tokens)]


@pytest.mark.parametrize("policy", POLICIES)
def test_of_two_loads_inside_a_step_only_the_one_that_broke_has_failed(run: Run, policy: str) -> None:
    assert told(run, name("one_of_two", policy, "a")) == ("ok", 48, None, True)
    assert told(run, name("one_of_two", policy, "b")) == ("partial", 16, "blocks", True)
    assert ended(run, name("one_of_two", policy, "a"))[0] == "ok"
    assert ended(run, name("one_of_two", policy, "b"))[0] == ("ok" if policy == "recompute" else "error")


@pytest.mark.parametrize("policy", POLICIES)
def test_who_runs_on_blocks_that_another_one_loads_shares_its_fate(run: Run, policy: str) -> None:
    """A computes them again; b, which has loaded nothing, waits for them and keeps what it had."""
    status = "ok" if policy == "recompute" else "error"
    assert [ended(run, name("shared", policy, letter))[0] for letter in "ab"] == [status, status]
    assert load(run, name("shared", policy, "b")) == []
    again = steps(run, name("shared", policy, "b"))[:2]
    assert again[0] == ("prefill", 4, 0, 96)
    assert again[1:] == ([("prefill", 4, 1, 96)] if policy == "recompute" else [])


@pytest.mark.parametrize("policy", POLICIES)
def test_blocks_that_nobody_uses_fail_no_load(run: Run, policy: str) -> None:
    assert told(run, name("strange_blocks", policy)) == ("ok", 48, None, True)
    assert ended(run, name("strange_blocks", policy)) == ("ok", 1, 0, 3)


def test_a_failure_without_an_end_leaves_the_request_waiting_until_its_client_leaves(run: Run) -> None:
    """VLLM's rule: who is in failed_recving must be in finished_recving too. Nothing else wakes it."""
    request_id = name("without_end", "recompute")
    assert told(run, request_id) == ("failed", 0, "request", False)
    assert ended(run, request_id) == ("aborted", 1, 0, 0)
    assert queue(run, request_id)[-1][0] == "remote_kv"
    assert steps(run, request_id) == []
    assert rows(run, f"SELECT reason, blocks FROM hold WHERE request_id = '{request_id}'") == [("load", 3)]


def test_to_fail_needs_no_end_but_its_blocks_are_held_until_then(run: Run) -> None:
    request_id = name("without_end", "fail")
    assert told(run, request_id) == ("failed", 0, "request", False)
    assert ended(run, request_id) == ("error", 1, 0, 0)
    ((ordered,),) = rows(
        run,
        "SELECT h.start_ns = r.end_ns AND h.end_ns >= l.end_ns AND l.end_ns > r.end_ns FROM hold h "
        "JOIN span r ON r.op = 'request' AND r.request_id = h.request_id "
        f"JOIN span l ON l.op = 'load' AND l.request_id = h.request_id WHERE h.request_id = '{request_id}'",
    )
    assert ordered


def test_nothing_of_it_was_lost_and_nothing_stays_open(run: Run) -> None:
    assert rows(run, "SELECT cause, detail FROM loss") == []
    assert rows(run, "SELECT op, request_id FROM span WHERE end_ns IS NULL") == []
    assert set(kvtrace.analyze(run, "fallbacks").filter(pl.col("verdict").is_null())["request_id"]) == set()


@pytest.fixture(scope="module")
def counted(played: Played, run: Run) -> dict[str, dict[str, Any]]:
    """VLLM's own numbers of all these cases, from its own page of metrics, beside what was measured."""
    path = run.path.with_name("counted")
    import_files([run.path, *played.pages], path)
    return numbers(open_run(path))


LOADS = len(POLICIES) * (len(FAILED) + len(OTHERS) + 1)
"""A load a case, two of `one_of_two`."""
USED = {"recompute": 16 + 16 + (48 + 16) + 16 + 48, "fail": 48 + 48}
"""Tokens of loads that some answer was built on: some blocks twice, one_of_two, shared, strange_blocks."""
REFUSED = 5
"""Under the policy `fail`: the asynchronous loads, whose requests never had a step."""


def test_vllm_counts_every_load_as_a_hit_whatever_became_of_it(counted: dict[str, dict[str, Any]]) -> None:
    row = counted["vllm:external_prefix_cache_hits_total"]
    assert (row["reported"], row["measured"]) == (48 * LOADS, sum(USED.values()))
    lost = 48 * LOADS - sum(USED.values())
    assert row["reason"] == f"{lost} tokens of 18 failed loads stay counted and were not used"


@pytest.mark.parametrize(
    "name", ["vllm:external_prefix_cache_queries_total", "vllm:prefix_cache_queries_total"]
)
def test_vllm_counts_who_asks_again_after_a_load_of_which_nothing_arrived_again(
    counted: dict[str, dict[str, Any]], name: str
) -> None:
    """100 tokens each, of three asynchronous ones; b of `shared` has 96 of them on the GPU."""
    row = counted[name]
    assert row["difference"] == 300
    assert row["reason"].startswith("300 tokens counted again, of 3 requests")


def test_vllms_sources_of_prompt_tokens_keep_what_was_lost_in_part(
    counted: dict[str, dict[str, Any]],
) -> None:
    """Of prefills that ended: 48 said to be loaded of which 16, or inside a step none, were."""
    source = "vllm:prompt_tokens_by_source_total"
    lost = 4 * 32 + 48
    for name, sign in (("external_kv_transfer", 1), ("local_compute", -1)):
        row = counted[f'{source}{{source="{name}"}}']
        assert row["difference"] == sign * lost
        assert row["reason"] == f"{lost} tokens of 5 failed loads stay counted and were not used"
    assert counted[f'{source}{{source="local_cache_hit"}}']["agrees"] is True


def test_vllms_queue_time_is_negative_after_a_load_that_failed_its_request(
    counted: dict[str, dict[str, Any]],
) -> None:
    """And its prefill time positive by as much: the time since the machine started, once a request."""
    queue = counted["vllm:request_queue_time_seconds_sum"]
    prefill = counted["vllm:request_prefill_time_seconds_sum"]
    assert queue["reported"] < 0 < prefill["reported"]
    assert queue["measured"] > 0
    assert prefill["measured"] > 0
    for row in (queue, prefill):
        said = f"{REFUSED} requests ended with an error before any step after {REFUSED} failed loads"
        assert said in row["reason"]


def test_all_else_that_vllm_counts_is_right(counted: dict[str, dict[str, Any]]) -> None:
    """The client of one request left, which is said."""
    for name in ("vllm:num_preemptions_total", "vllm:prefix_cache_hits_total"):
        assert (counted[name]["agrees"], counted[name]["difference"]) == (True, 0), counted[name]
    ended = counted["vllm:request_success_total"]
    assert ended["reason"] == "1 aborted request, which vLLM does not count"
