"""A worker's side of LMCache's client: what becomes of every store and retrieve that it is told to make?

    submit_*_request   asked: a row opens | the server is held for dead: a drop, or a load that failed
    get_finished       its future is done: the row closes | the client gives up: closed as given up

`store_futures` has one place a request: a second store of a request takes the place of the first, whose end
the client never looks at again. We keep the future and close the row when the server's reply is in
(`attributes.end` = reply, `attributes.overwritten`); its device event is nobody's to wait for, then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.lmcache.client import moves as told
from kvtrace.instrument.lmcache.client.moves import Move, Moves
from kvtrace.instrument.vllm.carrier import step_of
from kvtrace.instrument.wrapping import SKIP, after, around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_MOST = 100_000
_MODES = {
    "LMCacheDrivenTransferContext": "lmcache_driven",
    "EngineDrivenTransferContext": "engine_driven",
    "AsyncEngineDrivenTransferContext": "engine_driven_async",
}


def install(module: ModuleType) -> None:
    """Wrap the worker's adapter."""
    owner = module.LMCacheMPWorkerAdapter
    around(owner, "submit_store_request", _store_asked, _store_submitted, _broke)
    around(owner, "submit_retrieve_request", _load_asked, _load_submitted, _broke)
    around(owner, "get_finished", _nothing, _finished)
    after(module, "create_transfer_context", _context_made)
    if hasattr(owner, "get_finished_with_lazy_offload"):
        around(owner, "get_finished_with_lazy_offload", _nothing, _finished)


def instrument(connector: type) -> None:
    """Have the adapter of this connector class know to which admission of a request a load belongs."""
    around(connector, "start_load_kv", _step_begins, _nothing)


def _step_begins(connector: Any, *_: Any, **__: Any) -> Any:
    adapter = vars(connector).get("worker_adapter")
    carried = None if adapter is None else step_of(connector)
    if carried is not None and carried["loads"]:
        told.of(adapter).attempts = dict(zip(carried["loads"], carried["attempts"], strict=True))
    return SKIP


def _context_made(context: Any, *_: Any, **__: Any) -> None:
    """Who copies: LMCache's server, or the worker itself."""
    kind = type(context).__name__
    recorder.describe(attributes={"lmcache.transfer_mode": _MODES.get(kind, kind)})


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _store_asked(adapter: Any, request_id: str, op: Any, *_: Any, **__: Any) -> Any:
    """Before a store: nothing to see where this rank stores nothing."""
    if not getattr(adapter, "is_kv_writer", True):
        return SKIP
    return _asked(adapter, request_id, op, is_load=False)


def _load_asked(adapter: Any, request_id: str, op: Any, *_: Any, **__: Any) -> Any:
    return _asked(adapter, request_id, op, is_load=True)


def _asked(adapter: Any, request_id: str, op: Any, *, is_load: bool) -> tuple[Moves, Move, Any]:
    moves = told.of(adapter)
    move = Move(request_id, op, is_load=is_load, engine_id=moves.engine_id)
    before = _held(adapter, move)
    if is_load or adapter.is_healthy:
        told.opened(moves, move, op)
    return moves, move, before


def _store_submitted(
    token: tuple[Moves, Move, Any], _result: Any, adapter: Any, _request_id: str, op: Any, *_: Any, **__: Any
) -> None:
    moves, move, before = token
    move.future = _held(adapter, move)
    if move.future is None or move.future is before:
        if move.transfer_id:  # the server was given up between our look and the client's
            told.closed(move, "skipped", "unhealthy", "given_up")
        else:
            told.dropped(moves, move, op)
        return
    if not move.transfer_id:
        told.opened(moves, move, op)
    for earlier in moves.running:
        if earlier.future is before and before is not None:
            earlier.overwritten = True
    _keep(moves, move)


def _load_submitted(token: tuple[Moves, Move, Any], _result: Any, adapter: Any, *_: Any, **__: Any) -> None:
    """One that was not asked for has no future; the client reports it with the next that end."""
    moves, move, before = token
    future = _held(adapter, move)
    move.future = None if future is before else future
    if move.future is None:
        move.reason = "unhealthy"
    _keep(moves, move)


def _broke(token: tuple[Moves, Move, Any], error: BaseException, *_: Any, **__: Any) -> None:
    """The engine's own error; LMCache's timeouts are TimeoutErrors."""
    move = token[1]
    if move.transfer_id:
        outcome, reason = ("timeout", "timeout") if isinstance(error, TimeoutError) else ("failed", "unknown")
        told.closed(move, outcome, move.reason or reason, "error")


def _keep(moves: Moves, move: Move) -> None:
    if len(moves.running) < _MOST:
        moves.running.append(move)
    else:
        recorder.lost("dropped", detail="moves of LMCache's client under way")


def _held(adapter: Any, move: Move) -> Any:
    """The future that the client's books have for this request."""
    books = adapter.retrieve_futures if move.is_load else adapter.store_futures
    found = books.get(move.request_id)
    return found[0] if isinstance(found, tuple) else found


def _finished(_token: None, _result: Any, adapter: Any, *_: Any, **__: Any) -> None:
    """The client has looked at its futures: those that left its books are over."""
    moves: Moves | None = vars(adapter).get("_kvtrace_moves")
    if moves is None or not moves.running:
        return
    unhealthy = not adapter.is_healthy
    moves.running = [move for move in moves.running if not _over(adapter, move, unhealthy=unhealthy)]


def _over(adapter: Any, move: Move, *, unhealthy: bool) -> bool:
    if move.future is None:  # a load that was never asked for
        if move.request_id in adapter._dropped_retrieves:  # noqa: SLF001 - no public way
            return False
        told.closed(move, "failed", move.reason, "given_up")
    elif move.overwritten:
        replied, result = _reply(move.future)
        if not replied and not unhealthy:
            return False
        _close(move, "reply" if replied else "given_up", done=replied, result=result)
    elif _held(adapter, move) is move.future:
        return False
    else:
        done, result = _done(move.future)
        _close(move, "report" if done else "given_up", done=done, result=result)
    return True


def _close(move: Move, seen: str, *, done: bool, result: Any) -> None:
    if done:
        told.closed(move, "ok" if result else "failed", None if result else move.reason or "unknown", seen)
    else:
        told.closed(move, "failed" if move.is_load else "cancelled", "unhealthy", seen)


def _done(future: Any) -> tuple[bool, Any]:
    """Whether the client saw it done, and with which result; nothing is asked of a device."""
    done = getattr(future, "_raw_response_processed", None)
    if done is None:
        done = future.is_done_.is_set()
    return bool(done), getattr(future, "result_", None)


def _reply(future: Any) -> tuple[bool, Any]:
    """The same of a future that nobody looks at: the server's reply is in, whatever the device does."""
    raw = getattr(future, "raw_future_", None)
    if raw is None:
        return _done(future)
    replied = bool(raw.is_done_.is_set())
    found = raw.result_ if replied else None
    return replied, found[1] if isinstance(found, (tuple, list)) and len(found) > 1 else found
