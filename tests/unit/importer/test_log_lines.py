"""Logs beside other sources, recorded while a cache server was killed: whose they are, what counts once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import kvtrace
import pytest
from kvtrace.importer import import_files
from kvtrace.run import Run, open_run
from tests.samples import SAMPLES

if TYPE_CHECKING:
    from pathlib import Path

RECORDED = SAMPLES.parent / "tests" / "unit" / "sources" / "recorded"
KILLED = SAMPLES / "server-killed"
LOGS = (RECORDED / "vllm-server-killed.log", RECORDED / "lmcache-server-killed.log")


def imported(out: Path, *inputs: Path) -> Run:
    import_files(inputs, out)
    return open_run(out)


def rows(run: Run, query: str) -> list[tuple[Any, ...]]:
    return run.sql(query).rows()


@pytest.fixture(scope="module")
def spans_and_logs(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What the engines exported, and their logs: nothing was recorded from inside."""
    return imported(tmp_path_factory.mktemp("logs") / "run", KILLED / "raw" / "otlp.binpb", *LOGS)


def verdicts(run: Run) -> dict[str, str | None]:
    """By the id that the caller gave."""
    found = kvtrace.analyze(run, "fallbacks").select("request_id", "verdict").rows()
    return {name.removeprefix("cmpl-")[:7]: verdict for name, verdict in found}


@pytest.fixture(scope="module")
def recorded() -> dict[str, str | None]:
    """What the same requests are found to be where everything was recorded from inside."""
    return verdicts(open_run(KILLED))


def test_with_the_logs_the_requests_after_the_kill_are_degraded_as_the_recording_says(
    spans_and_logs: Run, recorded: dict[str, str | None]
) -> None:
    said = verdicts(spans_and_logs)
    after = [f"req-{number:03}" for number in range(9, 14)]
    assert {said[name] for name in after} == {recorded[name] for name in after} == {"recompute_degraded"}


def test_the_request_whose_inquiry_timed_out_is_not_named_and_nothing_is_said_of_it(
    spans_and_logs: Run,
) -> None:
    assert verdicts(spans_and_logs)["req-008"] is None


def test_info_says_that_a_log_was_read_and_that_the_cache_was_watched(spans_and_logs: Run) -> None:
    observed = kvtrace.analyze(spans_and_logs, "coverage").filter(fact="cache_health")
    assert observed.select("observed", "rows").rows() == [(True, 2)]
    instruments = kvtrace.analyze(spans_and_logs, "inventory").filter(what="instrument")
    assert set(instruments["name"]) == {"log", "otlp"}


def test_without_the_logs_nothing_is_known_of_those_requests(tmp_path: Path) -> None:
    said = verdicts(imported(tmp_path / "run", KILLED / "raw" / "otlp.binpb"))
    assert not {"recompute_degraded"} & set(said.values())


def test_a_log_belongs_to_the_only_engine_of_its_product(spans_and_logs: Run) -> None:
    query = "SELECT DISTINCT engine FROM span WHERE map_contains(attributes, 'log_line') ORDER BY engine"
    assert rows(spans_and_logs, query) == [("lmcache-1",), ("vllm-1",)]


def test_what_the_servers_spans_tell_its_log_does_not_tell_again(spans_and_logs: Run) -> None:
    query = "SELECT op, count(*) FROM transfer GROUP BY op"
    assert sorted(rows(spans_and_logs, query)) == [("load", 4), ("store", 4)]
    asked = "SELECT name, count(*) FROM lookup WHERE outcome <> 'timeout' GROUP BY name"
    assert rows(spans_and_logs, asked) == [("mp.lookup_prefetch", 8)]
    duplicates = "SELECT op, count FROM loss WHERE detail = 'lines of a log, told by others'"
    assert rows(spans_and_logs, duplicates) == [("lookup", 4)]


def test_beside_a_recording_a_log_is_the_engines_whose_process_has_its_pid(
    tmp_path: Path, recorded: dict[str, str | None]
) -> None:
    run = imported(tmp_path / "run", KILLED, *LOGS)
    engines = rows(run, "SELECT DISTINCT engine FROM process WHERE process LIKE '%/6548'")
    assert len(engines) == 1
    health = "SELECT DISTINCT engine FROM span WHERE name = 'cache health'"
    assert rows(run, health) == engines
    assert verdicts(run) == recorded


def test_alone_a_log_is_an_engine_of_its_own_and_what_moved_is_nobodys(tmp_path: Path) -> None:
    run = imported(tmp_path / "run", *LOGS)
    query = (
        "SELECT name, engine, sum(tokens)::INT FROM span WHERE name IN ('Stored', 'Retrieved') GROUP BY ALL"
    )
    cache = "lmcache-server-killed.log"
    assert sorted(rows(run, query)) == [("Retrieved", cache, 3072), ("Stored", cache, 5120)]
    assert rows(run, "SELECT count(*) FROM transfer") == [(0,)]
    funnel = kvtrace.analyze(run, "hit_funnel").select("found_tokens", "moved_tokens").unique().rows()
    assert funnel == [(1280, None)]  # what was moved for a request no line says, and null is not 0
    health = "SELECT reason, engine FROM health ORDER BY start_ns"
    assert rows(run, health) == [
        ("healthy", "vllm-server-killed.log"), ("degraded", "vllm-server-killed.log"),
    ]  # fmt: skip


def test_a_run_of_logs_that_is_imported_with_a_recording_counts_once_too(
    tmp_path: Path, recorded: dict[str, str | None]
) -> None:
    imported(tmp_path / "logs", *LOGS)
    run = imported(tmp_path / "run", tmp_path / "logs", KILLED)
    assert verdicts(run) == recorded
    query = (
        "SELECT count(*) FROM span WHERE op IN ('lookup', 'health') AND map_contains(attributes, 'log_line')"
    )
    assert rows(run, query) == [(0,)]
    losses = (
        "SELECT cause, op, sum(count)::INT FROM loss WHERE cause <> 'duplicate' GROUP BY ALL ORDER BY ALL"
    )
    assert rows(run, losses) == rows(open_run(KILLED), losses)


def test_a_drop_that_a_log_tells_is_stale_and_says_nothing_of_requests_that_it_does_not_name(
    tmp_path: Path,
) -> None:
    run = imported(tmp_path / "run", RECORDED / "vllm-lazy-died.log")
    found = kvtrace.analyze(run, "store_lag").select("request_id", "skip_reason", "never_stored")
    found = found.sort("request_id")
    assert found.rows() == [
        ("cmpl-req-000-0-964c6dfb", "stale", None),
        ("cmpl-req-002-0-91362510", "stale", None),
        ("cmpl-req-006-0", None, None),
    ]
    assert verdicts(run) == {"req-006": "failed"}


def test_a_transfer_that_a_log_tells_is_over_and_proves_nothing_of_those_that_are_not(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    moved = "[req_id=r] Retrieved 256 out of 256 required tokens (from 300 total tokens). size: 0.0002 gb, "
    moved += "cost 1.0000 ms, throughput: 1 GB/s;"
    log.write_text(f"[2026-11-30 04:00:00,000] LMCache INFO: {moved} (cache_engine.py:958:lmcache.v1)\n")
    run = imported(tmp_path / "run", log)
    assert rows(run, "SELECT request_id, tokens, outcome FROM transfer") == [("r", 256, "ok")]
    checks = kvtrace.analyze(run, "lock_contract").filter(invariant="completes_within_bound")
    assert checks["status"].to_list() == ["unobserved"]


ASKED = "Reqid: {}, Total tokens 1500, Inference Engine computed tokens: 128, LMCache hit tokens: {}"
MOVED = "size: 0.0022 gb, cost 1.9000 ms, throughput: 1.1 GB/s;"
INSIDE = (
    ("lmcache", "00,000", "begins"),
    ("vllm", "01", "Received request c-1: params: SamplingParams(), lora_request: None."),
    ("lmcache", "01,100", ASKED.format("c-1-aaaaaaaa", "1280, need to load: 1152")),
    (
        "lmcache",
        "01,200",
        f"[req_id=c-1-aaaaaaaa] Retrieved 1152 out of 1152 required tokens (of 1500). {MOVED}",
    ),
    ("vllm", "03", "Generated response c-1: output: 'x', finish_reason: stop"),
    ("vllm", "03", "Received request c-3: params: SamplingParams(), lora_request: None."),
    ("vllm", "04", "Received request c-2: params: SamplingParams(), lora_request: None."),
    ("lmcache", "04,100", ASKED.format("c-2-bbbbbbbb", "0, need to load: 0")),
    ("lmcache", "04,200", f"[req_id=c-2-bbbbbbbb] Stored 1280 out of total 1500 tokens. {MOVED}"),
    ("lmcache", "05,100", ASKED.format("c-3-cccccccc", "1280, need to load: 1152")),
    (
        "lmcache",
        "05,200",
        f"[req_id=c-3-cccccccc] Retrieved 1024 out of 1152 required tokens (of 1500). {MOVED}",
    ),
    ("vllm", "06", "Generated response c-3: output: 'x', finish_reason: stop"),
    ("vllm", "06", "Generated response c-2: output: 'x', finish_reason: stop"),
)
"""As their sources write it: vLLM that logs its requests, with an LMCache inside."""


def test_a_log_of_an_lmcache_inside_the_engine_answers_by_request(tmp_path: Path) -> None:
    form = {
        "vllm": "(APIServer pid=1) INFO 11-30 04:00:{} [a.py:1] {}\n",
        "lmcache": "[2026-11-30 04:00:{}] LMCache INFO: {} (a.py:1:lmcache.a)\n",
    }
    (tmp_path / "vllm.log").write_text("".join(form[who].format(when, said) for who, when, said in INSIDE))
    run = imported(tmp_path / "run", tmp_path / "vllm.log")
    found = kvtrace.analyze(run, "fallbacks").select("request_id", "verdict", "expected_tokens")
    assert sorted(found.rows()) == [
        ("c-1-aaaaaaaa", "loaded", 1280), ("c-2-bbbbbbbb", "miss", 0), ("c-3-cccccccc", "partial", 1280),
    ]  # fmt: skip
    waited = kvtrace.analyze(run, "ledger").select("lookup_wait_ns").to_series().to_list()
    assert waited == [None] * 3  # an answer's line does not say when the question was asked
    stored = kvtrace.analyze(run, "store_lag").select("request_id", "stored_tokens", "never_stored")
    assert ("c-2-bbbbbbbb", 1280, False) in stored.rows()
