"""Engine-driven transfers: the worker itself copies between its KV cache and LMCache's memory.

    store      prepare_store   gather   (synchronise)  commit_store        prepare: which chunks are missing
    retrieve   prepare_retrieve   scatter   (synchronise)  commit_retrieve
                               |------- the copy ------|

LMCache commits when the device is done, so the copy ends where the commit begins. All of one transfer runs in
one thread, the worker's or one of the context's own. Its row is the worker's and shares the transfer_id of
the client's; bytes are those of the chunks, less what a retrieve skips. LMCache's server sees no such copy.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import scope
from kvtrace.instrument.lmcache.client import moves as told
from kvtrace.instrument.vllm import configuration
from kvtrace.instrument.wrapping import SKIP, around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_COLUMNS = (
    "request_id", "transfer_id", "submit_ns", "start_ns", "end_ns", "tokens", "bytes", "rank", "outcome",
    "reason", "attributes.engine_id", "attributes.chunks", "attributes.memory",
)  # fmt: skip
_STORE = recorder.shape(
    "span", _COLUMNS, name="lmcache_gather", op="store", tier_from="gpu", tier_to="host",
    component=told.COMPONENT, observer="worker", evidence="shim", attribution="request", clock="host",
)  # fmt: skip
_LOAD = recorder.shape(
    "span", _COLUMNS, name="lmcache_scatter", op="load", tier_from="host", tier_to="gpu", purpose="reuse",
    component=told.COMPONENT, observer="worker", evidence="shim", attribution="request", clock="host",
)  # fmt: skip


class Copy:
    """The transfer of this thread, between its prepare and its commit."""

    __slots__ = ("broke", "bytes", "chunks", "end_ns", "key", "move", "scope", "start_ns", "tokens")

    def __init__(self, key: Any, move: told.Move | None) -> None:
        self.key = key
        self.move = move
        self.start_ns: int | None = None
        self.end_ns = 0
        self.bytes: int | None = None
        self.tokens: int | None = None
        self.chunks: int | None = None
        self.broke = False
        self.scope: Any = None


class _Here(threading.local):
    copy: Copy | None = None


_here = _Here()


def install(module: ModuleType) -> None:
    """Wrap what a module of LMCache's transfer contexts has of it."""
    if hasattr(module, "gather_paged_kv_to_cpu"):
        around(module, "gather_paged_kv_to_cpu", _begins, _gathered, _copy_broke)
    if hasattr(module, "scatter_cpu_to_paged_kv"):
        around(module, "scatter_cpu_to_paged_kv", _begins, _scattered, _copy_broke)
    for name in ("EngineDrivenContextShm", "EngineDrivenContextPickle"):
        owner = vars(module).get(name)
        if owner is not None:
            around(owner, "prepare_store", _prepares, _store_prepared, _prepare_broke)
            around(owner, "prepare_retrieve", _prepares, _load_prepared, _prepare_broke)
            around(owner, "commit_store", _commits, _store_committed, _commit_broke)
            around(owner, "commit_retrieve", _commits, _load_committed, _commit_broke)


def _prepares(*_: Any, **__: Any) -> int:
    _here.copy = None
    return recorder.now()


def _move(key: Any, *, is_load: bool) -> told.Move | None:
    return told.expected.get((is_load, key.request_id, int(key.start), int(key.end)))


def _store_prepared(_began: int, result: Any, _context: Any, key: Any, *_: Any, **__: Any) -> None:
    """No chunk is missing: there is nothing to copy, and no commit."""
    move = _move(key, is_load=False)
    if result is not None and not result[1]:
        if move is not None:
            move.duplicate = True
        return
    _here.copy = Copy(key, move)


def _load_prepared(began: int, result: Any, context: Any, key: Any, *_: Any, **__: Any) -> None:
    """None is a miss, or that nobody answered: LMCache does not tell these apart, the time does."""
    move = _move(key, is_load=True)
    if result is not None:
        _here.copy = Copy(key, move)
    elif move is not None:
        move.reason = "timeout" if _waited_all(context, began) else "not_found"


def _prepare_broke(_began: int, error: BaseException, _context: Any, key: Any, *_: Any, **__: Any) -> None:
    for is_load in (False, True):
        move = _move(key, is_load=is_load)
        if move is not None and isinstance(error, TimeoutError):
            move.reason = "timeout"


def _waited_all(context: Any, began_ns: int) -> bool:
    return recorder.now() - began_ns >= float(context.mq_timeout) * 1e9


def _begins(*_: Any, **__: Any) -> Any:
    """The copy begins; what of it a device records itself is no copy beside it."""
    copy = _here.copy
    if copy is None:
        return SKIP
    copy.scope = scope.enter(scope.COVERED)
    copy.start_ns = recorder.now()
    return copy


def _gathered(
    copy: Copy, chunks: Any, _caches: Any, block_ids: Any, blocks_per_chunk: int, *_: Any, **__: Any
) -> None:
    scope.leave(copy.scope)
    whole = len(block_ids) // blocks_per_chunk
    copy.chunks = len(chunks)
    copy.bytes = sum([int(chunk.nbytes) for chunk in chunks])
    copy.tokens = (int(copy.key.end) - int(copy.key.start)) * copy.chunks // whole if whole else None


def _scattered(
    copy: Copy, _result: Any, _caches: Any, _blocks: Any, chunks: Any, *_: Any,
    skip_first_n_tokens: int = 0, **__: Any,
) -> None:  # fmt: skip
    scope.leave(copy.scope)
    whole = int(copy.key.end) - int(copy.key.start)
    copy.chunks = len(chunks)
    copy.tokens = whole - skip_first_n_tokens
    copy.bytes = sum([int(chunk.nbytes) for chunk in chunks]) * copy.tokens // whole if whole else 0


def _copy_broke(copy: Copy, _error: BaseException, *_: Any, **__: Any) -> None:
    scope.leave(copy.scope)
    copy.broke = True


def _commits(*_: Any, **__: Any) -> Any:
    copy = _here.copy
    if copy is None or copy.start_ns is None:
        return SKIP
    copy.end_ns = recorder.now()
    return copy


def _store_committed(copy: Copy, result: Any, context: Any, *_: Any, **__: Any) -> None:
    if result:
        _tell(_STORE, copy, context, None)
    else:
        _tell(_STORE, copy, context, "timeout" if _waited_all(context, copy.end_ns) else "unknown")


def _load_committed(copy: Copy, _result: Any, context: Any, *_: Any, **__: Any) -> None:
    """What came is there, whatever the server says of giving its locks back."""
    _tell(_LOAD, copy, context, "unknown" if copy.broke else None)


def _commit_broke(copy: Copy, _error: BaseException, *_: Any, **__: Any) -> None:
    _here.copy = None
    if copy.move is not None:
        copy.move.reason = "unknown"


def _tell(shape: recorder.Shape, copy: Copy, context: Any, reason: str | None) -> None:
    _here.copy = None
    move = copy.move
    if move is not None and reason is not None:
        move.reason = reason
    transfer_id, submit_ns, engine_id = (
        (None, None, None) if move is None else (move.transfer_id, move.submit_ns, move.engine_id)
    )
    outcome = "ok" if reason is None else "timeout" if reason == "timeout" else "failed"
    recorder.record((
        shape, copy.key.request_id, transfer_id, submit_ns, copy.start_ns, copy.end_ns, copy.tokens,
        copy.bytes, configuration.here().rank, outcome, reason, engine_id, copy.chunks,
        "pickle" if type(context).__name__.endswith("Pickle") else "shared",
    ))  # fmt: skip
