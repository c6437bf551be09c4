"""LMCache's engine as a program of its own: real lookups, pins, retrieves, stores and tiers, no vLLM, no GPU.

`python lmcache_engine_script.py DISK`: its copies are memory to memory, made by a connector of this file.
Prints one JSON line of what the caller saw.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from kvtrace.instrument.lmcache import inprocess

inprocess.arm()  # as kvtrace's plugin does in vLLM

import torch  # noqa: E402 - what it imports is wrapped
from lmcache.v1.cache_engine import LMCacheEngineBuilder  # noqa: E402
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402
from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface  # noqa: E402
from lmcache.v1.metadata import LMCacheMetadata  # noqa: E402

CHUNK = 256
SHAPE = (2, 2, CHUNK, 2, 16)


class Memory(GPUConnectorInterface):
    """Copies between LMCache's objects and one tensor that stands for the GPU's cache."""

    def __init__(self) -> None:
        self.cache = torch.arange(2 * 2 * 4096 * 32, dtype=torch.float32).reshape(2, 2, 4096, 32)

    def to_gpu(self, memory_obj: Any, start: int, end: int, **_: Any) -> None:
        self.cache[:, :, start:end] = memory_obj.tensor.reshape(2, 2, end - start, 32)

    def from_gpu(self, memory_obj: Any, start: int, end: int, **_: Any) -> None:
        memory_obj.tensor.copy_(self.cache[:, :, start:end].reshape(memory_obj.tensor.shape))

    def batched_to_gpu(self, memory_objs: Any = None, starts: Any = None, ends: Any = None, **_: Any) -> None:
        for each, start, end in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(each, start, end)

    def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **_: Any) -> None:
        for each, start, end in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(each, start, end)

    def get_shape(self, num_tokens: int) -> torch.Size:
        return torch.Size((2, 2, num_tokens, 32))


def engine(disk: str) -> Any:
    """An LMCache with room for seven chunks in host memory and a disk below it."""
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK, local_cpu=True, max_local_cpu_size=0.002, local_disk=disk, max_local_disk_size=1.0
    )
    metadata = LMCacheMetadata(
        model_name="tiny", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0,
        kv_dtype=torch.float32, kv_shape=SHAPE,
    )  # fmt: skip
    found = LMCacheEngineBuilder.get_or_create(
        "kvtrace", config, metadata, Memory(), lambda *_: None, lambda value, *_: value
    )
    found.post_init()
    return found


def main() -> None:
    own = engine(sys.argv[1])
    first = torch.arange(1024)
    own.store(first, mask=torch.ones(1024, dtype=torch.bool), req_id="a")
    time.sleep(1.0)
    found = own.lookup(first, lookup_id="b", pin=True)
    got = int(own.retrieve(first, torch.ones(1024, dtype=torch.bool), req_id="b").sum())
    own.lookup_unpin("b")
    missed = own.lookup(torch.arange(5000, 6024), lookup_id="c", pin=True)
    own.set_hot_cache(False)
    own.storage_manager.clear(["LocalCPUBackend"])
    below = own.lookup(first, lookup_id="d", pin=True)
    loaded = int(own.retrieve(first, torch.ones(1024, dtype=torch.bool), req_id="d").sum())
    own.lookup_unpin("d")
    print(json.dumps({"found": found, "got": got, "missed": missed, "below": below, "loaded": loaded}))
    own.close()


if __name__ == "__main__":
    main()
