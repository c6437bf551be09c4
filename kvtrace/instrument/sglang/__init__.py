"""SGLang's HiCache, by the source of two versions: nothing here was seen on a running engine.

    places.py    which methods of which version are wrapped, with what they take and what we read
    caches.py    the radix cache: lookups, load-backs, the gate that waits for storage
    copies.py    between GPU and host: merged copies of many requests, from submit to acknowledgement
    storage.py   between host and storage: hit queries, prefetches, backups

0.5.18 and 0.5.23 alone: their classes, arguments and results differ, and another version's may, so that of
another version nothing is wrapped and the status says why. A test checks every place against the wheels
(tests/engines/signatures). Per-request hits by tier SGLang exports itself (`--export-metrics-to-file`).
"""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import importing, wrapping

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

STATE = (
    "by source only",
    "HiCache of 0.5.18 and 0.5.23, signatures checked against their wheels; others are not wrapped",
)
"""What doctor says: how far this was seen to work."""


def install() -> None:
    """Wrap HiCache's classes when they are imported. Idle without a recording; never raises."""
    if not recorder.enabled():
        return
    from kvtrace.instrument.sglang.places import MODULES

    for module in MODULES:
        importing.when_imported(module, f"SGLang's {module.rpartition('.')[2]}", _wrap)


def version() -> str:
    """SGLang's own word for its version, without what a build adds."""
    found = getattr(sys.modules.get("sglang.version"), "__version__", None)
    if found is None:
        with suppress(Exception):
            from importlib.metadata import version as installed

            found = installed("sglang")
    return str(found or "unknown").partition("+")[0].partition(".post")[0]


def _wrap(module: ModuleType) -> str | None:
    """Why nothing is wrapped here, if nothing is."""
    from kvtrace.instrument.sglang import caches, copies, storage
    from kvtrace.instrument.sglang.places import PLACES

    number = version()
    if number not in PLACES:
        known = " and ".join(PLACES)
        return f"not wrapped: kvtrace knows HiCache of SGLang {known} and found {number}"
    hooks: dict[str, Callable[[type, str], object]] = {**caches.HOOKS, **copies.HOOKS, **storage.HOOKS}
    for cls, methods in PLACES[number].get(module.__name__, {}).items():
        for name in methods:
            hooks[name](getattr(module, cls), name)
    recorder.describe(product="sglang", version=number, instruments=dict(wrapping.status()))
    return None
