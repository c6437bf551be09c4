"""What workers of real engines were seen to copy and to wait for, against the times of the copies themselves.

Minutes: `pytest -m engine`. See test_vllm_lmcache.py for the environment.
"""

from __future__ import annotations

import subprocess
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import kvtrace
import polars as pl
import pytest
from kvtrace.instrument.vllm.verified import CONNECTORS
from kvtrace.run import Run, open_run
from tests.engines import model, native
from tests.golden.truths import LOST

if TYPE_CHECKING:
    from pathlib import Path

    from tests.engines.native import Played

pytestmark = pytest.mark.engine
MS = 1_000_000

COPIES = """
    SELECT span.attributes['job']::BIGINT AS job, span.*, t.usable_ns AS usable, t.submit_ns AS decided_ns
    FROM span LEFT JOIN transfer t USING (transfer_id)
    WHERE span.observer = 'worker' AND span.op IN ('load', 'store') ORDER BY span.start_ns
"""
"""Copies as the worker saw them, with the scheduler's times where it has some."""
STEPS_OF_WAITS = """
    SELECT w.span_id AS wait_id, w.start_ns, w.end_ns, w.component, w.attributes['children'] AS children,
        w.attributes['call'] AS call,
        list_transform(w.members, lambda m: m.request_id) AS named,
        list_transform(s.members, lambda m: m.request_id) AS payers
    FROM wait w JOIN step s ON s.start_ns <= w.start_ns AND w.end_ns <= s.end_ns
    WHERE w.reason = 'load' AND w.observer = 'worker'
"""


FIRST_STEPS = """
    SELECT request_id, any_value(gpu_hit_tokens) AS gpu_hit_tokens, min(member.start_ns) AS start_ns,
        arg_min(member.end_ns, member.start_ns) AS end_ns,
        arg_min(computed_before, member.start_ns) AS computed_before
    FROM member JOIN request USING (request_id) WHERE member.op = 'step' GROUP BY request_id
"""
"""The first step that served each request, and what the request had before it."""


@pytest.fixture(scope="session")
def failed(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    out = tmp_path_factory.mktemp("failed") / "run"
    return native.play(native.FAILS, native.first_load, python=python, out=out, dies=True)


def _rows(run: Run, query: str) -> list[dict[str, Any]]:
    return run.connection().sql(query).pl().to_dicts()


def _waited(run: Run, class_: str) -> dict[str, int]:
    """Request -> how long it was exposed to a class of waits, ns."""
    partition = kvtrace.analyze(run, "exposure", window="e2e")
    assert set(partition["bound"]) == {"exact"}
    found = partition.filter(pl.col("class") == class_)
    return dict(zip(found["request_id"], found["exposed_ns"], strict=True))


def test_every_copy_has_the_times_that_its_worker_measured(offload: Played) -> None:
    copies = {row["job"]: row for row in _rows(open_run(offload.run), COPIES)}
    assert len(offload.times) >= 8
    assert set(copies) == {each["job"] for each in offload.times}
    for own in offload.times:
        row = copies[own["job"]]
        assert row["op"] == ("store" if own["stores"] else "load")
        for name in ("submit_ns", "start_ns", "end_ns"):
            assert abs(row[name] - own[name]) < 2 * MS, (name, row, own)
        assert row["end_ns"] - row["start_ns"] >= native.DELAY_S * 1000 * MS
        assert (row["outcome"], row["clock"], row["rank"]) == ("ok", "host", 0)


def test_a_load_is_usable_in_the_pass_after_its_report(offload: Played) -> None:
    """However fast the machine is: vLLM asks its worker once a step, and takes back what it reported.

    worker       [== copy ==) end     reported          asked again
    scheduler                                 usable                  end of the step that goes on with it
    """
    run = open_run(offload.run)
    copies = {row["job"]: row for row in _rows(run, COPIES)}
    first = {row["request_id"]: row for row in _rows(run, FIRST_STEPS)}
    loads = [each for each in offload.times if not each["stores"]]
    assert len(loads) >= 4
    for own in loads:
        row = copies[own["job"]]
        assert row["decided_ns"] <= row["submit_ns"] <= own["submit_ns"] <= row["start_ns"]
        assert own["end_ns"] <= own["reported_ns"] < row["usable"] < own["next_poll_ns"]
        step = first[row["request_id"]]
        assert step["start_ns"] < row["usable"] < step["end_ns"]
        assert step["computed_before"] == step["gpu_hit_tokens"] + row["tokens"]


def test_of_two_loads_the_second_waits_for_the_first(offload: Played) -> None:
    """The worker has one thread: submitted together, copied one after the other."""
    loads = [row for row in _rows(open_run(offload.run), COPIES) if row["op"] == "load"]
    waiting = 0
    for first, second in pairwise(loads):
        assert first["end_ns"] <= second["start_ns"]
        waiting += second["submit_ns"] < first["end_ns"] <= second["start_ns"]
    assert waiting


def test_bytes_of_copies_are_their_tokens_in_the_models_cache(offload: Played) -> None:
    for row in _rows(open_run(offload.run), COPIES):
        assert row["tokens"] > 0
        assert row["bytes"] == row["tokens"] * model.KV_BYTES_PER_TOKEN
        assert row["request_id"] in row["transfer_id"]
        assert {row["tier_from"], row["tier_to"]} == {"gpu", "host"}
        assert row["component"] == "vllm.offloading"


def test_a_transfer_is_the_workers_copy_with_the_schedulers_ends(offload: Played) -> None:
    run = open_run(offload.run)
    rows = _rows(run, "SELECT *, (SELECT count(*) FROM step) AS steps FROM transfer WHERE op = 'load'")
    assert len(rows) == len([each for each in offload.times if not each["stores"]])
    for row in rows:
        assert row["observer"] == "worker"
        assert row["submit_ns"] < row["start_ns"] < row["end_ns"] < row["usable_ns"]
    loaded = sum(row["tokens"] for row in rows)
    assert loaded == offload.counters["vllm:prompt_tokens_by_source_total:external_kv_transfer"]


def test_a_load_inside_a_step_is_paid_by_everybody_in_it_and_names_whom_it_is_for(example: Played) -> None:
    run = open_run(example.run)
    waits = _rows(run, STEPS_OF_WAITS)
    assert len(waits) >= 5
    selected = _rows(run, "SELECT request_id FROM request WHERE selected_tokens > 0")
    assert {name for row in waits for name in row["named"]} == {row["request_id"] for row in selected}
    paid: dict[str, int] = {}
    for row in waits:
        assert set(row["named"]) <= set(row["payers"])
        for name in row["payers"]:
            paid[name] = paid.get(name, 0) + row["end_ns"] - row["start_ns"]
    assert [row for row in waits if set(row["payers"]) > set(row["named"])], "nobody else was in such a step"
    assert _waited(run, "wait_load") == paid


@pytest.mark.parametrize("name", ["example", "multi"])
def test_a_load_inside_a_step_is_a_transfer_with_the_tokens_vllm_counts(
    request: pytest.FixtureRequest, name: str
) -> None:
    played = request.getfixturevalue(name)
    loads = _rows(open_run(played.run), "FROM transfer WHERE op = 'load'")
    assert {(row["tier_from"], row["component"], row["outcome"]) for row in loads} == {
        ("disk", "vllm.example", "ok")
    }
    assert all(row["start_ns"] < row["end_ns"] == row["usable_ns"] for row in loads)
    counted = played.counters["vllm:prompt_tokens_by_source_total:external_kv_transfer"]
    assert sum(row["tokens"] for row in loads) == counted > 0


def test_layers_that_are_saved_are_waits_that_name_those_in_their_step(example: Played) -> None:
    run = open_run(example.run)
    rows = _rows(run, "FROM wait WHERE reason = 'store' AND attributes['call'] = 'save_kv_layer'")
    assert len(rows) >= model.LAYERS * 5
    assert all(row["end_ns"] - row["start_ns"] >= 100_000 for row in rows)
    steps = _rows(run, "SELECT *, list_transform(members, lambda m: m.request_id) AS named FROM step")
    for row in rows:
        named = [each["request_id"] for each in row["members"]]
        (step,) = [s for s in steps if s["start_ns"] <= row["start_ns"] and row["end_ns"] <= s["end_ns"]]
        assert named == step["named"]
    assert min(_waited(run, "wait_store").values()) > 0


def test_of_nested_connectors_the_outermost_waits_and_the_child_is_named(multi: Played) -> None:
    run = open_run(multi.run)
    waits = [row for row in _rows(run, STEPS_OF_WAITS) if row["named"]]
    assert {row["call"] for row in waits} == {"start_load_kv"}
    for row in waits:
        assert row["component"] == "vllm.multi"
        assert "vllm.example=" in row["children"]
    stores = _rows(run, f"SELECT * FROM ({COPIES}) WHERE op = 'store'")
    assert len(stores) == len(multi.times) > 0
    assert all(row["bytes"] == row["tokens"] * model.KV_BYTES_PER_TOKEN for row in stores)


def test_every_flush_names_whose_stores_it_is_about(offload: Played) -> None:
    rows = _rows(open_run(offload.run), "FROM wait WHERE attributes['call'] = 'handle_preemptions'")
    assert all(row["members"] for row in rows)


def test_a_copy_that_failed_says_so_though_the_engine_does_not_survive_it(failed: Played) -> None:
    """VLLM 0.32 asserts that every copy succeeds."""
    assert failed.died
    run = open_run(failed.run)
    copies = {row["job"]: row for row in _rows(run, COPIES)}
    assert {row["outcome"] for number, row in copies.items() if number < 5} == {"ok"}
    load = copies[5]
    assert (load["op"], load["outcome"], load["reason"]) == ("load", "failed", "unknown")
    assert load["end_ns"] - load["start_ns"] >= native.DELAY_S * 1000 * MS
    (row,) = _rows(run, f"FROM request WHERE request_id = '{load['request_id']}'")
    assert row["status"] != "ok"
    assert not row["output_tokens"]


def test_a_step_that_wants_blocks_whose_store_goes_on_waits_for_it_to_end(slow: Played) -> None:
    """VLLM blocks in handle_preemptions, in the middle of everybody's step, and counts it nowhere."""
    run = open_run(slow.run)
    waits = _rows(
        run,
        """
        SELECT *, list_transform(members, lambda m: m.request_id) AS named FROM wait
        WHERE attributes['call'] = 'handle_preemptions' AND end_ns - start_ns > 50_000_000
        """,
    )
    assert waits
    copies = {row["job"]: row for row in _rows(run, COPIES)}
    for row in waits:
        ended = [own for own in slow.times if row["start_ns"] < own["end_ns"] <= row["end_ns"] + MS]
        assert ended, "it waited for no copy"
        last = max(ended, key=lambda own: own["end_ns"])
        assert copies[last["job"]]["request_id"] in row["named"], "and not a copy longer"
        assert row["reason"] == "store"
    waited = _waited(run, "wait_store")
    assert max(waited.values()) >= max(row["end_ns"] - row["start_ns"] for row in waits)


@pytest.mark.parametrize("name", ["offload", "example", "multi", "slow"])
def test_nothing_was_lost(request: pytest.FixtureRequest, name: str) -> None:
    played = request.getfixturevalue(name)
    assert _rows(open_run(played.run), LOST) == []
    assert all(each.status == 200 for each in played.client.responses)


def test_every_connector_that_ships_is_in_the_list_of_what_was_verified(python: Path) -> None:
    code = (
        "from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory as factory\n"
        "print(*factory._registry)"
    )
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert set(done.stdout.split("\n")[-2].split()) == set(CONNECTORS)
