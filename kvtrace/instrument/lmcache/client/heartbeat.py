"""How does a worker see LMCache's server?

Its heartbeat asks every `lmcache.mp.heartbeat_interval` and flips the worker's health alone; the scheduler's
is watched in vllm/health.py. While degraded the worker drops every store and fails every load. A server that
died and came back between two beats goes unseen, here too: its server's own records show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.lmcache.client.moves import COMPONENT
from kvtrace.instrument.vllm import configuration
from kvtrace.instrument.wrapping import around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_OPEN = recorder.shape(
    "span", ("span_id", "start_ns", "reason", "rank", "attributes.engine_id"), part="open", op="health",
    component=COMPONENT, observer="client", evidence="shim", attribution="aggregate",
)  # fmt: skip
_CLOSE = recorder.shape("span", ("span_id", "end_ns"), part="close", outcome="ok")
_AGAIN = recorder.shape(
    "span", ("start_ns", "end_ns", "outcome", "rank", "attributes.engine_id"),
    name="lmcache_client_registered_again", component=COMPONENT, observer="client", evidence="shim",
    attribution="aggregate",
)  # fmt: skip


def install(module: ModuleType) -> None:
    """Wrap a beat, and what a worker does when its server is there again."""
    around(module.HeartbeatThread, "_execute", _nothing, _beat)
    around(module.LMCacheMPWorkerAdapter, "_reregister_kv_caches_callback", _now, _registered)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _now(*_: Any, **__: Any) -> int:
    return recorder.now()


def _beat(_token: None, _result: Any, thread: Any, *_: Any, **__: Any) -> None:
    """Of a worker; a scheduler's thread has no instance."""
    if thread._instance_id is None:  # noqa: SLF001 - no public way
        return
    healthy = bool(thread._health_event.is_set())  # noqa: SLF001 - no public way
    was, span_id = vars(thread).get("_kvtrace_health", (None, None))
    if healthy is was:
        return
    now = recorder.now()
    if span_id is not None:
        recorder.record((_CLOSE, span_id, now))
    span_id = recorder.next_id()
    vars(thread)["_kvtrace_health"] = (healthy, span_id)
    reason = "healthy" if healthy else "degraded"
    recorder.record((_OPEN, span_id, now, reason, configuration.here().rank, str(thread._instance_id)))  # noqa: SLF001


def _registered(start_ns: int, done: Any, adapter: Any, *_: Any, **__: Any) -> None:
    outcome = "ok" if done else "failed"
    rank = configuration.here().rank
    recorder.record((_AGAIN, start_ns, recorder.now(), outcome, rank, str(adapter.instance_id)))
