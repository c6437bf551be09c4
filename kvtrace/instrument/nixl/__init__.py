"""NIXL's Python API, seen from the process that calls it: one row a transfer, from its post to its end.

    sizes.py     how many bytes a list of descriptors has, and on which medium
    waiting.py   what is prepared and what is under way
    agent.py     the methods of `nixl_agent` -> rows

Under `kvtrace run` the first import of NIXL arms us. A script without it calls `install()`, before or after
its imports, or `wrap(agent)`. Seen on nixl-cu12 1.5.1: UCX loopback and POSIX files; other backends give the
same rows by source only.

    initialize_xfer, make_prepped_xfer     the direction, both media, bytes; raises: a failed row
    transfer -> PROC | DONE | ERR          submitted
    check_xfer_state -> DONE | ERR         over; seen when the caller asks
    release_xfer_handle                    what was under way is cancelled

Where the agent captures telemetry, start, end and bytes are NIXL's own (`attributes.times` = telemetry).
A notification is addressed to the peer and names its request, not ours: it stays in `attributes.notif`, and a
request id comes from a scope, or from `install(request_of=...)`, a function of the message's bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kvtrace import recorder
from kvtrace.instrument import importing, wrapping

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    RequestOf = Callable[[bytes], str | None]

T = TypeVar("T")
MODULES = ("nixl_cu12._api", "nixl_cu13._api", "nixl_rocm._api", "nixl._api")
"""Where nixl_agent lives: a package for each toolkit, and `nixl`, which is one of them under its name."""
STATE = (
    "runs on CPU here",
    "nixl-cu12 1.5.1 over UCX loopback and POSIX files; other backends by source only",
)
"""What doctor says: how far this was seen to work."""


def install(*, request_of: RequestOf | None = None) -> None:
    """Wrap NIXL's agents now, or when they are imported. Idle without a recording; never raises.

    `request_of` reads a request id from a notification's bytes, where no scope names one.
    """
    if not recorder.enabled():
        return
    _read_requests(request_of)
    for module in MODULES:
        importing.when_imported(module, f"agents of {module}", _agent)


def wrap(agent: T, *, request_of: RequestOf | None = None) -> T:
    """Wrap the class of an agent that was made elsewhere; gives it back."""
    if recorder.enabled():
        from kvtrace.instrument.nixl import agent as ours

        _read_requests(request_of)
        ours.instrument(type(agent))
        recorder.describe(instruments=dict(wrapping.status()))
    return agent


def _agent(module: ModuleType) -> None:
    from kvtrace.instrument.nixl import agent

    agent.instrument(module.nixl_agent)
    recorder.describe(instruments=dict(wrapping.status()))


def _read_requests(request_of: RequestOf | None) -> None:
    if request_of is not None:
        from kvtrace.instrument.nixl import waiting

        waiting.request_of = request_of
