"""The entry points of the group `opentelemetry_instrumentor`: loaded by `opentelemetry-instrument` alone.

    from kvtrace.instrument.autoinstrument.instrumentors import KvtraceInstrumentor
    KvtraceInstrumentor().instrument(tracer_provider=provider)       in a program that sets up its own SDK

Two, so that each can be left out: OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=kvtrace_lmcache. Every process of a
command loads them, its resource tracker too: nothing of an engine is imported here. Whatever is wrong with
us stops no other instrumentor and no program.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined] # it says so itself

from kvtrace.instrument.autoinstrument import door

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

_LOG = logging.getLogger("kvtrace")
_LMCACHE = "kvtrace.instrument.lmcache"


class KvtraceInstrumentor(BaseInstrumentor):  # type: ignore[misc] # untyped there
    """Scripts: scopes of `kvtrace.request`, calls of `@kvtrace.transfer`, copies of torch inside them."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: what a script uses of kvtrace is here."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        _guarded(lambda: door.enter("kvtrace", kwargs.get("tracer_provider"), scopes=True))

    def _uninstrument(self, **_: Any) -> None:
        _guarded(lambda: door.leave("kvtrace"))


class LMCacheInstrumentor(BaseInstrumentor):  # type: ignore[misc] # untyped there
    """LMCache's server, once a process has imported it. Not derived from the other: they would be one."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: LMCache is hooked when a process imports it, and is built under several names."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        _guarded(lambda: _with_lmcache(kwargs.get("tracer_provider")))

    def _uninstrument(self, **_: Any) -> None:
        _guarded(lambda: door.leave("kvtrace_lmcache"))


def _with_lmcache(provider: Any) -> None:
    if door.enter("kvtrace_lmcache", provider, scopes=False):
        import_module(_LMCACHE).install()


def _guarded(action: Callable[[], object]) -> None:
    """What is raised here would end every instrumentor behind us."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with us, the program starts
        _LOG.warning("kvtrace makes no spans here: %s: %s.", type(error).__name__, error)
