"""The plugin inside vLLM as a library: what it writes, and that nothing it does or fails to do is felt.

Minutes: `pytest -m engine`. Four starts of the engine: without kvtrace, with it (and a second distribution
that names the same plugin), with every hook failing, and in one process with a version nobody knows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from tests.engines.environment import engine_python, skip_when_missing
from tests.engines.plugin.offline import Played, play

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.engine
LOCAL_PATH = re.compile(r"(^|[\s\"'=])(/|~/)")


@pytest.fixture(scope="session")
def python() -> Path:
    skip_when_missing()
    return engine_python()


@pytest.fixture(scope="session")
def bare(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(tmp_path_factory.mktemp("bare"), python, recorded=False)


@pytest.fixture(scope="session")
def played(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(tmp_path_factory.mktemp("played"), python)


@pytest.fixture(scope="session")
def faulty(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return play(tmp_path_factory.mktemp("faulty"), python, KVTRACE_FAULT="hooks")


@pytest.fixture(scope="session")
def unknown(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("unknown")
    return play(folder, python, "0.99.1", VLLM_ENABLE_V1_MULTIPROCESSING="0")


def test_the_tokens_are_the_same_with_and_without(
    bare: Played, played: Played, faulty: Played, unknown: Played
) -> None:
    assert bare.tokens == played.tokens == faulty.tokens == unknown.tokens


def test_nothing_is_lost_and_a_plugin_named_twice_counts_once(played: Played) -> None:
    assert played.rows("SELECT * FROM loss WHERE cause <> 'unclean_end'") == []
    rows = played.rows("SELECT count(*) n, count(DISTINCT request_id) d FROM span WHERE op = 'request'")
    assert rows == [{"n": 22, "d": 11}]  # the front end and the scheduler, each once


def test_the_three_processes_of_the_engine_say_who_they_are(played: Played) -> None:
    rows = played.rows("SELECT role, engine, product, version FROM process ORDER BY role")
    assert [row["role"] for row in rows] == ["api", "scheduler", "worker"]
    assert len({(row["engine"], row["product"], row["version"]) for row in rows}) == 1
    assert rows[0]["engine"].startswith("vllm-")


def test_every_request_has_its_times_and_tokens(played: Played) -> None:
    rows = played.rows("FROM request WHERE status = 'ok'")
    assert len(rows) == 10
    for row in rows:
        assert row["observer"] == "api"
        assert row["start_ns"] < row["first_token_ns"] < row["end_ns"]
        assert (row["prompt_tokens"], row["output_tokens"]) == (300, 8)
        assert dict(row["attributes"])["finish_reason"] == "length"


def test_cached_tokens_are_those_of_repeats_and_of_a_second_answer(played: Played) -> None:
    rows = played.rows("SELECT reported_cached_tokens c, gpu_hit_tokens g FROM request WHERE status = 'ok'")
    assert sorted((row["c"], row["g"]) for row in rows) == [(0, 0)] * 7 + [(256, 256)] * 3


def test_two_answers_to_one_prompt_have_one_parent(played: Played) -> None:
    rows = played.rows("SELECT parent_request_id p, request_id FROM request WHERE p IS NOT NULL")
    assert {row["request_id"] for row in rows} == {f"{index}_{rows[0]['p']}" for index in range(2)}


def test_an_aborted_request_ends_aborted(played: Played) -> None:
    (row,) = played.rows("FROM request JOIN alias USING (request_id) WHERE alias = 'to-abort'")
    assert (row["status"], row["reason"]) == ("aborted", "aborted")
    assert row["first_token_ns"] is not None


def test_the_callers_name_of_a_request_is_an_alias(played: Played) -> None:
    rows = played.rows("FROM alias WHERE kind = 'external'")
    assert {row["alias"] for row in rows} == {*map(str, range(9)), "to-abort"}
    assert all(row["alias"] in row["request_id"] for row in rows)


def test_kv_events_are_rows_without_tokens(played: Played) -> None:
    rows = played.rows("FROM block")
    assert {(row["event"], row["tier"], row["component"]) for row in rows} == {("stored", "gpu", "vllm.gpu")}
    assert {row["key_space"] for row in rows} == {"vllm:sha256:tiny-llama"}
    assert {row["tokens"] for row in rows} == {128}
    assert all(re.fullmatch("[0-9a-f]{16}", row["key"]) for row in rows)
    assert len(rows) == 16  # two full blocks of each of eight prompts
    assert all(row["token_digest"] is None for row in rows)


def test_what_the_keys_vouch_for_is_said_of_both_sides(played: Played) -> None:
    rows = played.rows("FROM identity")
    assert {row["side"] for row in rows} == {"writer", "reader"}
    found = {row["field"]: (row["value"], row["enforced_by"]) for row in rows}
    assert found["block_size"] == ("128", "key")
    assert found["hash_seed"] == ("vllm-none-hash", "key")
    assert found["dtype"] == ("bfloat16", "nobody")


def test_the_pool_is_known_and_no_place_of_the_machine_is(played: Played) -> None:
    (row,) = played.rows("SELECT attributes FROM process WHERE role = 'scheduler'")
    attributes = dict(row["attributes"])
    assert '"num_gpu_blocks": "40"' in attributes["config"]
    assert not [text for text in attributes.values() if LOCAL_PATH.search(text)]


def test_the_workers_connector_knows_the_requests_of_its_step(bare: Played, played: Played) -> None:
    assert bare.carried == [None]
    (carried,) = played.carried
    assert carried is not None
    assert [name.rsplit("-", 1)[0] for name in carried] == ["to-abort"]


def test_when_every_hook_fails_the_engine_serves_and_the_losses_are_counted(faulty: Played) -> None:
    assert faulty.rows("FROM request") == []
    rows = faulty.rows(
        "SELECT detail, sum(count)::BIGINT n FROM loss WHERE cause = 'hook_failure' GROUP BY ALL"
    )
    counts = {row["detail"]: row["n"] for row in rows}
    assert counts["vllm.api._added: RuntimeError"] == 11
    assert counts["vllm.kv_events._made: RuntimeError"] == 1
    assert any(name.startswith("vllm.scheduler.") for name in counts)


def test_an_unknown_version_is_warned_of_once_and_recorded_all_the_same(unknown: Played) -> None:
    (line,) = [line for line in unknown.log.splitlines() if "kvtrace knows vLLM" in line]
    assert "found 0.99.1: not wrapped: OutputProcessor.propagate_error (" in line
    assert len(unknown.rows("FROM request")) == 11


def test_one_process_that_is_all_of_the_engine_is_its_front_end(unknown: Played) -> None:
    (row,) = unknown.rows("FROM process")
    assert row["role"] == "api"
    assert dict(row["attributes"])["roles"] == "api,scheduler,worker"
