"""LMCache's engine as in lmcache_engine_script.py, layer by layer, and with lookups that are sent ahead.

`python lmcache_later_script.py layers|ahead|waited DISK`. Prints one JSON line of what the caller saw.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

os.environ["VLLM_RPC_BASE_PATH"] = sys.argv[2]  # where the lookup server listens

import torch
from kvtrace import recorder
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector.gpu_connectors import SGLangLayerwiseGPUConnector
from lmcache.v1.lookup_client.factory import LookupClientFactory
from lmcache.v1.metadata import LMCacheMetadata
from lmcache_engine_script import CHUNK, SHAPE, Memory  # first: it arms what is imported below

LAYERS = SHAPE[0]


class Layers(SGLangLayerwiseGPUConnector):
    """Copies layer by layer between LMCache's objects and one tensor; of LMCache's class as it demands."""

    def __init__(self) -> None:
        self.cache = torch.arange(LAYERS * 4096 * 64, dtype=torch.float32).reshape(LAYERS, 4096, 2, 32)

    def batched_to_gpu(self, starts: Any, ends: Any, **_: Any) -> Any:
        for layer in range(LAYERS):
            objects = yield
            for each, start, end in zip(objects, starts, ends, strict=True):
                self.cache[layer, start:end] = each.tensor
        yield
        yield

    def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **_: Any) -> Any:
        for layer in range(LAYERS):
            yield
            for each, start, end in zip(memory_objs[layer], starts, ends, strict=True):
                each.tensor.copy_(self.cache[layer, start:end])
        yield

    def get_shape(self, num_tokens: int) -> torch.Size:
        return torch.Size((num_tokens, 2, 32))


def build(disk: str, connector: Any, **options: Any) -> tuple[Any, Any]:
    """Engine, and the client of its lookup server."""
    config = LMCacheEngineConfig.from_defaults(
        chunk_size=CHUNK, local_cpu=True, max_local_cpu_size=0.01, local_disk=disk, max_local_disk_size=1.0,
        **options,
    )  # fmt: skip
    metadata = LMCacheMetadata(
        model_name="tiny", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0,
        kv_dtype=torch.float32, kv_shape=SHAPE, engine_id="e",
    )  # fmt: skip
    own = LMCacheEngineBuilder.get_or_create(
        "kvtrace", config, metadata, connector, lambda *_: None, lambda value, *_: value
    )
    server = LookupClientFactory.create_lookup_server(own, metadata)
    own.post_init(async_lookup_server=server)
    return own, LookupClientFactory.create_lookup_client(config, metadata, own)


def written(own: Any) -> int:
    """Keys that the disk has."""
    return len(own.storage_manager.storage_backends["LocalDiskBackend"].dict)


def until(true: Any) -> None:
    """Wait, not for ever."""
    for _ in range(600):
        if true():
            return
        time.sleep(0.05)
    raise TimeoutError


def turns(*generators: Any, steps: int = LAYERS + 1) -> None:
    """A step of each in turn, as vLLM's adapter makes them, and never one more than it makes."""
    for _ in range(steps):
        for each in generators:
            next(each)


def retrieved(own: Any, tokens: Any, **options: Any) -> int:
    """Steps until the mask is given, as in vLLM's adapter: two at once, then one a layer."""
    found = own.retrieve_layer(tokens, torch.ones(len(tokens), dtype=torch.bool), sync=True, **options)
    items = [next(found) for _ in range(LAYERS + 2)]
    return int(items[-1].sum())


def layers(disk: str) -> dict[str, Any]:
    """Stores that take turns, one that finds all there, one that breaks off; retrieves of both tiers."""
    connector = Layers()
    own, _ = build(disk, connector, use_layerwise=True, save_unfull_chunk=True)
    first, second = torch.arange(1024), torch.arange(2000, 2512)
    turns(own.store_layer(first, req_id="a"), own.store_layer(second, req_id="e"))
    turns(own.store_layer(first, req_id="again"))
    turns(own.store_layer(torch.arange(1100), req_id="more"))
    broken = own.store_layer(torch.arange(7000, 7512), req_id="f")
    next(broken)
    next(broken)
    broken.close()
    until(lambda: written(own) >= 16)  # two layers of four chunks, of two, of one, and one layer of two
    seen: dict[str, Any] = {"found": own.lookup(first, lookup_id="b", pin=True)}
    before = connector.cache[:, :1024].clone()
    connector.cache.zero_()
    seen["got"] = retrieved(own, first, req_id="b")
    seen["same"] = bool((connector.cache[:, :1024] == before).all())
    own.lookup_unpin("b")
    try:
        retrieved(own, torch.arange(5000, 6024), req_id="c")
    except Exception as error:  # noqa: BLE001 - LMCache 0.5.5 ends so when it finds nothing
        seen["nothing"] = type(error).__name__
    own.set_hot_cache(False)
    own.storage_manager.clear(["LocalCPUBackend"])
    seen["below"] = retrieved(own, first)
    own.close()
    return seen


def ahead(disk: str) -> dict[str, Any]:
    """Lookups of the asynchronous client: found in host memory, nowhere, on the disk, and cancelled."""
    own, client = build(disk, Memory(), enable_async_loading=True, lookup_timeout_ms=60_000)
    first = torch.arange(1024)
    own.store(first, req_id="a")
    until(lambda: written(own) == 4)
    seen = {"b": asked(client, first, "b"), "c": asked(client, torch.arange(5000, 6024), "c")}
    seen["got"] = int(own.retrieve(first, req_id="b").sum())
    own.set_hot_cache(False)
    own.storage_manager.clear(["LocalCPUBackend"])
    seen["d"] = asked(client, first, "d")
    seen["loaded"] = int(own.retrieve(first, req_id="d").sum())
    client.lookup_cache("x")
    client.lookup(first, "x")
    client.cancel_lookup("x")
    until(lambda: client.reqs_status["x"] is not None)
    own.close()
    return seen


def asked(client: Any, tokens: Any, lookup_id: str) -> int:
    """As vLLM's adapter: a first look, the question, then a poll a step until there is an answer."""
    found = client.lookup_cache(lookup_id)
    assert found == -1
    found = client.lookup(tokens, lookup_id)
    while found is None:
        found = client.lookup_cache(lookup_id)
    return int(found)


def waited(disk: str) -> dict[str, Any]:
    """Lookups of the client that waits: found, nowhere, and one that is shorter than a chunk."""
    own, client = build(disk, Memory(), save_unfull_chunk=False)
    first = torch.arange(1024)
    own.store(first, req_id="a")
    seen = {
        "b": client.lookup(first, "b"),
        "c": client.lookup(torch.arange(5000, 6024), "c"),
        "s": client.lookup(first[:100], "s"),
    }
    own.lookup_unpin("b")
    own.close()
    return seen


def main() -> int:
    """The exit code; threads of LMCache outlive an error, and its sockets may not end while threads read."""
    try:
        print(json.dumps({"layers": layers, "ahead": ahead, "waited": waited}[sys.argv[1]](sys.argv[2])))
    except Exception:  # noqa: BLE001 - said, and told by the exit code
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    recorder.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
