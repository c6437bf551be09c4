"""Too few blocks: three answers grow, the pool is full, and vLLM takes the blocks of one of them.

    attempt 1   lookup   steps ... [preempted                          )
    its store                  [== to the host ==)  the step stands still until it has ended
    attempt 2                                       lookup [= load =)    steps from what came back

Minutes: `pytest -m engine`. See test_vllm_lmcache.py for the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kvtrace
import polars as pl
import pytest
from kvtrace.run import Run, open_run
from tests.engines import native
from tests.golden.truths.numbers import numbers

if TYPE_CHECKING:
    from tests.engines.native import Played

pytestmark = pytest.mark.engine
CLOCKS_NS = 1_000_000
"""Copies are timed by the wall clock, rows by the monotonic one and an anchor: so much may lie between."""


@pytest.fixture
def run(slow: Played) -> Run:
    return open_run(slow.run)


@pytest.fixture
def preempted(run: Run) -> list[str]:
    found = _rows(run, "SELECT request_id FROM request WHERE attempt > 1")
    assert found, "nobody was preempted: the pool had enough blocks"
    return [row["request_id"] for row in found]


def _rows(run: Run, query: str) -> list[dict[str, Any]]:
    return run.connection().sql(query).pl().to_dicts()


def _steps(run: Run, name: str) -> list[dict[str, Any]]:
    return _rows(
        run, f"SELECT * FROM member WHERE request_id = '{name}' AND op = 'step' ORDER BY member.start_ns"
    )


def test_every_preemption_that_vllm_counts_is_an_attempt(slow: Played, run: Run) -> None:
    told = _rows(
        run, "SELECT attempt, attributes['preemptions']::INT AS times FROM span "
        "WHERE op = 'request' AND observer = 'scheduler'",
    )  # fmt: skip
    assert sum(row["times"] for row in told) == slow.counters["vllm:num_preemptions_total"] > 0
    assert all(row["attempt"] == 1 + row["times"] for row in told)


def test_vllms_counter_of_preemptions_is_right_though_its_log_never_shows_one(slow: Played) -> None:
    """And what a request asks for again after it does not count: hits and queries are of first admissions."""
    found = numbers(native.with_pages(slow))
    row = found["vllm:num_preemptions_total"]
    assert (row["agrees"], row["unit"]) == (True, "times")
    assert row["reported"] == slow.counters["vllm:num_preemptions_total"] > 0
    for name in ("vllm:prefix_cache_queries_total", "vllm:external_prefix_cache_queries_total"):
        assert (found[name]["agrees"], found[name]["difference"]) == (True, 0), found[name]


def test_requests_whose_clients_left_are_not_among_those_that_vllm_counts_as_ended(slow: Played) -> None:
    row = numbers(native.with_pages(slow))["vllm:request_success_total"]
    assert row["difference"] == -2
    assert row["reason"] == "2 aborted requests, which vLLM does not count"


def test_only_those_that_grew_at_once_were_preempted_and_all_were_answered(
    slow: Played, run: Run, preempted: list[str]
) -> None:
    tokens = _rows(run, "SELECT request_id, prompt_tokens, status FROM request")
    growing = {row["request_id"] for row in tokens if row["prompt_tokens"] == native.GROWING_TOKENS}
    assert set(preempted) < growing
    assert len(growing) == 3
    assert {row["status"] for row in tokens if row["request_id"] in growing} == {"ok"}
    assert all(each.status == 200 for each in slow.client.responses)


def test_it_waits_without_a_gap_from_the_pass_that_took_its_blocks_to_its_next_step(
    run: Run, preempted: list[str]
) -> None:
    for name in preempted:
        queue = _rows(
            run, f"SELECT * FROM queue WHERE request_id = '{name}' AND attempt = 2 ORDER BY start_ns"
        )
        assert queue[0]["reason"] == "preempted"
        assert {row["reason"] for row in queue} <= {"preempted", "remote_kv", "lookup"}
        short = [row for row in queue if row["reason"] == "preempted"]
        assert short[0]["blocks"] > short[0]["free_blocks"], "it wants more than there is"
        steps = _steps(run, name)
        before = [step for step in steps if step["start_ns"] < queue[0]["start_ns"]]
        after = [step for step in steps if step["start_ns"] >= queue[0]["start_ns"]]
        assert before[-1]["end_ns"] <= queue[0]["start_ns"]
        ends = [queue[0]["start_ns"], *[row["end_ns"] for row in queue]]
        assert [row["start_ns"] for row in queue] == ends[:-1]
        assert after[0]["start_ns"] == ends[-1]


def test_each_attempt_asks_once_more_and_loads_under_its_own_number(run: Run, preempted: list[str]) -> None:
    for name in preempted:
        lookups = _rows(run, f"SELECT * FROM lookup WHERE request_id = '{name}' ORDER BY start_ns")
        (request,) = _rows(run, f"SELECT attempt FROM request WHERE request_id = '{name}'")
        assert [row["attempt"] for row in lookups] == list(range(1, request["attempt"] + 1))
        loads = _rows(run, f"SELECT * FROM span WHERE request_id = '{name}' AND op = 'load'")
        for row in loads:
            assert row["transfer_id"] == f"{name}/load/{row['attempt']}"
            assert row["outcome"] == "ok"
        assert {row["observer"] for row in loads} in (set(), {"scheduler", "worker"})


def test_tokens_of_every_attempt_add_up(slow: Played, run: Run) -> None:
    """What it had when it began again: what the GPU still had, and what was loaded; then token by token."""
    usage = {each.request_id: each.usage for each in slow.client.responses}
    names = {row["alias"]: row["request_id"] for row in _rows(run, "FROM alias WHERE kind = 'client'")}
    assert len(usage) == 8
    for client, told in usage.items():
        name = names[client]
        offers = _rows(run, f"SELECT * FROM lookup WHERE request_id = '{name}' ORDER BY attempt")
        had, attempts, put_out = -1, 0, 0
        for step in _steps(run, name):
            if step["computed_before"] != had:
                offer = dict(offers[attempts]["attributes"])
                attempts += 1
                began = int(offer["asked_from_tokens"]) + int(offer["returned_tokens"])
                assert step["computed_before"] == began, (name, attempts)
            had = step["computed_before"] + step["scheduled_tokens"]
            put_out += step["output_tokens"]
        assert attempts == len(offers)
        (request,) = _rows(run, f"SELECT * FROM request WHERE request_id = '{name}'")
        assert told is not None
        assert put_out == request["output_tokens"] == told["completion_tokens"]
        assert had == request["prompt_tokens"] + put_out - 1, "the last token is put out and not computed"


def test_the_step_that_took_its_blocks_waits_for_its_stores_and_names_it(
    slow: Played, run: Run, preempted: list[str]
) -> None:
    """Of each store that had not ended by then; usually all of them, they are copied one after the other."""
    query = "SELECT attributes['job'] AS job, request_id FROM span WHERE observer = 'worker' AND op = 'store'"
    copies = {int(row["job"]): row["request_id"] for row in _rows(run, query)}
    waits = _rows(
        run, "SELECT *, list_transform(members, lambda m: m.request_id) AS named FROM wait "
        "WHERE attributes['call'] = 'handle_preemptions'",
    )  # fmt: skip
    for name in preempted:
        query = f"SELECT min(start_ns) AS ns FROM queue WHERE request_id = '{name}' AND reason = 'preempted'"
        (taken,) = _rows(run, query)
        late = [
            own for own in slow.times if copies.get(own["job"]) == name and own["end_ns"] > taken["ns"]
        ]  # fmt: skip
        for own in late:
            about = [
                wait for wait in waits
                if name in (wait["named"] or ())
                and wait["start_ns"] < own["end_ns"] <= wait["end_ns"] + CLOCKS_NS
            ]  # fmt: skip
            assert [wait["reason"] for wait in about] == ["store"], own


def _again(run: Run, name: str, prompt: int) -> int:
    """Prompt tokens that its steps computed after its first admission."""
    had, again, is_first = None, 0, True
    for step in _steps(run, name):
        before = step["computed_before"]
        is_first = is_first and had in (None, before)
        had = before + step["scheduled_tokens"]
        again += 0 if is_first else max(0, min(had, prompt) - before)
    return again


def test_funnel_ledger_and_fallbacks_tell_the_same_of_who_was_preempted_and_who_was_not(
    run: Run, preempted: list[str]
) -> None:
    """The funnel is of the first admission; what later steps computed of the prompt was computed again."""
    funnel, ledger, fates = (
        {row["request_id"]: row for row in kvtrace.analyze(run, question).to_dicts()}
        for question in ("hit_funnel", "ledger", "fallbacks")
    )
    assert funnel.keys() == ledger.keys() >= set(preempted)
    for name, row in funnel.items():
        if row["computed_tokens"] is None:  # its client left before it had computed anything
            assert fates[name]["verdict"] == "cancelled"
            continue
        parts = ("gpu_hit_tokens", "loaded_tokens", "computed_tokens")
        assert sum(row[part] for part in parts) == row["prompt_tokens"], name
        assert ledger[name]["gpu_hit_tokens"] == row["gpu_hit_tokens"]
        assert ledger[name]["external_hit_tokens"] == row["loaded_tokens"]
        again = _again(run, name, row["prompt_tokens"])
        told = (row["recomputed_tokens"], ledger[name]["recomputed_tokens"], fates[name]["recomputed_tokens"])
        assert told == (again,) * 3, name
        assert (again > 0) == (name in preempted), name
        assert ledger[name]["verdict"] == fates[name]["verdict"]


def test_a_preempted_requests_verdict_and_the_partition_of_its_time(run: Run, preempted: list[str]) -> None:
    verdicts = kvtrace.analyze(run, "fallbacks").filter(pl.col("request_id").is_in(preempted))
    for row in verdicts.to_dicts():
        assert "recompute_after_preemption" in (row["verdict"], *row["also"].split(", "))
        assert row["recomputed_tokens"] > 0
    partition = kvtrace.analyze(run, "exposure", window="e2e")
    took = {
        row["request_id"]: row["ns"]
        for row in _rows(run, "SELECT request_id, end_ns - start_ns AS ns FROM request")
    }
    sums = dict(partition.group_by("request_id").agg(pl.col("exposed_ns").sum()).iter_rows())
    assert set(partition["bound"]) == {"exact"}
    assert sums == took
