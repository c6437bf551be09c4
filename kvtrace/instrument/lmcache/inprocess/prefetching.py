"""What do lookups find that LMCache inside the engine sends ahead, and how long until they are answered?

    engine.async_lookup_and_prefetch      from here, in the thread of the lookup server
    storage: which tiers have it, then reads from each      loads of its request (reading.py)
    server.send_response_to_scheduler     to here: everything found is in host memory, the scheduler is told

The row's end is the answer sent, not when the scheduler reads it: inquiring.py has that. One whose search or
reads raised is never answered: `failed`, when that is seen. One that LMCache was not given a server for has
nobody to tell: `unknown`. What such a lookup keeps pinned until it is retrieved is not followed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.later import awaited
from kvtrace.instrument.lmcache.inprocess import rows
from kvtrace.instrument.wrapping import SKIP, around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_MOST = 100_000
_PLACE = "_kvtrace_lookups"


def install(module: ModuleType) -> None:
    """Wrap where a lookup is sent ahead."""
    around(module.LMCacheEngine, "async_lookup_and_prefetch", _sent, _nothing, _refused)


def install_storage(module: ModuleType) -> None:
    """Wrap where it can fail without an answer."""
    owner = module.StorageManager
    awaited(owner, "async_lookup_and_prefetch", _now, _searched, _lost)
    around(owner, "prefetch_all_done_callback", _now, _nothing, _broken)


def install_server(module: ModuleType) -> None:
    """Wrap where it is answered."""
    around(module.LMCacheAsyncLookupServer, "send_response_to_scheduler", _now, _answered)


def _now(*_: Any, **__: Any) -> int:
    return recorder.now()


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _sent(
    engine: Any,
    lookup_id: str,
    tokens: Any = None,
    hashes: Any = None,
    offsets: Any = None,
    *_: Any,
    **__: Any,
) -> object:
    """Before the call: its answer may be there before the call returns."""
    del hashes
    waiting = vars(engine.storage_manager).setdefault(_PLACE, {})
    if len(waiting) >= _MOST:
        recorder.lost("dropped", detail="lookups of LMCache sent ahead")
        return SKIP
    waiting.setdefault(lookup_id, []).append((recorder.now(), rows.length(tokens, offsets)))
    return None


def _refused(_token: None, _error: BaseException, engine: Any, lookup_id: str, *_: Any, **__: Any) -> None:
    _close(engine.storage_manager, lookup_id, None, "failed")


def _searched(_start_ns: int, _result: None, storage: Any, lookup_id: str, *_: Any, **__: Any) -> None:
    if storage.async_lookup_server is None:
        _close(storage, lookup_id, None, "unknown")


def _lost(_start_ns: int, _error: BaseException, storage: Any, lookup_id: str, *_: Any, **__: Any) -> None:
    _close(storage, lookup_id, None, "failed")


def _broken(
    _start_ns: int, _error: BaseException, storage: Any, _task: Any, lookup_id: str, *_: Any, **__: Any
) -> None:
    _close(storage, lookup_id, None, "failed")


def _answered(
    _start_ns: int, _result: None, server: Any, lookup_id: str, num_hit_tokens: int, *_: Any, **__: Any
) -> None:
    word = "ok" if num_hit_tokens else "miss"
    _close(server.lmcache_engine.storage_manager, lookup_id, num_hit_tokens, word)


def _close(storage: Any, lookup_id: str, found: int | None, outcome: str) -> None:
    """The first of that name that waits; none waits that was seen to fail before."""
    waiting = vars(storage).get(_PLACE, {})
    asked = waiting.get(lookup_id)
    if asked:
        start_ns, tokens = asked.pop(0)
        if not asked:
            del waiting[lookup_id]
        rows.looked_up(lookup_id, start_ns, recorder.now(), tokens, found, outcome)
