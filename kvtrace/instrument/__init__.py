"""Inside an engine's process: what is patched or subscribed to, and nothing else.

Standard library alone, parses on Python 3.10, never raises into the engine, never blocks it, counts what it
loses. Nothing of an engine is imported on its behalf: a module is wrapped when the engine imports it.

    wrapping.py    a hook after or around a method of the engine, so that no hook can hurt it
    importing.py   an action when a module of the engine is there
    scope.py       which request this code works for: kvtrace.request
    transferring.py  one row a call of a connector's own function: kvtrace.transfer
    torch_cuda/    copies between host and device, timed on the device
    autoinstrument/  OpenTelemetry's own way in: scopes and calls of a script as spans of its own provider
    vllm/          vLLM: one general plugin, run in the API server, EngineCore and every worker
    lmcache/       LMCache: its server from inside, and what its clients know
    mooncake/      Mooncake's store and transfer engine: calls of their Python API, return codes read
    nixl/          NIXL's agents: a row a transfer, by NIXL's own telemetry where it is on
    sglang/, kvbm.py  SGLang's HiCache and KVBM's connector, by their wheels' source alone
    libraries.py   how far each of these was seen to work
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing costs an engine's start more than this package
if TYPE_CHECKING:
    from kvtrace.instrument.scope import request
    from kvtrace.instrument.transferring import transfer

__all__ = ["request", "transfer"]


def __getattr__(name: str) -> object:
    """`request` and `transfer`, imported when first named; who names them wants copies recorded, too."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kvtrace.instrument import torch_cuda

    torch_cuda.install()
    found: object
    if name == "request":
        from kvtrace.instrument.scope import request as found
    else:
        from kvtrace.instrument.transferring import transfer as found
    globals()[name] = found
    return found
