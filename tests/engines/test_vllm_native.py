"""What `kvtrace run` recorded of real engines, against the client, vLLM's counters and the clock.

Minutes: `pytest -m engine`. See test_vllm_lmcache.py for the environment.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import kvtrace
import polars as pl
import pytest
from kvtrace.run import Run, open_run
from tests.engines import native
from tests.engines.prompts import TOKENS as PROMPT_TOKENS
from tests.golden.truths import LOST, SECOND, TOKENS
from tests.golden.truths.numbers import TOKENS as NUMBERS
from tests.golden.truths.numbers import numbers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.engines.conftest import Recordings
    from tests.engines.native import Played

pytestmark = pytest.mark.engine
VLLM_TOKENS = tuple(name for name in NUMBERS if name.startswith("vllm:"))


@dataclass(frozen=True)
class Killed:
    """The run of the killed server, and what the client waited for each of the six requests after it."""

    run: Run
    names: list[str]
    waited_s: list[float]
    request_ids: list[str]


@pytest.fixture(scope="session")
def killed(recordings: Recordings) -> Killed:
    """The recorded session of the samples, as `kvtrace run` itself left it."""
    run = recordings.native("server_killed")
    responses = pl.DataFrame(list(recordings.imported("server_killed").responses().values())).tail(6)
    ids = {row["alias"]: row["request_id"] for row in _rows(run, "FROM alias WHERE kind = 'client'")}
    names = responses["request_id"].to_list()
    waited = ((responses["first_token_ns"] - responses["started_ns"]) / SECOND).to_list()
    return Killed(run, names, waited, [ids[name] for name in names])


def _rows(run: Run, query: str) -> list[dict[str, Any]]:
    return run.connection().sql(query).pl().to_dicts()


def test_the_first_request_after_the_kill_has_one_lookup_that_timed_out(killed: Killed) -> None:
    rows = _rows(killed.run, f"FROM lookup WHERE request_id = '{killed.request_ids[0]}'")
    (row,) = rows
    assert row["outcome"] == "timeout"
    assert (row["end_ns"] - row["start_ns"]) / SECOND == pytest.approx(5.0, abs=0.3)
    assert row["found_tokens"] is None


def test_thousands_of_asks_are_one_lookup(killed: Killed) -> None:
    (row,) = _rows(killed.run, f"FROM lookup WHERE request_id = '{killed.request_ids[0]}'")
    assert int(dict(row["attributes"])["calls"]) > 100


def test_the_fourth_request_after_the_kill_is_queued_for_want_of_blocks(killed: Killed) -> None:
    """Until the blocks of the three before it are given up.

    How long that is depends on when the workers' heartbeat notices: 3 to 14 s were seen.
    """
    fourth = killed.request_ids[3]
    rows = _rows(
        killed.run, f"FROM queue WHERE request_id = '{fourth}' AND reason = 'capacity' ORDER BY start_ns"
    )
    assert rows
    assert all(row["blocks"] > row["free_blocks"] for row in rows)
    (request,) = _rows(killed.run, f"FROM request WHERE request_id = '{fourth}'")
    ids = ", ".join(f"'{name}'" for name in killed.request_ids[:3])
    held = [row["end_ns"] for row in _rows(killed.run, f"FROM hold WHERE request_id IN ({ids})")]
    assert (
        request["start_ns"]
        <= rows[0]["start_ns"]
        < min(held)
        <= rows[-1]["end_ns"]
        < request["first_token_ns"]
    )
    queued = sum(row["end_ns"] - row["start_ns"] for row in rows) / SECOND
    assert queued < killed.waited_s[3]


def test_its_blockers_are_the_three_finished_requests_before_it(killed: Killed) -> None:
    fourth = killed.request_ids[3]
    blockers = kvtrace.analyze(killed.run, "blockers", window="e2e").filter(
        (pl.col("request_id") == fourth) & (pl.col("class") == "queue_capacity") & (pl.col("exposed_ns") > 0)
    )
    assert set(blockers["blocker_request_id"]) == set(killed.request_ids[:3])
    partition = kvtrace.analyze(killed.run, "exposure", window="e2e").filter(
        (pl.col("request_id") == fourth) & (pl.col("class") == "queue_capacity")
    )
    assert blockers["exposed_ns"].sum() == pytest.approx(partition["exposed_ns"].sum(), rel=0.01)
    assert set(partition["bound"]) == {"exact"}


def test_holds_of_stores_that_never_ended_are_closed_when_the_connector_gives_up(killed: Killed) -> None:
    ids = ", ".join(f"'{name}'" for name in killed.request_ids[:3])
    rows = _rows(killed.run, f"FROM hold WHERE request_id IN ({ids})")
    assert len(rows) == 3
    (fourth,) = _rows(killed.run, f"FROM request WHERE request_id = '{killed.request_ids[3]}'")
    assert all(
        row["start_ns"] < fourth["start_ns"] < row["end_ns"] < fourth["first_token_ns"] for row in rows
    )


@pytest.mark.parametrize(("place", "word"), [(0, "timed out"), (3, "blocks")])
def test_explain_says_why(killed: Killed, place: int, word: str) -> None:
    command = [sys.executable, "-m", "kvtrace", "explain", str(killed.run.path), killed.names[place]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert word in done.stdout
    if place == 3:
        assert all(name in done.stdout for name in killed.names[:3])


def test_the_verdicts_after_the_kill_are_a_timeout_and_then_degraded(killed: Killed) -> None:
    verdicts = kvtrace.analyze(killed.run, "fallbacks")
    found = dict(zip(verdicts["request_id"], verdicts["verdict"], strict=True))
    assert found[killed.request_ids[0]] == "recompute_after_timeout"
    assert {found[name] for name in killed.request_ids[1:3]} == {"recompute_degraded"}


def test_tokens_from_the_gpu_loaded_and_computed_are_the_prompt(offload: Played, killed: Killed) -> None:
    for run in (open_run(offload.run), killed.run):
        rows = _rows(run, TOKENS)
        assert len(rows) >= 10
        for row in rows:
            found = row["gpu_hit_tokens"] + row["loaded_tokens"] + row["computed_tokens"]
            assert found == row["prompt_tokens"], row


def test_sums_equal_vllms_counters_and_the_clients_cached_tokens(offload: Played) -> None:
    rows = _rows(open_run(offload.run), TOKENS)
    counters = offload.counters
    source = "vllm:prompt_tokens_by_source_total"
    assert sum(row["gpu_hit_tokens"] for row in rows) == counters[f"{source}:local_cache_hit"]
    assert sum(row["loaded_tokens"] for row in rows) == counters[f"{source}:external_kv_transfer"]
    assert sum(row["computed_tokens"] for row in rows) == counters[f"{source}:local_compute"]
    assert counters[f"{source}:external_kv_transfer"] > 0
    by_client = {row["client_id"]: row for row in rows}
    for response in offload.client.responses:
        row = by_client[response.request_id]
        usage: Any = response.usage
        cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
        assert row["gpu_hit_tokens"] + row["loaded_tokens"] == cached
        assert row["reported_cached_tokens"] == cached
        assert row["prompt_tokens"] == usage["prompt_tokens"]


def test_vllms_own_numbers_of_tokens_and_bytes_are_what_was_measured(offload: Played) -> None:
    found = numbers(native.with_pages(offload))
    for name in (*VLLM_TOKENS, "vllm:kv_offload_load_bytes_total"):
        assert (found[name]["agrees"], found[name]["difference"]) == (True, 0), found[name]


def test_vllms_queue_and_load_times_are_not_and_the_loads_say_why(offload: Played) -> None:
    """Each load lasts at least its delay: in the queue time whole, in the load time without its waits."""
    run = native.with_pages(offload)
    loads = len(_rows(run, "FROM transfer WHERE op = 'load'"))
    found = numbers(run)
    queue = found["vllm:request_queue_time_seconds_sum"]
    assert queue["agrees"] is False
    assert queue["difference"] >= loads * native.DELAY_S * SECOND
    assert f"in it are loads of {loads} requests" in queue["reason"]
    assert "unexplained" not in queue["reason"]
    took = found["vllm:kv_offload_load_time_total"]
    assert native.DELAY_S * SECOND * loads <= took["reported"] < took["measured"]
    assert took["reason"].endswith("between order and copy, and from the copy to its use, are not in it")


def test_a_load_from_the_host_is_exposed_for_at_least_its_delay(offload: Played) -> None:
    """VLLM counts it as queue time."""
    run = open_run(offload.run)
    loads = _rows(run, "FROM transfer WHERE op = 'load'")
    assert loads
    partition = kvtrace.analyze(run, "exposure", window="ttft").filter(
        pl.col("class").is_in(["load", "load_wait"])
    )
    exposed = dict(partition.group_by("request_id").agg(pl.col("exposed_ns").sum()).iter_rows())
    for load in loads:
        assert exposed[load["request_id"]] >= native.DELAY_S * SECOND
    assert set(partition["bound"]) == {"exact"}


def test_a_worker_reports_each_load_after_its_order_and_before_the_scheduler_knows(offload: Played) -> None:
    run = open_run(offload.run)
    rows = _rows(
        run,
        """
        SELECT l.transfer_id, l.submit_ns, r.start_ns, r.end_ns, l.end_ns AS known_ns, r.outcome, r.op
        FROM span l LEFT JOIN span r
            ON r.transfer_id = l.transfer_id AND r.observer = 'worker' AND r.name = 'kv_transfer_report'
        WHERE l.op = 'load' AND l.observer = 'scheduler'
        """,
    )
    assert rows
    for row in rows:
        assert row["submit_ns"] <= row["start_ns"] < row["end_ns"] <= row["known_ns"], row
        assert row["end_ns"] - row["start_ns"] >= native.DELAY_S * SECOND
        assert (row["outcome"], row["op"]) == ("ok", None)


def test_tokens_are_the_same_with_and_without_kvtrace(offload: Played, bare: Played) -> None:
    assert [each.answer_digest for each in offload.client.responses] == [
        each.answer_digest for each in bare.client.responses
    ]
    assert all(each.status == 200 for each in offload.client.responses)


def _answers(responses: Iterable[dict[str, Any]], known: dict[int, str]) -> dict[int, set[str]]:
    """Digests of the answers to the prompts that are known, by prompt."""
    found: dict[int, set[str]] = {}
    for each in responses:
        if each["prompt"] in known and each["prompt_tokens"] == PROMPT_TOKENS:
            found.setdefault(each["prompt"], set()).add(each["answer_digest"])
    return found


@pytest.fixture(scope="session")
def unwatched(bare: Played) -> dict[int, str]:
    """Prompt -> digest of its answer without kvtrace: the same computed or loaded, alone or in a batch."""
    known = {each.prompt: each.answer_digest for each in bare.client.responses}
    assert _answers(map(asdict, bare.client.responses), known) == {each: {known[each]} for each in known}
    return known


@pytest.mark.parametrize("name", ["example", "multi", "slow"])
def test_with_kvtrace_a_prompt_has_the_same_answer_through_every_connector(
    request: pytest.FixtureRequest, unwatched: dict[int, str], name: str
) -> None:
    """The model is deterministic and no connector changes what it says: one without kvtrace will do."""
    played: Played = request.getfixturevalue(name)
    answers = _answers(map(asdict, played.client.responses), unwatched)
    assert answers == {each: {unwatched[each]} for each in range(5)}


@pytest.mark.parametrize("name", ["l1_reuse", "server_killed"])
def test_with_kvtrace_a_prompt_has_the_same_answer_through_lmcache(
    recordings: Recordings, unwatched: dict[int, str], name: str
) -> None:
    """Also while its server dies."""
    answers = _answers(recordings.imported(name).responses().values(), unwatched)
    assert len(answers) >= 4
    assert answers == {each: {unwatched[each]} for each in answers}


def test_nothing_was_lost(offload: Played) -> None:
    assert _rows(open_run(offload.run), LOST) == []


def test_a_run_whose_engine_died_is_readable_and_its_last_request_open(lazy: Played) -> None:
    assert lazy.died
    run = open_run(lazy.run)
    rows = _rows(run, "FROM span WHERE op = 'request' AND observer = 'scheduler' ORDER BY start_ns")
    assert rows[-1]["end_ns"] is None
    assert rows[-1]["status"] == "open"
    assert all(row["status"] == "ok" for row in rows[:-1])
    failed = _rows(run, "FROM step ORDER BY start_ns DESC LIMIT 1")
    assert failed[0]["outcome"] == "failed"
