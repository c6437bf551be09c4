"""What is wrapped where, each part on its own: one that fails leaves the others standing.

Written for vLLM 0.32. Another version gets what is found, and one warning that names what is not.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from multiprocessing import current_process
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import importing, wrapping
from kvtrace.instrument.importing import when_imported
from kvtrace.instrument.lmcache import client, inprocess

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

KNOWN = ("0.32.",)
RANK = "KVTRACE_DP_RANK"
"""Data-parallel rank, from EngineCore to its workers: for dense models vLLM's configuration forgets it."""
SCHEDULER = "vllm.v1.core.sched.scheduler"
OFFLOADING = "vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker"
PARTS = (
    ("vllm.v1.engine.async_llm", "configuration of the API server", "configuration", "install_front_end"),
    (
        "vllm.v1.engine.llm_engine",
        "configuration of the offline engine",
        "configuration",
        "install_front_end",
    ),
    ("vllm.v1.engine.core", "configuration of EngineCore", "configuration", "install_core"),
    ("vllm.v1.worker.worker_base", "configuration of a worker", "configuration", "install_worker"),
    ("vllm.v1.engine.output_processor", "requests of the front end", "api", "install"),
    ("vllm.entrypoints.serve.engine.serving", "names of HTTP requests", "api", "install_names"),
    (SCHEDULER, "scheduler", "scheduler", "install"),
    ("vllm.distributed.kv_transfer.kv_connector.factory", "connectors", "connectors", "install"),
    ("vllm.v1.kv_offload.base", "results of native offloading", "offload", "install_results"),
    (OFFLOADING, "copies of native offloading", "offload", "install"),
    ("vllm.v1.kv_offload.cpu.gpu_worker", "device times of native offloading", "offload_device", "install"),
    ("vllm.distributed.kv_events", "KV events", "kv_events", "install"),
)
"""Module of vLLM, what it is to us, and which function of which file here wraps it."""
_WARNED = "KVTRACE_WARNED"
_installed = False


def install() -> None:
    """Wrap what this process has, and have the rest wrapped when it is imported."""
    global _installed
    if _installed or not recorder.enabled():
        return
    _installed = True
    ranked = re.fullmatch(r"EngineCore_DP(\d+)", current_process().name)
    if ranked:
        os.environ[RANK] = ranked[1]
    for module, part, file, function in PARTS:
        when_imported(module, part, _installer(file, function))
    client.arm()
    inprocess.arm()


def _installer(file: str, function: str) -> Callable[[ModuleType], None]:
    """Our file is imported when it has something to do."""

    def act(module: ModuleType) -> None:
        wrap = getattr(import_module(f"kvtrace.instrument.vllm.{file}"), function)
        wrap() if module.__name__ == SCHEDULER else wrap(module)  # there is more than one class of schedulers

    return act


def version() -> str:
    """VLLM's own word for its version."""
    return str(getattr(sys.modules.get("vllm.version"), "__version__", "unknown"))


def instruments() -> dict[str, str]:
    """Every part and every wrapped method of this process: "active", or why not."""
    return {**importing.status(), **wrapping.status()}


def warn_of_an_unknown_version() -> None:
    """One warning, from the first process that holds a configuration; its children stay silent."""
    if version().startswith(KNOWN) or os.environ.get(_WARNED):
        return
    os.environ[_WARNED] = "1"
    logging.getLogger("vllm.kvtrace").warning(
        "kvtrace knows vLLM %s* and found %s: not wrapped: %s. What a missing place would have seen is not "
        "in the recording.",
        KNOWN[0],
        version(),
        ", ".join(_missing()) or "nothing",
    )


def _missing() -> list[str]:
    """What this version lacks, also where another process would have been the first to find out."""
    with suppress(Exception):
        import_module(SCHEDULER)
    found = instruments()
    for module, part, _, _ in PARTS:
        with suppress(Exception):
            if found[part].startswith("not here") and _nowhere(module):
                found[part] = f"not wrapped: no module {module} in this version"
    return [f"{name} ({why})" for name, why in sorted(found.items()) if why.startswith("not wrapped")]


def _nowhere(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:
        return True
