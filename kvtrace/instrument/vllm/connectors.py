"""How is every connector wrapped, whichever it is?

The factory hands out classes: to the scheduler, to each worker, to a connector of several for its children,
to the metrics. On first sight a class is changed in place: whoever asks for its name, its base classes or its
class methods finds what was always there. Its scheduler side is the business of connector_hooks.py,
a worker's of results.py (what it reports) and worker.py (where it makes a step wait). What the connectors of
LMCache's server have beyond that is wrapped by instrument/lmcache/client/, whichever of them it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.instrument import wrapping
from kvtrace.instrument.lmcache.client import adapter, lazy
from kvtrace.instrument.vllm import carrier, configuration, connector_hooks, results, worker

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def install(module: ModuleType) -> None:
    """Wrap the factory."""
    for name in ("get_connector_class", "get_connector_class_by_name"):
        wrapping.after(module.KVConnectorFactory, name, _handed_out)


def _handed_out(connector: type, *_: Any, **__: Any) -> None:
    """A class that was not seen before is wrapped, whatever it is asked for."""
    if "_kvtrace_wrapped" in vars(connector):
        return
    connector._kvtrace_wrapped = True  # type: ignore[attr-defined]  # noqa: SLF001 - ours, on a class of the engine
    carrier.instrument(connector)
    results.instrument(connector)
    worker.instrument(connector)
    connector_hooks.instrument(connector)
    if any(kind.__name__.startswith("LMCacheMP") for kind in connector.__mro__):
        adapter.instrument(connector)
        lazy.instrument(connector)
    configuration.report()
