"""LMCache's client in vLLM's processes: what it asked its server for, and what it gave up.

Minutes: `pytest -m engine`. See test_vllm_lmcache.py for the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kvtrace
import polars as pl
import pytest
from kvtrace.run import Run, open_run
from tests.engines import native
from tests.engines.configuration import Configuration
from tests.engines.prompts import plain
from tests.golden.truths import LOST, SECOND

if TYPE_CHECKING:
    from tests.engines.conftest import Recordings
    from tests.engines.drive import Client
    from tests.engines.native import Played

pytestmark = pytest.mark.engine
ROOT = Path(__file__).parents[2]
CHUNK_BYTES = 524_288
"""Of 256 tokens of the tiny model."""


def repeats(client: Client) -> None:
    """Four prompts through a pool that holds three, then again, some at once: the repeats are retrieved."""
    client.ask(*plain(0, 1, 2, 3))
    client.ask(*plain(0, 1, 2, 3))
    client.ask_at_once(*plain(0, 1, 2))


@pytest.fixture(scope="module")
def engine_driven(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """VLLM's worker copies, as LMCache chooses itself on every device but CUDA."""
    configuration = Configuration(l1_gb=0.064, engine_driven=True)
    out = tmp_path_factory.mktemp("engine-driven") / "run"
    return native.play(configuration, repeats, python=python, out=out)


@pytest.fixture(scope="module")
def engine_driven_bare(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The same engines and prompts without kvtrace."""
    configuration = Configuration(l1_gb=0.064, engine_driven=True, kvtrace=False)
    out = tmp_path_factory.mktemp("engine-driven-bare") / "run"
    return native.play(configuration, repeats, python=python, out=out)


def _rows(run: Run, query: str) -> list[dict[str, Any]]:
    return run.connection().sql(query).pl().to_dicts()


def test_every_retrieve_of_the_worker_is_a_row_with_its_bytes(engine_driven: Played) -> None:
    run = open_run(engine_driven.run)
    asked = _rows(run, "FROM span WHERE name = 'lmcache_client_retrieve'")
    copies = {
        row["transfer_id"]: row
        for row in _rows(run, "FROM span WHERE observer = 'worker' AND name = 'lmcache_scatter'")
    }
    assert len(asked) == len(copies) >= 4
    for row in asked:
        copy = copies[row["transfer_id"]]
        assert row["submit_ns"] <= copy["start_ns"] < copy["end_ns"] <= row["end_ns"]
        assert (copy["tokens"], copy["outcome"]) == (row["tokens"], "ok")
        assert copy["bytes"] == row["tokens"] * CHUNK_BYTES // 256
    loaded = _rows(run, "SELECT sum(tokens) AS tokens FROM transfer WHERE op = 'load'")[0]["tokens"]
    source = "vllm:prompt_tokens_by_source_total:external_kv_transfer"
    assert loaded == engine_driven.counters[source]


def test_every_store_of_the_worker_is_one_transfer(engine_driven: Played) -> None:
    run = open_run(engine_driven.run)
    stores = _rows(run, "FROM transfer WHERE op = 'store'")
    assert len(stores) == 4
    assert {(row["observer"], row["tokens"], row["bytes"]) for row in stores} == {
        ("worker", 1280, 5 * CHUNK_BYTES)
    }
    assert len(_rows(run, "FROM span WHERE name = 'lmcache_client_store'")) == 4


def test_locks_are_given_back_for_what_the_gpu_has(engine_driven: Played) -> None:
    """What a lookup found is retrieved or given back, by chunks; one at the border is retrieved."""
    run = open_run(engine_driven.run)
    rows = _rows(
        run,
        """
        SELECT l.request_id, l.found_tokens, coalesce(u.tokens, 0) AS freed, coalesce(r.moved, 0) AS moved
        FROM lookup l
        LEFT JOIN (SELECT request_id, tokens FROM span
            WHERE name = 'lmcache_client_unlock') u USING (request_id)
        LEFT JOIN (
            SELECT request_id, split_part(attributes['range'], '-', 2)::INT
                - split_part(attributes['range'], '-', 1)::INT AS moved
            FROM span WHERE name = 'lmcache_client_retrieve') r USING (request_id)
        WHERE l.found_tokens > 0
        """,
    )
    assert rows
    for row in rows:
        assert row["freed"] // 256 * 256 + row["moved"] == row["found_tokens"], row


def test_tokens_are_the_same_with_and_without_kvtrace(
    engine_driven: Played, engine_driven_bare: Played
) -> None:
    assert [each.answer_digest for each in engine_driven.client.responses] == [
        each.answer_digest for each in engine_driven_bare.client.responses
    ]
    assert all(each.status == 200 for each in engine_driven.client.responses)


def test_nothing_was_lost(engine_driven: Played) -> None:
    assert _rows(open_run(engine_driven.run), LOST) == []


def test_every_load_of_a_request_has_its_clients_row(recordings: Recordings) -> None:
    run = recordings.native("l1_reuse")
    loads = _rows(run, "FROM span WHERE op = 'load' AND observer = 'scheduler' ORDER BY start_ns")
    asked = _rows(run, "FROM span WHERE op = 'load' AND observer = 'client' ORDER BY start_ns")
    assert loads
    assert [row["transfer_id"] for row in asked] == [row["transfer_id"] for row in loads]
    for whole, one in zip(loads, asked, strict=True):
        assert whole["submit_ns"] <= one["submit_ns"] < one["end_ns"] <= whole["end_ns"]
        assert (one["outcome"], dict(one["attributes"])["end"]) == ("ok", "report")


def test_client_and_server_see_one_transfer(recordings: Recordings) -> None:
    recording = recordings.imported("l1_reuse")
    rows = _rows(
        recording.run, "FROM span WHERE observer = 'client' AND op IN ('load', 'store') ORDER BY start_ns"
    )
    assert rows
    assert all("#" in row["transfer_id"] for row in rows), rows
    (found,) = _rows(
        recording.run,
        """
        SELECT count(*) AS transfers, count(DISTINCT transfer_id) AS ids, min(ranks) AS least,
            max(ranks) AS most,
            bool_and(observer = 'server') AS nearest, bool_and(submit_ns <= start_ns) AS ordered
        FROM transfer WHERE request_id IN (SELECT request_id FROM span WHERE observer = 'client')
        """,
    )
    assert (found["transfers"], found["ids"]) == (len(rows), len(rows))
    assert (found["least"], found["most"], found["nearest"], found["ordered"]) == (1, 1, True, True)
    lost = _rows(recording.run, "FROM loss WHERE cause = 'ambiguous_join' AND op = 'load'")
    assert lost == []


def test_the_killed_servers_timeout_is_told_apart_from_being_unhealthy(recordings: Recordings) -> None:
    """The first lookup after the kill is never acknowledged; those after it are not even sent."""
    run = recordings.native("server_killed")
    lookups = _rows(run, "FROM span WHERE op = 'lookup' AND observer = 'scheduler' ORDER BY start_ns")
    timed_out = [row for row in lookups if row["outcome"] == "timeout"]
    assert [dict(row["attributes"])["timeout_of"] for row in timed_out] == ["ack"]
    after = [row for row in lookups if row["start_ns"] > timed_out[0]["start_ns"]]
    assert {(row["outcome"], row["reason"]) for row in after} == {("skipped", "unhealthy")}
    (inquiry,) = _rows(run, "FROM span WHERE name = 'lmcache_client_lookup' AND outcome = 'timeout'")
    assert (inquiry["end_ns"] - inquiry["start_ns"]) / SECOND == pytest.approx(5.0, abs=0.5)
    assert dict(inquiry["attributes"])["timeout_of"] == "ack"
    ended = _rows(
        run, f"FROM span WHERE name = 'lmcache_client_end_session' AND start_ns > {inquiry['end_ns']}"
    )
    assert {row["outcome"] for row in ended} == {"skipped"}


def test_stores_that_a_dead_server_never_answered_are_given_up_and_later_ones_dropped(
    recordings: Recordings,
) -> None:
    run = recordings.native("server_killed")
    stores = _rows(run, "FROM span WHERE name = 'lmcache_client_store' ORDER BY start_ns")
    given_up = [row for row in stores if row["outcome"] == "cancelled"]
    assert given_up
    assert {row["reason"] for row in given_up} == {"unhealthy"}
    dropped = [row for row in stores if row["op"] == "drop"]
    assert {row["reason"] for row in dropped} == {"unhealthy"}
    (degraded,) = _rows(run, "FROM health WHERE observer = 'client' AND reason = 'degraded'")
    assert all(row["start_ns"] >= degraded["start_ns"] for row in dropped)
    assert all(row["start_ns"] < degraded["start_ns"] < row["end_ns"] for row in given_up)


def test_the_lazy_tail_is_never_stored_and_stale_parts_are_counted(lazy: Played) -> None:
    """The engine dies with its queue: what was queued and not drained is nowhere."""
    run = open_run(lazy.run)
    queued = _rows(run, "FROM span WHERE name = 'lmcache_lazy_queue' ORDER BY start_ns")
    fates = [dict(row["attributes"]).get("fate") for row in queued]
    tail = {row["request_id"] for row, fate in zip(queued, fates, strict=True) if fate is None}
    stale = {row["request_id"] for row, fate in zip(queued, fates, strict=True) if fate == "stale"}
    assert tail
    assert stale
    assert all(row["end_ns"] is None for row, fate in zip(queued, fates, strict=True) if fate is None)
    drops = _rows(run, "FROM span WHERE op = 'drop' AND reason = 'stale'")
    assert {row["request_id"] for row in drops} == stale
    assert all(row["queued_ns"] < row["start_ns"] for row in drops)
    lag = kvtrace.analyze(run, "store_lag")
    over = lag.filter(pl.col("finished_ns").is_not_null() & pl.col("request_id").is_in(list(tail)))
    assert over["never_stored"].to_list() == [True] * over.height
    skipped = lag.filter(pl.col("request_id").is_in(list(stale - tail)))
    assert set(skipped["skip_reason"]) <= {"stale"}


VARIANTS = """
import importlib, json, sys
from kvtrace.instrument import importing, wrapping
from kvtrace.instrument.lmcache import client
from kvtrace.instrument.vllm import connectors

client.arm()
found = {}
for name in sys.argv[1:]:
    module, kind = name.split(":")
    connector = getattr(importlib.import_module(module), kind)
    connectors._handed_out(connector)
    found[name] = hasattr(connector.start_load_kv, "__wrapped__")
print(json.dumps({"wrapped": found, "status": {**importing.status(), **wrapping.status()}}))
"""
LMCACHE = "lmcache.integration.vllm.lmcache_mp_connector"
VLLM = "vllm.distributed.kv_transfer.kv_connector.v1.lmcache_mp_connector"


def test_every_class_that_speaks_to_the_server_is_wrapped(python: Path) -> None:
    """The current one, those for older versions of vLLM, and vLLM's own: they share LMCache's adapters."""
    names = [f"{LMCACHE}{version}:LMCacheMPConnector" for version in ("", "_0180", "_0201")]
    names.append(f"{VLLM}:LMCacheMPConnectorUpstream")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LMCACHE_TRACK_USAGE": "false"}
    done = subprocess.run(
        [str(python), "-c", VARIANTS, *names],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["wrapped"] == dict.fromkeys(names, True)
    assert {name: why for name, why in said["status"].items() if why != "active"} == {}
