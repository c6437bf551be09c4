"""Lazy offload: what waits in the scheduler to be stored, when is it drained, and what was stale by then?

    add(meta)            pop_items_for_offload          _process_lazy_offload_store_requests    all ranks done
      queued ──────────────► drained: their GPU blocks are still theirs ──► submitted ────────────► complete
                                   a block was reused ──► stale: it and all later parts of its request drop

`lmcache_lazy_queue`, op null, is a part's time in the queue: one that never ends was never stored, the queue
lives as long as the engine. The scheduler's view of a store, from the drain to the report of all ranks, is a
row around the copies that others see; its queued_ns is theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.lmcache.client.moves import COMPONENT, blocks
from kvtrace.instrument.wrapping import after, around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_QUEUED = recorder.shape(
    "span", ("span_id", "request_id", "start_ns", "tokens", "blocks", "attributes.range"), part="open",
    name="lmcache_lazy_queue", component=COMPONENT, observer="scheduler", evidence="shim",
    attribution="request",
)  # fmt: skip
_LEFT = recorder.shape("span", ("span_id", "end_ns", "outcome", "attributes.fate"), part="close")
_STORE = recorder.shape(
    "span",
    ("span_id", "request_id", "transfer_id", "queued_ns", "submit_ns", "start_ns", "tokens", "blocks",
     "attributes.parts"),
    part="open", name="lmcache_lazy_store", op="store", tier_from="gpu", tier_to="host", component=COMPONENT,
    observer="scheduler", evidence="shim", attribution="request",
)  # fmt: skip
_STORED = recorder.shape("span", ("span_id", "end_ns"), part="close", outcome="ok")
_STALE = recorder.shape(
    "span",
    ("request_id", "queued_ns", "submit_ns", "start_ns", "end_ns", "tokens", "blocks", "attributes.parts"),
    name="lmcache_lazy_store", op="drop", reason="stale", outcome="skipped", tier_from="gpu", tier_to="host",
    component=COMPONENT, observer="scheduler", evidence="shim", attribution="request",
)  # fmt: skip


class Part:
    """One part of a request that was queued."""

    __slots__ = ("blocks", "queued_ns", "span_id", "tokens")

    def __init__(self, meta: Any) -> None:
        self.queued_ns = recorder.now()
        self.span_id = recorder.next_id()
        self.tokens = int(meta.op.end) - int(meta.op.start)
        self.blocks = blocks(meta.op)


class Queue:
    """Of one pending store: the parts that wait, those being drained, and the stores that go on."""

    __slots__ = ("drained", "parts", "stores")

    def __init__(self) -> None:
        self.parts: dict[int, Part] = {}  # id of the queued object, which the engine keeps
        self.drained: list[Any] = []
        self.stores: dict[str, int] = {}  # request -> span of its store


def install(module: ModuleType) -> None:
    """Wrap the queue."""
    owner = module.LazyOffloadPendingStore
    after(owner, "add", _added)
    after(owner, "pop_items_for_offload", _popped)
    after(owner, "remove_request_gpu_block_ids", _complete)


def instrument(connector: type) -> None:
    """Wrap where this connector class drains it, if it does."""
    if hasattr(connector, "_process_lazy_offload_store_requests"):
        around(connector, "_process_lazy_offload_store_requests", _before, _processed)


def _of(pending: Any) -> Queue:
    found: Queue | None = vars(pending).get("_kvtrace_queue")
    if found is None:
        found = pending._kvtrace_queue = Queue()  # noqa: SLF001 - ours, on an object of the engine
    return found


def _added(_result: Any, pending: Any, meta: Any, *_: Any, **__: Any) -> None:
    part = _of(pending).parts[id(meta)] = Part(meta)
    where = f"{meta.op.start}-{meta.op.end}"
    recorder.record((
        _QUEUED, part.span_id, meta.request_id, part.queued_ns, part.tokens, part.blocks, where
    ))  # fmt: skip


def _popped(items: Any, pending: Any, *_: Any, **__: Any) -> None:
    if items:
        _of(pending).drained = list(items)


def _before(*_: Any, **__: Any) -> None:
    return None


def _processed(_token: None, _result: Any, connector: Any, metadata: Any, *_: Any, **__: Any) -> None:
    """What was drained is in the step's metadata, or had gone stale."""
    pending = vars(connector).get("_pending_store")
    queue = None if pending is None else _of(pending)
    if queue is None or not queue.drained:
        return
    drained, queue.drained = queue.drained, []
    sent = {id(meta) for meta in metadata.requests}
    now = recorder.now()
    for item in drained:
        kept: list[Part] = []
        stale: list[Part] = []
        for meta, _hashes in item.metadatas:
            part = queue.parts.pop(id(meta), None)
            if part is None:
                continue
            (kept if id(meta) in sent else stale).append(part)
            fate = ("ok", "drained") if id(meta) in sent else ("skipped", "stale")
            recorder.record((_LEFT, part.span_id, now, *fate))
        if kept:
            _store(queue, item.request_id, kept, now)
        if stale:
            recorder.record((_STALE, item.request_id, stale[0].queued_ns, now, now, now, *_sum(stale)))


def _store(queue: Queue, request_id: str, parts: list[Part], now: int) -> None:
    span_id = queue.stores[request_id] = recorder.next_id()
    recorder.record((
        _STORE, span_id, request_id, f"{request_id}/lazy", parts[0].queued_ns, now, now, *_sum(parts)
    ))  # fmt: skip


def _sum(parts: list[Part]) -> tuple[int, int | None, int]:
    counted = [part.blocks for part in parts if part.blocks is not None]
    tokens = sum([part.tokens for part in parts])
    return tokens, sum(counted) if len(counted) == len(parts) else None, len(parts)


def _complete(_result: Any, pending: Any, req_id: str, *_: Any, **__: Any) -> None:
    """Every rank has reported the request, as the engine counts."""
    span_id = _of(pending).stores.pop(req_id, None)
    if span_id is not None:
        recorder.record((_STORED, span_id, recorder.now()))
