"""LMCache's client in the scheduler: lookups, locks, sessions, and the queue of the lazy offload."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.lmcache.client import inquiries, lazy, locks
from tests.unit.instrument.lmcache.client import adapters

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told

MS = 1_000_000
TOKENS = list(range(1300))


@pytest.fixture
def adapter(told: Told) -> Any:  # noqa: ARG001 - the recorder is told's
    module = adapters.module()
    inquiries.install(module)
    locks.install(module)
    return module.LMCacheMPSchedulerAdapter()


def ask(told: Told, adapter: Any, ms: int) -> Any:
    told.clock = 10**12 + ms * MS
    adapter.maybe_submit_lookup_request("r", token_ids=TOKENS)
    return adapter.check_lookup_result("r")


def why(adapter: Any, state: str = "PREFETCHING", status: str = "WAITING") -> Any:
    connector = SimpleNamespace(
        scheduler_adapter=adapter,
        request_trackers={"r": SimpleNamespace(state=SimpleNamespace(name=state))},
    )
    request = SimpleNamespace(request_id="r", status=SimpleNamespace(name=status))
    return inquiries.why(connector, request)


def test_a_lookup_is_sent_acknowledged_and_answered(told: Told, adapter: Any) -> None:
    assert ask(told, adapter, 0) is None
    adapter.acked = True
    assert ask(told, adapter, 10) is None
    adapter.answer = 512
    assert ask(told, adapter, 30) == 512
    assert ask(told, adapter, 40) == 512
    (row,) = told.rows
    assert (row["outcome"], row["attributes.found_tokens"], row["tokens"]) == ("ok", 512, 1280)
    assert (row["end_ns"] - row["start_ns"], row["attributes.acked_after_ns"]) == (30 * MS, 10 * MS)


@pytest.mark.parametrize(("acked", "word"), [(False, "ack"), (True, "status")])
def test_which_of_the_two_waits_was_too_long_is_told(
    told: Told, adapter: Any, *, acked: bool, word: str
) -> None:
    adapter.acked = acked
    assert ask(told, adapter, 0) is None
    adapter.late = True
    assert ask(told, adapter, 50) == 0
    (row,) = told.rows
    assert (row["outcome"], row["attributes.timeout_of"]) == ("timeout", word)
    assert why(adapter) == (word, None)
    assert why(adapter) == (None, None)


def test_a_lookup_that_another_ones_timeout_ended_has_failed(told: Told, adapter: Any) -> None:
    ask(told, adapter, 0)
    adapter.healthy = False
    assert ask(told, adapter, 10) == 0
    assert [(row["outcome"], row["attributes.timeout_of"]) for row in told.rows] == [("failed", None)]


def test_a_request_that_ends_before_its_answer_cancels_its_lookup(told: Told, adapter: Any) -> None:
    ask(told, adapter, 0)
    adapter.cleanup_lookup_result("r")
    assert [row["outcome"] for row in told.rows] == ["cancelled"]


def test_a_failed_load_and_a_preemption_say_why_nobody_was_asked(adapter: Any) -> None:
    assert why(adapter, state="BYPASS_LMCACHE") == (None, "failed_load")
    assert why(adapter, status="PREEMPTED") == (None, "preempted")


def test_locks_are_given_back_by_range_and_not_to_a_dead_server(told: Told, adapter: Any) -> None:
    adapter.free_lookup_locks(token_ids=TOKENS, start=0, end=640, request_id="r")
    adapter.healthy = False
    adapter.free_lookup_locks(token_ids=TOKENS, start=0, end=256, request_id="r")
    assert [(row["outcome"], row["tokens"], row["attributes.range"]) for row in told.rows] == [
        ("ok", 640, "0-640"), ("skipped", 256, "0-256"),
    ]  # fmt: skip


def test_servers_that_found_more_than_others_give_the_rest_back(told: Told, adapter: Any) -> None:
    adapter._free_inconsistent_lookup_locks("r", {"a": 5, "b": 3}, 3)
    assert [(row["tokens"], row["attributes.why"]) for row in told.rows] == [(512, "servers_disagree")]


@pytest.mark.parametrize(("answer", "left", "tokens"), [(512, True, 512), (0, None, 0), (None, True, None)])
def test_locks_of_a_request_that_ends_before_its_admission_are_left_behind(
    told: Told, adapter: Any, answer: int | None, left: object, tokens: int | None
) -> None:
    adapter.acked = True
    adapter.answer = answer
    ask(told, adapter, 0)
    adapter.end_session("r")
    row = told.rows[-1]
    assert (row["name"], row["outcome"]) == ("lmcache_client_end_session", "ok")
    assert (row["attributes.left"], row["attributes.left_tokens"]) == (left, tokens)


def test_the_end_of_a_session_may_find_the_timeout(told: Told, adapter: Any) -> None:
    ask(told, adapter, 0)
    adapter.late = True
    adapter.end_session("r")
    rows = {row["name"]: row for row in told.rows}
    assert rows["lmcache_client_lookup"]["attributes.timeout_of"] == "ack"
    assert rows["lmcache_client_end_session"]["outcome"] == "timeout"


class Pending:
    """LazyOffloadPendingStore in miniature."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def add(self, meta: Any) -> None:
        for item in self.items:
            if item.request_id == meta.request_id:
                item.metadatas.append((meta, {}))
                return
        self.items.append(SimpleNamespace(request_id=meta.request_id, metadatas=[(meta, {})]))

    def pop_items_for_offload(self) -> list[Any]:
        found, self.items = self.items[:1], self.items[1:]
        return found

    def remove_request_gpu_block_ids(self, req_id: str) -> None:
        assert req_id


class Template:
    """A connector that finds the parts named in `stale` gone, and all of the request after them."""

    def __init__(self, pending: Any) -> None:
        self._pending_store = pending
        self.stale: set[int] = set()

    def _process_lazy_offload_store_requests(self, metadata: Any) -> None:
        for item in self._pending_store.pop_items_for_offload():
            for meta, _ in item.metadatas:
                if meta.op.start in self.stale:
                    break
                metadata.requests.append(meta)


@pytest.fixture
def queue(told: Told) -> Any:  # noqa: ARG001 - the recorder is told's
    def fresh(template: type) -> Any:
        own = {k: v for k, v in vars(template).items() if k not in ("__dict__", "__weakref__")}
        return type(template.__name__, (), own)

    pending, connector = fresh(Pending), fresh(Template)
    lazy.install(SimpleNamespace(LazyOffloadPendingStore=pending, __name__="pending"))
    lazy.instrument(connector)
    return connector(pending())


def put(queue: Any, request_id: str, start: int, end: int) -> None:
    queue._pending_store.add(SimpleNamespace(request_id=request_id, op=adapters.op(start, end)))


def drain(queue: Any) -> None:
    queue._process_lazy_offload_store_requests(SimpleNamespace(requests=[]))


def test_parts_wait_from_their_queueing_to_the_drain(told: Told, queue: Any) -> None:
    put(queue, "r", 0, 256)
    told.clock += 5 * MS
    put(queue, "r", 256, 768)
    told.clock += 5 * MS
    drain(queue)
    told.clock += 5 * MS
    queue._pending_store.remove_request_gpu_block_ids("r")
    left = [row for row in told.parts("close") if "attributes.fate" in row]
    assert [row["attributes.fate"] for row in left] == ["drained", "drained"]
    (store,) = [row for row in told.parts("open") if row.get("op") == "store"]
    assert (store["tokens"], store["blocks"], store["attributes.parts"]) == (768, 6, 2)
    assert store["submit_ns"] - store["queued_ns"] == 10 * MS
    (end,) = [row for row in told.parts("close") if row["span_id"] == store["span_id"]]
    assert end["end_ns"] - store["start_ns"] == 5 * MS


def test_a_stale_part_drops_itself_and_all_later_ones_of_its_request(told: Told, queue: Any) -> None:
    for start in (0, 256, 512):
        put(queue, "r", start, start + 256)
    queue.stale = {256}
    drain(queue)
    (drop,) = [row for row in told.rows if row.get("op") == "drop"]
    assert (drop["reason"], drop["tokens"], drop["attributes.parts"]) == ("stale", 512, 2)
    (store,) = [row for row in told.parts("open") if row.get("op") == "store"]
    assert store["tokens"] == 256


def test_what_is_never_drained_stays_in_the_queue(told: Told, queue: Any) -> None:
    put(queue, "r", 0, 256)
    put(queue, "q", 0, 256)
    drain(queue)
    closed = {row["span_id"] for row in told.parts("close")}
    waiting = [
        row["request_id"] for row in told.parts("open") if row["span_id"] not in closed and "op" not in row
    ]
    assert waiting == ["q"]
