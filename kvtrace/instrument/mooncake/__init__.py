"""Mooncake's Python bindings, seen from the process that calls them: the store and the transfer engine.

    codes.py    what a return code means: failures are codes here, never exceptions
    calls.py    which method takes which keys and sizes, and how its answer is read
    places.py   on which medium a key lies, where the program asked
    store.py    a call of the store -> a row, and one block row a key
    engine.py   a transfer of the engine, also one that is polled -> a row

Under `kvtrace run` the first import of `mooncake` arms us. A script without it calls `install()`, before or
after its imports, or `wrap(store)`. Seen on mooncake-transfer-engine-non-cuda 0.3.13.post1, loopback TCP.

What the bindings do not say is null or "unknown": which replica answered a get (`peer` stands for the memory
of the cluster, this machine's own segment included, unless the program asked where its keys lie), whether a
pointer is GPU memory once CUDA is in the process, why `get` and `get_batch` came back empty (the `*_into`
methods say it), and whether a put whose key existed, which returns 0 like any other, moved anything.
`async_store` makes its calls on other threads, where the caller's scope is not seen. Methods for tensors are
not wrapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kvtrace import recorder
from kvtrace.instrument import importing, wrapping

if TYPE_CHECKING:
    from types import ModuleType

T = TypeVar("T")
STATE = (
    "runs on CPU here",
    "store and transfer engine of 0.3.13.post1 over loopback TCP; by source only over RDMA",
)
"""What doctor says: how far this was seen to work."""


def install() -> None:
    """Wrap Mooncake's classes now, or when they are imported. Idle without a recording; never raises."""
    if not recorder.enabled():
        return
    importing.when_imported("mooncake.store", "Mooncake's store", _store)
    importing.when_imported("mooncake.engine", "Mooncake's transfer engine", _engine)


def wrap(client: T) -> T:
    """Wrap the class of a store or a transfer engine that was made elsewhere; gives it back."""
    if recorder.enabled():
        from kvtrace.instrument.mooncake import engine, store

        kind = type(client)
        (engine if hasattr(kind, "batch_transfer_sync_read") else store).instrument(kind)
        _describe()
    return client


def _store(module: ModuleType) -> None:
    from kvtrace.instrument.mooncake import store

    store.instrument(module.MooncakeDistributedStore)
    _describe()


def _engine(module: ModuleType) -> None:
    from kvtrace.instrument.mooncake import engine

    engine.instrument(module.TransferEngine)
    _describe()


def _describe() -> None:
    recorder.describe(instruments=dict(wrapping.status()))
