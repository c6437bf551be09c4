"""Which locks did LMCache's client give back, and which did it leave to their time to live?

A lookup locks what it finds on the server. A retrieve gives its locks back there; what the GPU had already,
or all of it when nothing is loaded, the scheduler gives back by token range. It knows no keys, so these are
rows of op null with the tokens. Left behind are the locks of a request that ends before it was admitted: the
client forgets its lookup and tells nobody (`attributes.left_tokens`, null where the answer never came).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.lmcache.client import inquiries
from kvtrace.instrument.lmcache.client.moves import COMPONENT
from kvtrace.instrument.wrapping import around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

LONG_NS = 500_000_000
_GIVEN_BACK = recorder.shape(
    "span",
    ("request_id", "start_ns", "end_ns", "tokens", "outcome", "attributes.range", "attributes.why"),
    name="lmcache_client_unlock", component=COMPONENT, observer="scheduler", evidence="shim",
    attribution="request",
)  # fmt: skip
_ENDED = recorder.shape(
    "span",
    ("request_id", "start_ns", "end_ns", "outcome", "attributes.left", "attributes.left_tokens",
     "attributes.timeout_of"),
    name="lmcache_client_end_session", component=COMPONENT, observer="scheduler", evidence="shim",
    attribution="request",
)  # fmt: skip
_WAIT = recorder.shape(
    "span", ("request_id", "start_ns", "end_ns", "outcome"), name="end_session", op="wait", reason="lookup",
    component=COMPONENT, observer="scheduler", evidence="shim", attribution="request",
)  # fmt: skip


def install(module: ModuleType) -> None:
    """Wrap the scheduler's adapter."""
    owner = module.LMCacheMPSchedulerAdapter
    around(owner, "free_lookup_locks", _health, _given_back)
    around(owner, "_free_inconsistent_lookup_locks", _health, _uneven)
    around(owner, "end_session", _ends, _ended)


def _health(adapter: Any, *_: Any, **__: Any) -> tuple[int, bool]:
    return recorder.now(), adapter.is_healthy


def _given_back(
    token: tuple[int, bool], _result: Any, _adapter: Any, token_ids: Any, start: int, end: int,
    request_id: str, *_: Any, **__: Any,
) -> None:  # fmt: skip
    """To a server that is held for dead nothing is given back."""
    del token_ids
    now, healthy = token
    recorder.record((
        _GIVEN_BACK, request_id, now, recorder.now(), end - start, "ok" if healthy else "skipped",
        f"{start}-{end}", None,
    ))  # fmt: skip


def _uneven(
    token: tuple[int, bool], _result: Any, adapter: Any, request_id: str, per_server: dict[str, int],
    min_chunks: int, *_: Any, **__: Any,
) -> None:  # fmt: skip
    """Servers that found more than the one that found least give the rest back."""
    chunks = sum([found - min_chunks for found in per_server.values()])
    tokens = chunks * int(adapter.lmcache_tokens_per_chunk)
    recorder.record((
        _GIVEN_BACK, request_id, token[0], recorder.now(), tokens, "ok", None, "servers_disagree"
    ))  # fmt: skip


def _ends(adapter: Any, request_id: str, *_: Any, **__: Any) -> tuple[int, bool, bool, Any, bool]:
    """What the client holds of the request before it forgets it."""
    left = request_id in adapter._pending_lookups  # noqa: SLF001 - no public way
    found = adapter._finished_lookup_results.get(request_id) if left else None  # noqa: SLF001 - no public way
    acked = request_id not in adapter._unacked_lookups  # noqa: SLF001 - no public way
    return recorder.now(), adapter.is_healthy, left and found != 0, found, acked


def _ended(
    token: tuple[int, bool, bool, Any, bool], _result: Any, adapter: Any, request_id: str, *_: Any, **__: Any
) -> None:
    """It waits for what the server still owes, in the scheduler's own thread."""
    start_ns, was_healthy, left, found, acked = token
    now = recorder.now()
    timeout, outcome = None, "ok"
    if not was_healthy:
        outcome = "skipped"
    elif not adapter.is_healthy:
        timeout, outcome = "status" if acked else "ack", "timeout"
        inquiries.over(adapter, request_id, "timeout", None, timeout)
    recorder.record((_ENDED, request_id, start_ns, now, outcome, left or None, found, timeout))
    if now - start_ns >= LONG_NS:
        recorder.record((_WAIT, request_id, start_ns, now, outcome))
