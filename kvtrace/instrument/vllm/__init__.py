"""vLLM: one general plugin, run by the API server, EngineCore, every worker and the model inspector.

    plugin.py         what is wrapped where, and the version it was written for
    configuration.py  who this process is: engine, role
    settings.py       what configures it, without paths and secrets
    identity.py       what its cached blocks are, and what their keys vouch for
    api.py            API process: arrival, first token, finish; the names of a request
    names.py          client, external, trace: the other names of a request
    connectors.py     every connector class the factory hands out, wrapped in place
    carrier.py        request ids from the scheduler's connector to the workers'
    results.py        what a worker reports of its asynchronous transfers
    worker.py ...     where a worker makes a step wait: loads inside it, flushes, layers
    offload.py ...    a worker's copies of native offloading
    kv_events.py      rows of the engine's own KV events, where it has them on
    scheduler.py ...  EngineCore: queue, steps, lookups, loads, holds

Nothing of vLLM is imported by importing this package.
"""

from __future__ import annotations

import os


def register() -> None:
    """The entry point of `vllm.general_plugins`: idle without KVTRACE_OUT, never raises, once a process.

    vLLM does not catch what a plugin raises: an error here would stop the engine.
    """
    if not os.environ.get("KVTRACE_OUT"):
        return
    try:
        from kvtrace.instrument import torch_cuda
        from kvtrace.instrument.vllm import plugin

        plugin.install()
        torch_cuda.install()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with us, the engine starts
        _say(error)


def _say(error: Exception) -> None:
    import logging

    logging.getLogger("vllm.kvtrace").warning("kvtrace records nothing here: %r", error)
