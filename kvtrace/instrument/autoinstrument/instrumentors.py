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
from kvtrace.instrument.importing import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from types import ModuleType
    from typing import Any

_LOG = logging.getLogger("kvtrace")
_LMCACHE = {"lmcache": "kvtrace.instrument.lmcache.plugin"}
_LIBRARIES = {
    "mooncake": "kvtrace.instrument.mooncake",
    "nixl": "kvtrace.instrument.nixl",
    "nixl_cu12": "kvtrace.instrument.nixl",
    "nixl_cu13": "kvtrace.instrument.nixl",
    "nixl_rocm": "kvtrace.instrument.nixl",
}
"""What a script imports -> what wraps it then, and what it does there is recorded or becomes spans."""


class KvtraceInstrumentor(BaseInstrumentor):  # type: ignore[misc] # untyped there
    """Scripts: scopes of `kvtrace.request`, calls of `@kvtrace.transfer`, copies of torch inside them.

    Transfers that a script makes by Mooncake's and NIXL's Python APIs, too.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: what a script uses of kvtrace is here."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        _guarded(lambda: _open("kvtrace", kwargs.get("tracer_provider"), _LIBRARIES))

    def _uninstrument(self, **_: Any) -> None:
        _guarded(lambda: door.leave("kvtrace"))


class LMCacheInstrumentor(BaseInstrumentor):  # type: ignore[misc] # untyped there
    """LMCache's server, once a process has imported it. Not derived from the other: they would be one."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: LMCache is hooked when a process imports it, and is built under several names."""
        return ()

    def _instrument(self, **kwargs: Any) -> None:
        _guarded(lambda: _open("kvtrace_lmcache", kwargs.get("tracer_provider"), _LMCACHE))

    def _uninstrument(self, **_: Any) -> None:
        _guarded(lambda: door.leave("kvtrace_lmcache"))


def _open(user: str, provider: Any, libraries: dict[str, str]) -> None:
    if door.enter(user, provider, scopes=user == "kvtrace"):
        for library, ours in libraries.items():
            when_imported(library, f"OpenTelemetry's way to {library}", _installer(ours))


def _installer(ours: str) -> Callable[[ModuleType], None]:
    def act(_library: ModuleType) -> None:
        import_module(ours).install()

    return act


def _guarded(action: Callable[[], object]) -> None:
    """What is raised here would end every instrumentor behind us."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with us, the program starts
        _LOG.warning("kvtrace makes no spans here: %s: %s.", type(error).__name__, error)
