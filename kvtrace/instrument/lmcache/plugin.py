"""What is wrapped where, each part on its own: one that fails leaves the others standing.

Written for LMCache 0.5. Another version gets what is found, and one warning that names what is not.
"""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import importing, wrapping
from kvtrace.instrument.importing import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

KNOWN = ("0.5.",)
SERVER = "lmcache.v1.multiprocess.transport.server_factory"
PARTS = (
    ("lmcache.v1.mp_observability.event_bus", "event bus of LMCache", "bus", "install"),
    ("lmcache.v1.distributed.storage_manager", "storage of LMCache", "storage", "install"),
    ("lmcache.v1.distributed.l1_manager", "first level of LMCache", "storage", "install_first_level"),
    (SERVER, "configuration of LMCache's server", "facts", "install"),
    ("lmcache.v1.multiprocess.server", "end of LMCache's server", "closing", "install"),
)
"""Module of LMCache, what it is to us, and which function of which file here wraps it."""
_installed = False
_warned = False


def install() -> None:
    """Have everything wrapped when it is imported; a process that imports none of it pays nothing more."""
    global _installed
    if _installed or not recorder.enabled():
        return
    _installed = True
    for module, part, file, function in PARTS:
        when_imported(module, part, _installer(file, function))


def _installer(file: str, function: str) -> Callable[[ModuleType], object]:
    """Our file is imported when it has something to do."""
    return lambda module: getattr(import_module(f"kvtrace.instrument.lmcache.{file}"), function)(module)


def version() -> str:
    """LMCache's own word for its version."""
    return str(getattr(sys.modules.get("lmcache"), "__version__", "unknown"))


def instruments() -> dict[str, str]:
    """Every part and every wrapped method of this process: "active", or why not."""
    return {**importing.status(), **wrapping.status()}


def warn_of_an_unknown_version() -> None:
    """One warning where LMCache is not the one that this was written for."""
    global _warned
    if _warned or version().startswith(KNOWN):
        return
    _warned = True
    missing = [f"{name} ({why})" for name, why in sorted(instruments().items()) if why.startswith("not ")]
    logging.getLogger("lmcache.kvtrace").warning(
        "kvtrace knows LMCache %s* and found %s: not wrapped: %s. What a missing place would have seen is "
        "not in the recording.",
        KNOWN[0],
        version(),
        ", ".join(missing) or "nothing",
    )
