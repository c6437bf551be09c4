"""Models whose layers keep different things: what a load must restore of each, and what it did restore.

               tokens of a prompt     0 ......... 1109 ....... 1408 first computed
    full       11 blocks              |============================|
    window     of 300 tokens: 3 blocks           |=================|
    recurrent  the last block (of 256): a state                 |==|1280

Minutes: `pytest -m engine`. See test_vllm_lmcache.py for the environment.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import kvtrace
import pytest
from kvtrace.geometry.model import model_of
from kvtrace.run import Run, open_run
from tests.engines import layered, native

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.native import Played

pytestmark = pytest.mark.engine
STATES = {"full": "kv", "window": "window", "gated_delta": "recurrent"}
"""Kind of a layer, as kvtrace.geometry has it -> the state that it keeps."""
CHECKS = ("retained_state_covered", "restored_completely")


@pytest.fixture(scope="module")
def windowed(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """All loads good."""
    out = tmp_path_factory.mktemp("windowed") / "run"
    return native.play(native.WINDOWED, native.layered, python=python, out=out)


@pytest.fixture(scope="module")
def recurrent(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The load of the last request lacks a group of layers."""
    out = tmp_path_factory.mktemp("recurrent") / "run"
    return native.play(native.RECURRENT, native.layered_with_a_fault, python=python, out=out)


def _rows(run: Run, query: str) -> list[dict[str, Any]]:
    return run.connection().sql(query).pl().to_dicts()


def _restored(run: Run) -> list[dict[str, Any]]:
    return _rows(
        run, "SELECT transfer_id, state_kind, tokens, bytes, blocks, outcome, attributes['kind'] AS kind, "
        "attributes['layers']::INT AS layers, attributes['from_token']::INT AS start "
        "FROM span WHERE name = 'restored_state' AND op IS NULL",
    )  # fmt: skip


def _checked(run: Run) -> list[dict[str, Any]]:
    return kvtrace.analyze(run, "lock_contract", only=CHECKS).to_dicts()


def test_every_load_of_a_model_with_windows_restores_what_each_group_needs(windowed: Played) -> None:
    run = open_run(windowed.run)
    assert {each.status for each in windowed.client.responses} == {200}
    (loads,) = _rows(
        run, "SELECT count(*) AS number, sum(tokens)::INT AS tokens FROM transfer WHERE op = 'load'"
    )
    assert loads["number"] >= 5
    covered, complete = sorted(_checked(run), key=lambda row: row["invariant"], reverse=True)
    number = loads["number"]
    assert (covered["status"], covered["evidence"]) == ("pass", "shim")
    assert covered["detail"] == f"{number} loads covered (kv {number}, window {2 * number})"
    assert (complete["status"], complete["key"]) == ("pass", "vllm.offloading")
    tokens = f"{loads['tokens']:,}"
    assert complete["detail"] == f"vllm.offloading: {number} loads restored completely, {tokens} tokens"
    done = subprocess.run(
        [sys.executable, "-m", "kvtrace", "check", str(windowed.run), "--format", "json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    found = {row["invariant"]: row["status"] for row in json.loads(done.stdout)}
    assert found["retained_state_covered"] == found["restored_completely"] == "pass"


def test_of_a_window_the_last_blocks_are_restored_and_of_full_attention_all(windowed: Played) -> None:
    run = open_run(windowed.run)
    (request,) = _rows(
        run, "SELECT request_id FROM request r WHERE prompt_tokens = 1500 AND selected_tokens = 1408 "
        "ORDER BY start_ns LIMIT 1",
    )  # fmt: skip
    name = f"{request['request_id']}/load/1"
    rows = [row for row in _restored(run) if row["transfer_id"] == name]
    found = sorted((row["kind"], row["start"], row["tokens"], row["blocks"]) for row in rows)
    assert found == [("full", 0, 1408, 11), ("window", 1024, 384, 3), ("window", 1024, 384, 3)]


def test_what_the_gpu_has_of_a_prefix_is_needed_and_not_restored(windowed: Played) -> None:
    run = open_run(windowed.run)
    (row,) = _rows(
        run, "SELECT transfer_id, attributes['on_gpu'] AS on_gpu, attributes['first_computed']::INT AS first "
        "FROM span WHERE name = 'retained_state' AND state_kind = 'kv' AND attributes['on_gpu'] <> ''",
    )  # fmt: skip
    assert (row["on_gpu"], row["first"]) == ("0-1408", 2944)
    (full,) = [
        each for each in _restored(run)
        if each["transfer_id"] == row["transfer_id"] and each["kind"] == "full"
    ]  # fmt: skip
    assert (full["start"], full["tokens"]) == (1408, 1536)


@pytest.mark.parametrize("layers", ["windowed", "recurrent"])
def test_bytes_by_group_are_those_of_the_models_configuration(
    layers: str, request: pytest.FixtureRequest
) -> None:
    """A token of each layer, a state of each recurrent one, and nothing for what pads a page."""
    played: Played = request.getfixturevalue(layers)
    sizes: dict[str, tuple[int, int]] = {}
    for stack in model_of(layered.configuration(layers)).stack:
        for layer in stack:
            sizes[STATES[layer.kind]] = (layer.token_bytes(1), layer.state_bytes(1))
    rows = _restored(open_run(played.run))
    assert {row["state_kind"] for row in rows} == set(sizes)
    for row in rows:
        token, state = sizes[row["state_kind"]]
        assert row["bytes"] == row["layers"] * (row["tokens"] * token + row["blocks"] * state)


def test_bytes_of_the_groups_of_a_load_are_those_that_were_moved(windowed: Played) -> None:
    """As the worker counted them in its copies: pages of this model need no padding."""
    run = open_run(windowed.run)
    loads = _rows(run, "SELECT transfer_id, bytes FROM transfer WHERE op = 'load'")
    moved = {row["transfer_id"]: row["bytes"] for row in loads}
    groups: dict[str, int] = {}
    for row in _restored(run):
        groups[row["transfer_id"]] = groups.get(row["transfer_id"], 0) + row["bytes"]
    assert groups == moved
    copies = sorted(own["bytes"] for own in windowed.times if not own["stores"])
    assert sorted(moved.values()) == copies


def test_a_recurrent_state_that_a_connector_forgot_is_found_and_no_other(recurrent: Played) -> None:
    """The engine counts the tokens of that load as those of any other."""
    run = open_run(recurrent.run)
    last = recurrent.client.responses[-1]
    assert last.status == 200
    assert (last.usage or {})["prompt_tokens_details"] == {"cached_tokens": 1280}
    (alias,) = _rows(
        run, f"SELECT request_id FROM alias WHERE kind = 'client' AND alias = '{last.request_id}'"
    )
    complete, covered = sorted(_checked(run), key=lambda row: row["invariant"])
    assert {complete["request_id"], covered["request_id"]} == {alias["request_id"]}
    assert {complete["status"], covered["status"]} == {"violated"}
    assert {complete["severity"], covered["severity"]} == {"error"}
    assert covered["detail"] == "group 0 (recurrent) has no state of exactly token 1,280 on rank 0"
    assert complete["detail"].startswith("vllm.offloading: a load of 1,280 tokens was reported as good")
    loads = _rows(run, "SELECT DISTINCT transfer_id FROM span WHERE name = 'retained_state'")
    assert len(loads) >= 5
