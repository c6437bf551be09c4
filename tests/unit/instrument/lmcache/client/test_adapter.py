"""Stores and retrieves of LMCache's client in a worker.

ms     0        10            20
store  submit   reply is in   get_finished looks: the row ends
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.lmcache.client import adapter as hooks
from kvtrace.instrument.lmcache.client import copies, heartbeat, moves
from tests.unit.instrument.lmcache.client import adapters

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

MS = 1_000_000


def finished(told: Told) -> list[dict[str, Any]]:
    """Rows of stores and loads, their parts put together as the spool's reader does."""
    rows: dict[Any, dict[str, Any]] = {}
    for number, row in enumerate(row for row in told.rows if row["table"] == "span"):
        key = row.get("span_id") or -number - 1
        rows[key] = rows.get(key, {}) | {name: value for name, value in row.items() if value is not None}
    return [row for row in rows.values() if row.get("op") in ("store", "load", "drop")]


@pytest.fixture
def worker(told: Told, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ARG001 - the recorder is told's
    monkeypatch.setattr(moves, "expected", {})
    module = adapters.module()
    hooks.install(module)
    return module.LMCacheMPWorkerAdapter()


def after(told: Told, ms: int) -> None:
    told.clock = 1_000_000_000_000 + ms * MS


def test_a_store_lasts_from_its_submit_to_the_report(told: Told, worker: Any) -> None:
    worker.submit_store_request("r", adapters.op(0, 512), None)
    after(told, 10)
    worker.context.futures[0].set(True)
    after(told, 20)
    worker.get_finished(set())
    (row,) = finished(told)
    assert (row["op"], row["observer"], row["outcome"]) == ("store", "client", "ok")
    assert row["end_ns"] - row["submit_ns"] == 20 * MS
    assert (row["tokens"], row["blocks"], row["transfer_id"]) == (512, 4, "r/store/1")
    assert (row["attributes.engine_id"], row["attributes.end"]) == ("7", "report")


def test_a_store_that_the_server_refused_has_failed(told: Told, worker: Any) -> None:
    worker.submit_store_request("r", adapters.op(0, 512), None)
    worker.context.futures[0].set(False)
    worker.get_finished(set())
    assert [(row["outcome"], row["reason"]) for row in finished(told)] == [("failed", "unknown")]


@pytest.mark.parametrize("kind", [adapters.Future, adapters.DeviceFuture])
def test_a_later_store_takes_the_place_of_an_earlier_one_which_ends_with_its_reply(
    told: Told, worker: Any, kind: Any
) -> None:
    worker.context.kind = kind
    worker.submit_store_request("r", adapters.op(0, 512), None)
    worker.submit_store_request("r", adapters.op(512, 768), None)
    first, second = worker.context.futures
    getattr(second, "raw_future_", second).set((b"", True) if kind is adapters.DeviceFuture else True)
    worker.get_finished(set())
    assert [row.get("outcome") for row in finished(told)] == [None, "ok"]
    after(told, 30)
    getattr(first, "raw_future_", first).set((b"", False) if kind is adapters.DeviceFuture else False)
    worker.get_finished(set())
    rows = finished(told)
    assert [row["transfer_id"] for row in rows] == ["r/store/1", "r/store/2"]
    assert [row["outcome"] for row in rows] == ["failed", "ok"]
    assert [row.get("attributes.overwritten") for row in rows] == [True, None]
    assert rows[0]["attributes.end"] == "reply"


def test_while_the_server_is_held_for_dead_stores_are_drops_and_loads_fail(told: Told, worker: Any) -> None:
    worker.is_healthy = False
    worker.submit_store_request("r", adapters.op(0, 512), None)
    worker.submit_retrieve_request("q", adapters.op(0, 256), None)
    after(told, 5)
    worker.get_finished(set())
    drop, load = finished(told)
    assert (drop["op"], drop["reason"], drop["tokens"]) == ("drop", "unhealthy", 512)
    assert (load["op"], load["outcome"], load["reason"]) == ("load", "failed", "unhealthy")
    assert load["end_ns"] - load["submit_ns"] == 5 * MS


def test_what_was_under_way_when_the_server_is_given_up_is_given_up(told: Told, worker: Any) -> None:
    worker.submit_store_request("r", adapters.op(0, 512), None)
    worker.submit_retrieve_request("q", adapters.op(0, 256), None)
    worker.is_healthy = False
    worker.get_finished(set())
    assert [(row["op"], row["outcome"], row["reason"]) for row in finished(told)] == [
        ("store", "cancelled", "unhealthy"), ("load", "failed", "unhealthy"),
    ]  # fmt: skip


def test_a_rank_that_writes_nothing_has_no_rows_of_stores(told: Told, worker: Any) -> None:
    worker.is_kv_writer = False
    worker.submit_store_request("r", adapters.op(0, 512), None)
    assert finished(told) == []


def test_a_load_counts_what_is_written_and_says_its_attempt(told: Told, worker: Any) -> None:
    moves.of(worker).attempts = {"r": 3}
    worker.submit_retrieve_request("r", adapters.op(256, 768, skip=128), None)
    (row,) = finished(told)
    assert (row["tokens"], row["attributes.skipped_tokens"], row["attempt"]) == (384, 128, 3)
    assert row["transfer_id"] == "r/load/3"


def test_an_error_of_the_engine_goes_on_and_closes_the_row(told: Told, worker: Any) -> None:
    def late(*_: Any) -> None:
        raise TimeoutError

    worker.context.copies = late
    with pytest.raises(TimeoutError):
        worker.submit_store_request("r", adapters.op(0, 512), None)
    assert [(row["outcome"], row["reason"]) for row in finished(told)] == [("timeout", "timeout")]


class Chunk:
    nbytes = 1000


class PickleTemplate:
    mq_timeout = 1.0

    def prepare_store(self, key: Any, instance_id: int) -> Any:
        assert instance_id == 7
        return key.answer

    prepare_retrieve = prepare_store

    def commit_store(self, key: Any, instance_id: int, chunks: Any) -> bool:
        assert instance_id == 7
        assert chunks is not None
        return bool(key.good)

    def commit_retrieve(self, key: Any, instance_id: int) -> bool:
        assert instance_id == 7
        return bool(key.good)


@pytest.fixture
def driven(told: Told, worker: Any) -> Any:
    """The worker copies itself: `driven.key` says what its server answers."""
    context = type(
        "EngineDrivenContextPickle", (), {k: v for k, v in vars(PickleTemplate).items() if k[0] != "_"}
    )
    module = SimpleNamespace(
        EngineDrivenContextPickle=context,
        gather_paged_kv_to_cpu=lambda _caches, ids, per, out=None, chunk_indices=None: [
            Chunk() for _ in (chunk_indices if out else range(len(ids) // per))
        ],
        scatter_cpu_to_paged_kv=lambda *_, **__: None,
        __name__="context",
    )
    copies.install(module)
    own = context()
    settings = SimpleNamespace(answer=None, good=True)

    def run(request_id: str, asked: Any, is_load: bool, future: Any) -> None:  # noqa: FBT001 - a callback
        key = SimpleNamespace(request_id=request_id, start=asked.start, end=asked.end, **vars(settings))
        ids = asked.block_ids[0]
        if is_load:
            found = own.prepare_retrieve(key, 7)
            if found is not None:
                module.scatter_cpu_to_paged_kv(
                    {}, ids, found, 2, skip_first_n_tokens=asked.skip_first_n_tokens
                )
                told.clock += 3 * MS
            own.commit_retrieve(key, 7)
            future.set(found is not None)
            return
        found = own.prepare_store(key, 7)
        if found is not None and not found[1]:
            future.set(True)
            return
        out, wanted = found or (None, None)
        chunks = module.gather_paged_kv_to_cpu({}, ids, 2, out=out, chunk_indices=wanted)
        told.clock += 2 * MS
        future.set(own.commit_store(key, 7, chunks))

    worker.context.copies = run
    worker.settings = settings
    return worker


def test_a_copy_of_the_worker_shares_the_transfer_of_the_client(told: Told, driven: Any) -> None:
    driven.submit_store_request("r", adapters.op(0, 1024), None)
    driven.get_finished(set())
    client, copy = finished(told)
    assert (client["observer"], copy["observer"]) == ("client", "worker")
    assert copy["transfer_id"] == client["transfer_id"]
    assert copy["end_ns"] - copy["start_ns"] == 2 * MS
    assert (copy["tokens"], copy["bytes"], copy["attributes.chunks"]) == (1024, 4000, 4)


def test_only_missing_chunks_are_copied(told: Told, driven: Any) -> None:
    driven.settings.answer = ([Chunk()], [2])
    driven.submit_store_request("r", adapters.op(0, 1024), None)
    _, copy = finished(told)
    assert (copy["tokens"], copy["bytes"]) == (256, 1000)


def test_a_store_of_which_the_server_has_everything_is_a_drop(told: Told, driven: Any) -> None:
    driven.settings.answer = ([], [])
    driven.submit_store_request("r", adapters.op(0, 1024), None)
    driven.get_finished(set())
    (row,) = finished(told)
    assert (row["op"], row["reason"], row["outcome"]) == ("drop", "duplicate", "skipped")


def test_a_retrieve_copies_what_it_does_not_skip(told: Told, driven: Any) -> None:
    driven.settings.answer = [Chunk(), Chunk()]
    driven.submit_retrieve_request("r", adapters.op(0, 512, skip=128), None)
    driven.get_finished(set())
    client, copy = finished(told)
    assert (client["outcome"], copy["outcome"]) == ("ok", "ok")
    assert (copy["tokens"], copy["bytes"]) == (384, 1500)
    assert copy["end_ns"] - copy["start_ns"] == 3 * MS


def test_a_retrieve_that_finds_nothing_says_so(told: Told, driven: Any) -> None:
    driven.submit_retrieve_request("r", adapters.op(0, 512), None)
    driven.get_finished(set())
    assert [(row["outcome"], row["reason"]) for row in finished(told)] == [("failed", "not_found")]


def test_a_commit_that_fails_fails_the_copy_and_the_store(told: Told, driven: Any) -> None:
    driven.settings.good = False
    driven.submit_store_request("r", adapters.op(0, 512), None)
    driven.get_finished(set())
    assert [(row["observer"], row["outcome"], row["reason"]) for row in finished(told)] == [
        ("client", "failed", "unknown"), ("worker", "failed", "unknown"),
    ]  # fmt: skip


def test_a_workers_health_flips_with_its_heartbeat(told: Told) -> None:
    module = adapters.module()
    heartbeat.install(module)
    beat, scheduler = module.HeartbeatThread(7), module.HeartbeatThread(None)
    for healthy in (True, True, False, True):
        (beat._health_event.set if healthy else beat._health_event.clear)()
        beat._execute()
        scheduler._execute()
    opened = [row["reason"] for row in told.parts("open")]
    assert opened == ["healthy", "degraded", "healthy"]
    assert len(told.parts("close")) == 2
