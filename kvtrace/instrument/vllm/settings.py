"""Which settings of vLLM change what a recording means, without a path or a secret of the machine?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

SETTINGS = {
    "model": "model_config.model",
    "revision": "model_config.revision",
    "dtype": "model_config.dtype",
    "quantization": "model_config.quantization",
    "max_model_len": "model_config.max_model_len",
    "runner": "model_config.runner_type",
    "enforce_eager": "model_config.enforce_eager",
    "block_size": "cache_config.block_size",
    "num_gpu_blocks": "cache_config.num_gpu_blocks",
    "kv_cache_dtype": "cache_config.cache_dtype",
    "kv_cache_layout": "cache_config.kv_cache_layout",
    "prefix_caching": "cache_config.enable_prefix_caching",
    "hash_algorithm": "cache_config.prefix_caching_hash_algo",
    "sliding_window": "cache_config.sliding_window",
    "max_num_seqs": "scheduler_config.max_num_seqs",
    "max_num_batched_tokens": "scheduler_config.max_num_batched_tokens",
    "chunked_prefill": "scheduler_config.enable_chunked_prefill",
    "scheduling_policy": "scheduler_config.policy",
    "async_scheduling": "scheduler_config.async_scheduling",
    "hybrid_cache_disabled": "scheduler_config.disable_hybrid_kv_cache_manager",
    "watermark": "scheduler_config.watermark",
    "tensor_parallel_size": "parallel_config.tensor_parallel_size",
    "pipeline_parallel_size": "parallel_config.pipeline_parallel_size",
    "data_parallel_size": "parallel_config.data_parallel_size",
    "executor": "parallel_config.distributed_executor_backend",
    "worker": "parallel_config.worker_cls",
    "speculative_method": "speculative_config.method",
    "speculative_tokens": "speculative_config.num_speculative_tokens",
    "kv_connector": "kv_transfer_config.kv_connector",
    "kv_role": "kv_transfer_config.kv_role",
    "load_failure_policy": "kv_transfer_config.kv_load_failure_policy",
    "kv_events": "kv_events_config.enable_kv_cache_events",
    "kv_events_publisher": "kv_events_config.publisher",
}
"""Our name of a setting -> where VllmConfig holds it."""
EXTRA = "kv_transfer_config.kv_connector_extra_config"
SECRET = re.compile(
    r"(?i)token(?!s)|secret|passw|credential|auth|cookie|private|(?<!key_)(api|access)_?key|(^|[._])key$"
)
PLACE = re.compile(r"""(^|[\s"'=,;\[({])(/|~|\\\\|\.\.?/|[A-Za-z]:[\\/])|(^|\W)(file|ipc|unix):""")
URL = re.compile(r"([a-z][a-z0-9+.-]*://)([^/\s]*@)?([^/\s?#]*)\S*")
LONGEST = 200


def at(owner: Any, path: str) -> Any:
    """A value some attributes down; None where one of them is not there."""
    for name in path.split("."):
        owner = owner.get(name) if isinstance(owner, dict) else getattr(owner, name, None)
    return owner


def settings(config: Any) -> dict[str, str]:
    """What `run.json` says of this engine; what is not set is left out."""
    found = {name: said(at(config, path)) for name, path in SETTINGS.items()}
    found["model"] = model_name(config)
    found.update(_flat("kv_connector", at(config, EXTRA) or {}))
    return {name: text for name, text in found.items() if text is not None}


def model_name(config: Any) -> str:
    """The model as it was asked for; of a folder of this machine its last part."""
    name = str(at(config, "model_config.model"))
    return name.rstrip("/").rpartition("/")[2] if PLACE.search(name) else name


def said(value: Any) -> str | None:
    """A value as text; None for what is not set, is no plain value, or names a place of this machine."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    text = value if isinstance(value, str) else _named(value)
    if not text or PLACE.search(text):
        return None
    return URL.sub(r"\1\3", text)[:LONGEST]


def _named(value: Any) -> str | None:
    """Of a class its name, of torch's dtypes their word, of enumerations their value."""
    if isinstance(value, type):
        return value.__qualname__
    text = str(value) if type(value).__name__ == "dtype" else getattr(value, "value", None)
    return text.removeprefix("torch.") if isinstance(text, str) else None


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str | None]]:
    """The connector's own settings, children of a connector of several included, by dotted names."""
    if isinstance(value, dict):
        inside = [(str(name), each) for name, each in value.items() if not SECRET.search(str(name))]
    elif isinstance(value, (list, tuple)):
        inside = [(str(number), each) for number, each in enumerate(value)]
    else:
        yield prefix, said(value)
        return
    for name, each in inside:
        yield from _flat(f"{prefix}.{name}", each)
