"""HiCache's hooks on a drawn controller and cache with the signatures of its source: none ran on SGLang.

ms      0        1          2               7          9
        │ load n1 (r1)      │ start_loading            │ loading_check
                 │ load n2 (r2)             │ the copy is over
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from kvtrace.instrument import sglang, wrapping
from kvtrace.instrument.sglang import caches, copies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.instrument.conftest import Told

MS = 1_000_000


class Ack(NamedTuple):
    start_event: Any
    finish_event: Any
    node_ids: list[int]
    num_tokens: int = 0
    timing_enabled: bool = True
    num_bytes: int = 0


class Event(NamedTuple):
    at_ms: float

    def elapsed_time(self, end: Event) -> float:
        return end.at_ms - self.at_ms


def _controller() -> ModuleType:
    """A module as it is imported: its class is new in each test."""

    class HiCacheController:
        storage_backend_type = "file"
        page_size = 16

        def __init__(self) -> None:
            self.load_queue: list[int] = []
            self.ack_load_queue: list[Ack] = []
            self.ack_write_queue: list[Ack] = []

        def load(self, host_indices: Any, priority: Any = None, node_id: int = -1) -> Any:  # noqa: ARG002
            self.load_queue.append(node_id)
            return host_indices

        def start_loading(self) -> int:
            if not self.load_queue:
                return -1
            nodes, self.load_queue = self.load_queue, []
            self.ack_load_queue.append(Ack(Event(2), Event(7), nodes, 32 * len(nodes), num_bytes=4096))
            return 0

        def start_writing(self) -> None:
            self.ack_write_queue.append(Ack(Event(0), Event(1), [9], 16, num_bytes=0))

        def _storage_hit_query(self, operation: Any) -> tuple[list[str], int]:
            return operation.hash_value, len(operation.hash_value) * 16

        def _page_transfer(self, operation: Any) -> None:
            operation.completed_tokens += operation.arrives
            if operation.error:
                raise operation.error

        def _page_backup(self, operation: Any) -> None:
            operation.completed_tokens += 16 * len(operation.hash_value)

    module = ModuleType("sglang.srt.managers.cache_controller")
    vars(module)["HiCacheController"] = HiCacheController
    return module


def _cache() -> ModuleType:
    class UnifiedRadixCache:
        def __init__(self, controller: Any) -> None:
            self.cache_controller = controller
            self.answer, self.ready = (64, 32), False

        def match_prefix(self, params: Any) -> Any:  # noqa: ARG002
            return SimpleNamespace(device_prefix_len=self.answer[0], host_hit_length=self.answer[1])

        def init_load_back(self, params: Any) -> int:
            self.cache_controller.load(host_indices=[0], node_id=params.best_match_node)
            return 1

        def check_prefetch_progress(self, request: Any) -> bool:  # noqa: ARG002
            return self.ready

        def loading_check(self, finish_count: int | None = None) -> None:
            del self.cache_controller.ack_load_queue[: finish_count or 0]

        def writing_check(self, write_back: bool = False, finish_count: int | None = None) -> None:  # noqa: ARG002, FBT001, FBT002
            self.cache_controller.ack_write_queue.clear()

    module = ModuleType("sglang.srt.mem_cache.unified_radix_cache")
    vars(module)["UnifiedRadixCache"] = UnifiedRadixCache
    return module


@pytest.fixture
def cache(told: Told, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    del told
    yield from _wrapped("0.5.23", monkeypatch)


def _wrapped(number: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setitem(sys.modules, "sglang.version", SimpleNamespace(__version__=number))  # type: ignore[arg-type]
    modules = (_controller(), _cache())
    said = [sglang._wrap(module) for module in modules]
    for collection in (caches._answers, caches._gates, copies._asked, copies._open):
        collection.clear()
    made = modules[1].UnifiedRadixCache(modules[0].HiCacheController())
    made.said = said
    yield made


def _request(name: str) -> Any:
    return SimpleNamespace(rid=name)


def _load(cache: Any, node: int, request: str) -> None:
    cache.init_load_back(SimpleNamespace(best_match_node=node, host_hit_length=32, req=_request(request)))


def test_a_lookup_is_a_row_when_its_answer_is_another_one(told: Told, cache: Any) -> None:
    params = SimpleNamespace(key=range(100), req=_request("r1"))
    for _ in range(3):
        cache.match_prefix(params)
    cache.answer = (96, 0)
    cache.match_prefix(params)
    cache.match_prefix(SimpleNamespace(key=range(100), req=None))
    found = [
        (row["request_id"], row["found_tokens"], row["found_by_tier.host"], row["outcome"])
        for row in told.rows
    ]
    assert found == [("r1", 96, 32, "ok"), ("r1", 96, 0, "miss")]


def test_a_merged_load_is_one_row_from_its_submission_to_its_check_and_names_its_requests(
    told: Told, cache: Any
) -> None:
    begun = told.clock
    _load(cache, 1, "r1")
    told.clock = begun + MS
    _load(cache, 2, "r2")
    told.clock = begun + 2 * MS
    assert cache.cache_controller.start_loading() == 0
    (opened,) = told.parts("open")
    assert (opened["submit_ns"], opened["start_ns"]) == (begun, begun + 2 * MS)
    assert (opened["tier_from"], opened["tier_to"], opened["bytes"], opened["tokens"]) == (
        "host",
        "gpu",
        4096,
        64,
    )
    assert (opened["request_id"], opened["members"][0]) == (None, ["r1", "r2"])
    cache.loading_check(0)
    assert told.parts("close") == []
    told.clock = begun + 9 * MS
    cache.loading_check(1)
    (closed,) = told.parts("close")
    assert (closed["span_id"], closed["end_ns"]) == (opened["span_id"], begun + 9 * MS)
    assert closed["attributes.device_ns"] == 5 * MS


def test_a_load_of_one_request_is_that_requests(told: Told, cache: Any) -> None:
    _load(cache, 1, "r1")
    cache.cache_controller.load([0], None, 7)  # asked for by nobody that we know
    cache.cache_controller.start_loading()
    cache.cache_controller.start_loading()
    (opened,) = told.parts("open")
    assert (opened["request_id"], opened["attribution"], opened["members"]) == ("r1", "request", None)


def test_a_store_belongs_to_no_request_and_its_unknown_bytes_are_null(told: Told, cache: Any) -> None:
    cache.cache_controller.start_writing()
    cache.writing_check()
    (opened,), (closed,) = told.parts("open"), told.parts("close")
    assert (opened["op"], opened["request_id"], opened["bytes"]) == ("store", None, None)
    assert closed["span_id"] == opened["span_id"]


def test_a_request_that_waits_for_its_storage_is_queued_from_the_first_no_to_the_yes(
    told: Told, cache: Any
) -> None:
    begun = told.clock
    for _ in range(3):
        cache.check_prefetch_progress(_request("r1"))
        told.clock += MS
    cache.ready = True
    cache.check_prefetch_progress(_request("r1"))
    cache.check_prefetch_progress(_request("r2"))
    (opened,), (closed,) = told.parts("open"), told.parts("close")
    assert (opened["op"], opened["reason"], opened["start_ns"]) == ("queue", "remote_kv", begun)
    assert (closed["end_ns"], closed["attributes.calls"]) == (begun + 3 * MS, 3)


@pytest.mark.parametrize(
    ("arrives", "error", "fate"),
    [
        (32, None, ("ok", None)),
        (16, None, ("partial", "unknown")),
        (0, None, ("failed", "unknown")),
        (16, OSError("gone"), ("partial", "io")),
        (0, OSError("gone"), ("failed", "io")),
    ],
)
def test_pages_from_storage_are_a_load_of_what_arrived(
    told: Told, cache: Any, arrives: int, error: OSError | None, fate: tuple[str, str | None]
) -> None:
    operation = SimpleNamespace(
        request_id=_request("r1"), token_ids=range(40), completed_tokens=0, hash_value=["a", "b"],
        arrives=arrives, error=error,
    )  # fmt: skip
    cache.cache_controller._storage_hit_query(operation)
    if error is None:
        cache.cache_controller._page_transfer(operation)
    else:
        with pytest.raises(OSError, match="gone"):
            cache.cache_controller._page_transfer(operation)
    lookup, load = told.rows
    assert (lookup["request_id"], lookup["outcome"], lookup["found_tokens"]) == ("r1", "partial", 32)
    assert (load["outcome"], load["reason"]) == fate
    assert (load["tier_from"], load["component"], load["tokens"]) == ("disk", "hicache.l3.file", arrives)


def test_of_another_version_nothing_is_wrapped_and_the_status_says_why(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made,) = _wrapped("0.5.20", monkeypatch)
    assert set(made.said) == {
        "not wrapped: kvtrace knows HiCache of SGLang 0.5.18 and 0.5.23 and found 0.5.20"
    }
    made.match_prefix(SimpleNamespace(key=range(100), req=_request("r1")))
    assert told.rows == []


def test_a_build_of_a_known_version_is_that_version(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    (made,) = _wrapped("0.5.23.post1+cu130", monkeypatch)
    assert made.said == [None, None]
    assert told.described[-1]["version"] == "0.5.23"


def test_hooks_that_fail_are_not_felt_and_are_counted(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTRACE_FAULT", "hooks")
    (made,) = _wrapped("0.5.23", monkeypatch)
    assert made.match_prefix(SimpleNamespace(key=range(100), req=_request("r1"))).host_hit_length == 32
    assert [cause for cause, _ in told.losses] == ["hook_failure"]
    assert wrapping.status()["_cache.<locals>.UnifiedRadixCache.match_prefix"] == "active"
