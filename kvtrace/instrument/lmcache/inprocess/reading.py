"""What do LMCache's backends read for layerwise retrieves and for lookups that were sent ahead?

`batched_get_non_blocking(lookup_id, keys)` of a backend runs in the event loop of LMCache's storage; it is a
load from that backend's tier from when it was asked for. A layerwise retrieve asks once a layer and names no
request ("fake_lookup_id"): it is of the call whose step asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.later import awaited
from kvtrace.instrument.lmcache.inprocess import storage
from kvtrace.instrument.lmcache.inprocess.calls import Call, under

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

NAMELESS = "fake_lookup_id"
_OWN = "batched_get_non_blocking"


def install(module: ModuleType) -> None:
    """Wrap the backends that a module has of its own, each class where it has its own way to read."""
    for owner in list(vars(module).values()):
        if isinstance(owner, type) and owner.__module__ == module.__name__ and _OWN in vars(owner):
            awaited(owner, _OWN, _asked, _read, _failed)


def _asked(_backend: Any, lookup_id: str, *_: Any, **__: Any) -> tuple[int, Call]:
    return recorder.now(), under.call if lookup_id == NAMELESS else Call(lookup_id)


def _read(
    token: tuple[int, Call], found: Any, backend: Any, lookup_id: str, keys: Any, *_: Any, **__: Any
) -> None:
    del lookup_id
    start_ns, call = token
    there = [each for each in found or () if each is not None]
    moved = call.moves(there)
    storage.loaded(type(backend).__name__, call.request_id, start_ns, moved, len(keys), len(there))


def _failed(
    token: tuple[int, Call],
    _error: BaseException,
    backend: Any,
    lookup_id: str,
    keys: Any,
    *_: Any,
    **__: Any,
) -> None:
    del lookup_id
    start_ns, call = token
    storage.loaded(type(backend).__name__, call.request_id, start_ns, 0, len(keys), 0, "io")
