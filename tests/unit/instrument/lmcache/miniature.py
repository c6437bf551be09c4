"""LMCache inside the engine in miniature: its generators, its storage, its objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from kvtrace.instrument.lmcache.inprocess import engine, layerwise, prefetching, storage

if TYPE_CHECKING:
    from collections.abc import Generator

LAYERS, CHUNK, WIDTH = 2, 4, 10


class Mask(list[int]):
    """As much of a tensor of truths as is looked at."""

    ndim = 1

    def sum(self) -> int:
        return sum(self)


class Piece:
    """An object of LMCache: one layer of some tokens."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def get_size(self) -> int:
        return self.tokens * WIDTH


class StorageManager:
    """Keeps keys; `room` is how many chunks fit."""

    async_lookup_server: Any = None
    room = 100

    def __init__(self) -> None:
        self.keys: set[int] = set()

    def contains(self, key: int) -> str | None:
        return "LocalCPUBackend" if key in self.keys else None

    def batched_allocate(self) -> object:
        self.room -= 1
        return None if self.room < 0 else object()

    def allocate(self) -> None: ...
    def batched_get(self) -> None: ...
    def batched_put(self, keys: Any, memory_objs: Any) -> None: ...

    async def async_lookup_and_prefetch(self, lookup_id: str) -> None:
        if lookup_id == "bad":
            raise ValueError

    def prefetch_all_done_callback(self, task: Any, lookup_id: str) -> None:
        raise RuntimeError(task, lookup_id)


class LMCacheEngine:
    """Two layers a chunk."""

    num_layers = LAYERS
    healthy = True
    manager: type = StorageManager
    config = SimpleNamespace(chunk_size=CHUNK)
    metadata = SimpleNamespace(kv_dtype=SimpleNamespace(itemsize=1))
    gpu_connector = SimpleNamespace(get_shape=lambda n: SimpleNamespace(numel=lambda: n * WIDTH))

    def __init__(self) -> None:
        self.storage_manager = self.manager()

    def is_healthy(self) -> bool:
        return self.healthy

    def store_layer(self, tokens: Any, **_: Any) -> Generator[None, None, None]:
        if not self.healthy:
            return
        chunks = []
        for start in range(0, len(tokens), CHUNK):
            if self.storage_manager.contains(tokens[start]):
                continue
            if self.storage_manager.batched_allocate() is None:
                break
            chunks.append(tokens[start : start + CHUNK])
        for _layer in range(LAYERS):
            yield
            if chunks:
                self.storage_manager.batched_put(chunks, [Piece(len(each)) for each in chunks])
        yield

    def retrieve_layer(self, tokens: Any, got: int = 0, **_: Any) -> Generator[Any, None, None]:
        yield 3
        if got < 0:
            raise OSError("engine")
        yield Mask([1] * got + [0] * (len(tokens) - got))

    def async_lookup_and_prefetch(self, lookup_id: str, tokens: Any) -> None:
        if tokens is None:
            raise ValueError(lookup_id)

    def lookup(self) -> None: ...
    def lookup_unpin(self) -> None: ...
    def retrieve(self) -> None: ...
    def store(self) -> None: ...
    def _async_process_tokens_internal(self) -> None: ...


def cache() -> Any:
    """An engine, wrapped: of classes of its own, for wrapping changes them in place."""
    manager = type("StorageManager", (StorageManager,), {})
    owner = type("LMCacheEngine", (LMCacheEngine,), {"manager": manager})
    module: Any = SimpleNamespace(LMCacheEngine=owner, StorageManager=manager)
    for install in (engine.install, layerwise.install, prefetching.install):
        install(module)
    storage.install(module)
    prefetching.install_storage(module)
    return owner()
