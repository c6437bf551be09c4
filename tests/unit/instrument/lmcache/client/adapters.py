"""LMCache 0.5.5's client in miniature: the methods that are wrapped, its names, books and order of calls."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any


class Future:
    """A reply that a test sets."""

    def __init__(self) -> None:
        self.is_done_ = threading.Event()
        self.result_: Any = None

    def set(self, result: Any) -> None:
        self.result_ = result
        self.is_done_.set()

    def query(self) -> bool:
        return self.is_done_.is_set()


class DeviceFuture(Future):
    """Around a reply that names a device's event."""

    def __init__(self) -> None:
        super().__init__()
        self.raw_future_ = Future()
        self._raw_response_processed = False

    def query(self) -> bool:
        if self.raw_future_.query():
            self._raw_response_processed = True
            self.result_ = self.raw_future_.result_[1]
        return self._raw_response_processed


def op(start: int, end: int, *, skip: int = 0) -> Any:
    """Blocks of 128 tokens of one group."""
    return SimpleNamespace(
        start=start, end=end, skip_first_n_tokens=skip, block_ids=[list(range(start // 128, end // 128))]
    )


class Context:
    """A transfer context whose futures a test answers; `copies` runs inside of it."""

    def __init__(self) -> None:
        self.futures: list[Future] = []
        self.copies: Any = None
        self.kind: type[Future] = Future

    def submit(self, request_id: str, asked: Any, *, is_load: bool) -> Future:
        future = self.kind()
        self.futures.append(future)
        if self.copies is not None:
            self.copies(request_id, asked, is_load, future)
        return future


class WorkerTemplate:
    """LMCacheMPWorkerAdapter, before anybody wrapped it."""

    def __init__(self) -> None:
        self.instance_id = 7
        self.is_healthy = True
        self.is_kv_writer = True
        self.context = Context()
        self.store_futures: dict[str, Future] = {}
        self.retrieve_futures: dict[str, tuple[Future, list[int]]] = {}
        self._dropped_retrieves: set[str] = set()

    def submit_store_request(self, request_id: str, op: Any, event: Any, cache_salt: str = "") -> None:
        assert event is None
        assert cache_salt == ""
        if not self.is_kv_writer or not self.is_healthy:
            return
        self.store_futures[request_id] = self.context.submit(request_id, op, is_load=False)

    def submit_retrieve_request(self, request_id: str, op: Any, event: Any, cache_salt: str = "") -> None:
        assert event is None
        assert cache_salt == ""
        if not self.is_healthy:
            self._dropped_retrieves.add(request_id)
            return
        self.retrieve_futures[request_id] = (self.context.submit(request_id, op, is_load=True), [])

    def get_finished(self, finished: set[str]) -> Any:
        assert isinstance(finished, set)
        if not self.is_healthy:
            self.store_futures.clear()
            self.retrieve_futures.clear()
        for name in [name for name, future in self.store_futures.items() if future.query()]:
            del self.store_futures[name]
        for name in [name for name, (future, _) in self.retrieve_futures.items() if future.query()]:
            del self.retrieve_futures[name]
        self._dropped_retrieves = set()

    def _reregister_kv_caches_callback(self) -> bool:
        return True


class SchedulerTemplate:
    """LMCacheMPSchedulerAdapter, before anybody wrapped it."""

    lmcache_tokens_per_chunk = 256

    def __init__(self) -> None:
        self.healthy = True
        self.req_clients = {"a": None}
        self._pending_lookups: set[str] = set()
        self._unacked_lookups: dict[str, Any] = {}
        self._lookup_status: dict[str, Any] = {}
        self._finished_lookup_results: dict[str, int] = {}
        self.acked = self.late = False
        self.answer: int | None = None

    @property
    def is_healthy(self) -> bool:
        return self.healthy

    def maybe_submit_lookup_request(
        self, request_id: str, token_ids: list[int], cache_salt: str = ""
    ) -> None:
        assert token_ids
        assert cache_salt == ""
        if self.healthy and request_id not in self._pending_lookups:
            self._pending_lookups.add(request_id)
            self._unacked_lookups[request_id] = True

    def check_lookup_result(self, request_id: str) -> int | None:
        if request_id not in self._pending_lookups or not self.healthy:
            return 0
        if request_id in self._unacked_lookups and not self.acked:
            if self.late:
                self.healthy = False
                del self._unacked_lookups[request_id]
                return 0
            return None
        self._unacked_lookups.pop(request_id, None)
        self._lookup_status.setdefault(request_id, {})
        if self.late:
            self.healthy = False
            return 0
        if self.answer is not None:
            self._finished_lookup_results[request_id] = self.answer
        return self.answer

    def cleanup_lookup_result(self, request_id: str) -> None:
        for book in (self._unacked_lookups, self._lookup_status, self._finished_lookup_results):
            book.pop(request_id, None)
        self._pending_lookups.discard(request_id)

    def free_lookup_locks(self, token_ids: list[int], start: int, end: int, request_id: str) -> None:
        assert request_id
        assert 0 <= start < end <= len(token_ids)

    def _free_inconsistent_lookup_locks(
        self, request_id: str, per_server: dict[str, int], min_chunks: int
    ) -> None:
        assert request_id
        assert min(per_server.values()) == min_chunks

    def end_session(self, request_id: str) -> None:
        if self.healthy and self.late and self._unacked_lookups.pop(request_id, None):
            self.healthy = False


class Beat:
    """HeartbeatThread, before anybody wrapped it."""

    def __init__(self, instance_id: int | None) -> None:
        self._instance_id = instance_id
        self._health_event = threading.Event()

    def _execute(self) -> None:
        """The server's word is what a test has set."""


def module() -> Any:
    """A fresh module with fresh classes: wrapping changes them in place."""

    def fresh(name: str, template: type) -> type:
        own = {key: value for key, value in vars(template).items() if key not in ("__dict__", "__weakref__")}
        return type(name, (), own)

    return SimpleNamespace(
        LMCacheMPWorkerAdapter=fresh("LMCacheMPWorkerAdapter", WorkerTemplate),
        LMCacheMPSchedulerAdapter=fresh("LMCacheMPSchedulerAdapter", SchedulerTemplate),
        HeartbeatThread=fresh("HeartbeatThread", Beat),
        create_transfer_context=lambda: SimpleNamespace(),
        __name__="adapter",
    )
