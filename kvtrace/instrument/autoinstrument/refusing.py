"""Inside vLLM there is no way in: its own spans would be silenced, and whoever asks is told so.

    opentelemetry-instrument ─► its configurator sets the process's TracerProvider, which can be set once
    vllm.tracing.otel        ─► set_tracer_provider(its own): "Overriding ... is not allowed", and every span
                                of vLLM's is made by trace.get_tracer(...), of the provider that was first:
                                --otlp-traces-endpoint gets nothing (read and run with vLLM 0.32)

What we can do is to add none of ours to it and to say it once, in the first process that shows to be vLLM.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from kvtrace.instrument.importing import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

ENGINE = (
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.engine.core",
    "vllm.v1.worker.worker_base",
)
"""Who imports one of these is a process of an engine; other parts of vLLM are imported by scripts too."""
_SAID = "KVTRACE_SPANS_REFUSED"
_WAY_OUT = "kvtrace makes no spans inside vLLM: start it with `kvtrace run -- vllm serve ...` instead"


def watch(refuse: Callable[[], object]) -> None:
    """Have `refuse` called in a process of an engine, and say why, once for it and its children."""

    def act(_module: ModuleType) -> None:
        refuse()
        if not os.environ.get(_SAID):
            os.environ[_SAID] = "1"
            logging.getLogger("vllm.kvtrace").warning("%s%s.", _WAY_OUT, _silenced())

    for module in ENGINE:
        when_imported(module, f"no spans of ours in {module}", act)


def _silenced() -> str:
    """What became of vLLM's own spans: nothing, where no provider is set yet."""
    from opentelemetry import trace

    if not hasattr(trace.get_tracer_provider(), "resource"):
        return ""
    return (
        "; opentelemetry-instrument has set the TracerProvider of this process, so that vLLM's own spans "
        "go where that sends them and --otlp-traces-endpoint gets none"
    )
