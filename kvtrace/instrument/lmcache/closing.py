"""The end of a server: what it still holds, then the closing mark of its recording.

Its HTTP front end ends by the signal that it got and runs no exits, so that the recording is closed here.
What is still locked or under way is read from memory, as its own /status page counts it, and named alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm.settings import at
from kvtrace.instrument.wrapping import around, lose
from kvtrace.recorder import shape

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType
    from typing import Any

LEFT = shape("metric", ("time_ns", "name", "value", "labels.kvtrace.source"), kind="gauge")
SOURCE = "the server's end"
_L1 = "lmcache_status.storage_manager.l1_manager"
_L1_COUNTS = ("total_object_count", "read_locked_count", "write_locked_count", "temporary_count")


def install(module: ModuleType) -> None:
    """Wrap the end of the server, of whichever front end."""
    around(module.MPCacheServer, "close", _closes, _closed, _failed)


def _closes(server: Any) -> None:
    now = recorder.now()
    try:
        for name, value in _left(server):
            recorder.record((LEFT, now, name, float(value), SOURCE))
    except Exception as error:  # noqa: BLE001 - the recording has to be closed all the same
        lose("what a server holds at its end", error)


def _left(server: Any) -> Iterator[tuple[str, int]]:
    """Counts of objects, sessions and lookups; what this version has no place for is not said."""
    page = at(server, "context.storage_manager._l1_manager").report_status()
    for name in _L1_COUNTS:
        if name in page:
            yield f"{_L1}.{name}", page[name]
    yield "lmcache_status.active_sessions", at(server, "context.session_manager").active_count()
    for part in at(server, "_modules") or ():
        if type(part).__name__ == "LookupModule":
            yield "lmcache_status.active_prefetch_jobs", part.report_status()["active_prefetch_jobs"]


def _closed(*_: Any, **__: Any) -> None:
    recorder.close()


def _failed(*_: Any, **__: Any) -> None:
    recorder.close()
