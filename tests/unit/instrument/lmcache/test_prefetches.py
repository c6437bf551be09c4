"""L2's part of a lookup: whose it is, what came of it, and what stays open when a backend hangs.

lookup.submitted ─ lookup.completed(hits) ─ load_task.submitted ─ .completed ─ load.completed(loaded)
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kvtrace.instrument.lmcache.lookups import Lookups
from kvtrace.instrument.lmcache.prefetches import Prefetches, submitted
from kvtrace.instrument.lmcache.tasks import Tasks
from tests.unit.instrument.lmcache.literal import read

pytestmark = pytest.mark.usefixtures("told")


class Played:
    """Events one after the other, and the thread that submits prefetches."""

    def __init__(self) -> None:
        self.prefetches = Prefetches()
        tasks = Tasks(self.prefetches, "host", {"fault_inject": "disk"})
        self.handlers = {**self.prefetches.handlers(), **tasks.handlers()}
        self.rows: list[dict[str, Any]] = []

    def see(self, name: str, at: int, **said: Any) -> None:
        self.rows += read(self.handlers[name](0, at, "", said))

    def tie(
        self, prefetch: int, request: str | None, *, warm: bool = False, objects: int | None = None
    ) -> None:
        self.rows += read(self.prefetches.tie(prefetch, request, warm=warm, objects=objects))

    def named(self, name: str) -> list[dict[str, Any]]:
        """Operations of a name, their parts as one; `ended` where the last part was not a close."""
        found: dict[int, dict[str, Any]] = {}
        for row in self.rows:
            if "part" in row:
                found.setdefault(row["span_id"], {}).update(row)
        return [row for row in found.values() if row.get("name") == name]

    def load(self, adapter: int, task: int, name: str = "fs") -> None:
        said = {"request_id": 5, "adapter_index": adapter, "task_id": task, "l2_name": name}
        self.see("l2.load_task.submitted", 30, **said, key_count=6, total_bytes=600)

    def loaded(self, adapter: int, task: int) -> None:
        said = {"request_id": 5, "adapter_index": adapter, "task_id": task, "l2_name": "fs"}
        self.see("l2.load_task.completed", 40, **said)


def test_a_whole_load_from_l2_is_the_requests_own() -> None:
    played = Played()
    played.tie(5, "r")
    played.see("l2.prefetch.lookup.submitted", 10, request_id=5, key_count=6, adapter_count=1)
    played.load(0, 2)
    played.see("l2.prefetch.load.submitted", 31, request_id=5, key_count=6, adapter_count=1)
    played.see("l2.prefetch.lookup.completed", 32, request_id=5, prefix_hit_count=3)
    played.loaded(0, 2)
    played.see("l2.prefetch.load.completed", 42, request_id=5, loaded_count=6, failed_count=0)
    (lookup,), (whole,), (task,) = map(
        played.named, ("l2.prefetch.lookup", "l2.prefetch.load", "l2.load_task")
    )
    assert (lookup["request_id"], lookup["start_ns"], lookup["end_ns"]) == ("r", 10, 32)
    assert lookup["attributes.prefix_hit_count"] == 3
    assert (whole["start_ns"], whole["end_ns"], whole["outcome"]) == (31, 42, "ok")
    assert (task["op"], task["request_id"], task["purpose"]) == ("load", "r", "reuse")
    assert (task["submit_ns"], task["start_ns"], task["end_ns"]) == (30, 30, 40)
    assert (task["tier_from"], task["tier_to"], task["bytes"], task["outcome"]) == ("disk", "host", 600, "ok")
    assert task["transfer_id"].startswith("l2/load/0/2/")


#  6 objects: 3 chunks of a rank 0 and a rank 1 each
@pytest.mark.parametrize(
    ("objects", "chunk", "adapters", "failed", "tokens"),
    [
        (2, 256, 1, 0, [768]),
        (6, 256, 1, 0, [256]),
        (4, 256, 1, 0, [None]),
        (None, 256, 1, 0, [None]),
        (2, None, 1, 0, [None]),
        (2, 256, 2, 0, [None, None]),
        (2, 256, 1, 1, [None]),
    ],
)
def test_tokens_of_a_load_are_those_of_its_whole_chunks_where_that_is_known(
    objects: int | None, chunk: int | None, adapters: int, failed: int, tokens: list[int | None]
) -> None:
    played = Played()
    if chunk:
        lookups = Lookups(prefetches=played.prefetches).handlers()
        read(lookups["mp.lookup"](0, 5, "r", {"request_id": "r", "chunk_size": chunk, "chunk_hashes": []}))
    played.tie(5, "r", objects=objects)
    for adapter in range(adapters):
        played.load(adapter, 2)
        played.loaded(adapter, 2)
    played.see("l2.prefetch.load.completed", 42, request_id=5, loaded_count=6 - failed, failed_count=failed)
    assert [row.get("tokens") for row in played.named("l2.load_task")] == tokens


@pytest.mark.parametrize(("loaded", "failed", "outcome"), [(5, 1, "partial"), (0, 6, "failed")])
def test_a_load_that_failed_says_so_when_its_prefetch_is_over(loaded: int, failed: int, outcome: str) -> None:
    played = Played()
    played.load(0, 2, "fault_inject")
    played.loaded(0, 2)
    assert "outcome" not in played.named("l2.load_task")[0]
    played.see("l2.prefetch.load.completed", 42, request_id=5, loaded_count=loaded, failed_count=failed)
    (task,) = played.named("l2.load_task")
    assert (task["outcome"], task["reason"], task.get("bytes")) == (outcome, "not_found", None)
    assert task["tier_from"] == "disk"


def test_which_of_two_adapters_failed_nobody_says() -> None:
    played = Played()
    for adapter in (0, 1):
        played.load(adapter, 2)
        played.loaded(adapter, 2)
    played.see("l2.prefetch.load.completed", 42, request_id=5, loaded_count=5, failed_count=1)
    assert [row["outcome"] for row in played.named("l2.load_task")] == ["unknown", "unknown"]


def test_when_nothing_at_all_was_loaded_both_adapters_failed() -> None:
    played = Played()
    for adapter in (0, 1):
        played.load(adapter, 2)
    played.see("l2.prefetch.load.completed", 42, request_id=5, loaded_count=0, failed_count=2)
    assert [row["outcome"] for row in played.named("l2.load_task")] == ["failed", "failed"]


def test_a_prefetch_that_loads_nothing_is_a_point() -> None:
    played = Played()
    played.tie(5, "r")
    played.see("l2.prefetch.load.completed", 42, request_id=5, loaded_count=0, failed_count=0)
    (found,) = played.rows
    assert (found["start_ns"], found["end_ns"], found["attributes.submitted"]) == (42, 42, 0)


def test_a_backend_that_hangs_leaves_it_open_and_named() -> None:
    """The event came before the submitter had returned: the name follows."""
    played = Played()
    played.see("l2.prefetch.lookup.submitted", 10, request_id=5, key_count=6, adapter_count=1)
    played.tie(5, "r")
    (lookup,) = played.named("l2.prefetch.lookup")
    assert (lookup["request_id"], lookup.get("end_ns")) == ("r", None)
    assert not [row for row in played.rows if row.get("part") == "close"]


def test_a_warm_up_is_a_prefetch_for_nobody() -> None:
    played = Played()
    played.tie(5, None, warm=True)
    played.load(0, 2)
    (task,) = played.named("l2.load_task")
    assert (task["purpose"], task.get("request_id")) == ("prefetch", None)


@pytest.mark.parametrize(("good", "bad", "outcome"), [(6, 0, "ok"), (0, 6, "failed")])
def test_a_store_to_l2_is_open_until_its_adapter_answers(good: int, bad: int, outcome: str) -> None:
    played = Played()
    task = {"adapter_index": 0, "task_id": 3, "l2_name": "fs"}
    played.see("l2.store.submitted", 10, **task, key_count=6, total_bytes=600)
    (found,) = played.named("l2.store")
    assert (found["part"], found["tier_from"], found["tier_to"]) == ("open", "host", "disk")
    sent = {"bytes_transferred": 600, "succeeded_count": good, "failed_count": bad}
    played.see("l2.store.completed", 20, **task, **sent)
    (found,) = played.named("l2.store")
    assert (found["end_ns"], found["outcome"], found["bytes"]) == (20, outcome, 600)


def test_completions_of_what_was_not_seen_are_no_rows() -> None:
    played = Played()
    played.loaded(0, 2)
    played.see("l2.store.completed", 20, adapter_index=0, task_id=3)
    assert played.rows == []


def test_the_one_place_that_knows_both_names_says_them() -> None:
    handle = SimpleNamespace(prefetch_request_id=5, l1_hit_chunks=2, total_requested_keys=6)
    (found,) = read([submitted("r", 10, handle, "lookup")])
    assert (found["request_id"], found["attributes.prefetch_id"], found["evidence"]) == ("r", 5, "shim")
