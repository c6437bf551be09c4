"""What is wrapped where, each part on its own: one that fails leaves the others standing.

Written for vLLM 0.32. Another version gets what is found, and one warning that names what is not.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from multiprocessing import current_process
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import importing, wrapping
from kvtrace.instrument.importing import when_imported

if TYPE_CHECKING:
    from types import ModuleType

KNOWN = ("0.32.",)
RANK = "KVTRACE_DP_RANK"
"""Data-parallel rank, from EngineCore to its workers: for dense models vLLM's configuration forgets it."""
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
    when_imported("vllm.v1.engine.async_llm", "configuration of the API server", _front_end)
    when_imported("vllm.v1.engine.llm_engine", "configuration of the offline engine", _front_end)
    when_imported("vllm.v1.engine.core", "configuration of EngineCore", _core)
    when_imported("vllm.v1.worker.worker_base", "configuration of a worker", _worker)
    when_imported("vllm.v1.engine.output_processor", "requests of the front end", _requests)
    when_imported("vllm.entrypoints.serve.engine.serving", "names of HTTP requests", _names)
    when_imported("vllm.v1.core.sched.scheduler", "scheduler", _scheduler)
    when_imported("vllm.distributed.kv_transfer.kv_connector.factory", "connectors", _connectors)
    when_imported("vllm.distributed.kv_events", "KV events", _kv_events)


def _front_end(module: ModuleType) -> None:
    from kvtrace.instrument.vllm import configuration

    configuration.install_front_end(module)


def _core(module: ModuleType) -> None:
    from kvtrace.instrument.vllm import configuration

    configuration.install_core(module)


def _worker(module: ModuleType) -> None:
    from kvtrace.instrument.vllm import configuration

    configuration.install_worker(module)


def _requests(module: ModuleType) -> None:
    from kvtrace.instrument.vllm import api

    api.install(module)


def _names(module: ModuleType) -> None:
    from kvtrace.instrument.vllm import api

    api.install_names(module)


def _scheduler(_: ModuleType) -> None:
    from kvtrace.instrument.vllm import scheduler

    scheduler.install()


def _connectors(module: ModuleType) -> None:
    from kvtrace.instrument.vllm import connectors

    connectors.install(module)


def _kv_events(module: ModuleType) -> None:
    from kvtrace.instrument.vllm import kv_events

    kv_events.install(module)


def version() -> str:
    """VLLM's own word for its version."""
    return str(getattr(sys.modules.get("vllm.version"), "__version__", "unknown"))


def instruments() -> dict[str, str]:
    """Every part and every wrapped method of this process: "active", or why not."""
    return {**importing.status(), **wrapping.status()}


def warn_of_an_unknown_version() -> None:
    """One warning, from the first process that knows what it found; its children stay silent."""
    if version().startswith(KNOWN) or os.environ.get(_WARNED):
        return
    os.environ[_WARNED] = "1"
    missing = [
        f"{name} ({why})" for name, why in sorted(instruments().items()) if why.startswith("not wrapped")
    ]
    logging.getLogger("vllm.kvtrace").warning(
        "kvtrace knows vLLM %s* and found %s: not wrapped: %s. What a missing place would have seen is not "
        "in the recording.",
        KNOWN[0],
        version(),
        ", ".join(missing) or "nothing",
    )
