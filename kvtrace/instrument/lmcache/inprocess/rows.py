"""What do a lookup, a retrieve and a store of LMCache inside the engine look like, whole or layerwise?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import configuration

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.lmcache.inprocess.calls import Call

COMPONENT = "lmcache.inprocess"
_LOOKUP = recorder.shape(
    "span",
    ("request_id", "start_ns", "end_ns", "tokens", "rank", "outcome", "attributes.found_tokens",
     "attributes.pinned"),
    name="lmcache_lookup", component=COMPONENT, observer="worker", evidence="shim", attribution="request",
)  # fmt: skip
_RETRIEVE = recorder.shape(
    "span",
    ("request_id", "start_ns", "end_ns", "tokens", "bytes", "rank", "outcome", "attribution",
     "attributes.asked_tokens"),
    name="lmcache_retrieve", component=COMPONENT, observer="worker", evidence="shim",
)  # fmt: skip
_COLUMNS = (
    "request_id", "start_ns", "end_ns", "tokens", "bytes", "rank", "outcome", "reason", "attribution",
    "attributes.keys",
)  # fmt: skip
_MOVED = {"tier_from": "gpu", "tier_to": "host", "component": COMPONENT, "observer": "worker"}
_STORE = recorder.shape("span", _COLUMNS, name="lmcache_store", op="store", evidence="shim", **_MOVED)
_DROP = recorder.shape("span", _COLUMNS, name="lmcache_store", op="drop", evidence="shim", **_MOVED)


def looked_up(
    request_id: str | None, start_ns: int, end_ns: int, asked: int | None, found: int | None, outcome: str,
    pinned: int | None = None,
) -> None:  # fmt: skip
    """A lookup was answered; `asked` and `found` in tokens, `pinned` in keys."""
    rank = configuration.here().rank
    recorder.record((_LOOKUP, request_id, start_ns, end_ns, asked, rank, outcome, found, pinned))


def retrieved(call: Call, start_ns: int, asked: int, got: int | None, outcome: str | None = None) -> None:
    """A retrieve ends now; without a word of its own its outcome is what it got of what it asked for."""
    if outcome is None:
        outcome = "ok" if (got or 0) >= asked else "partial" if got else "failed"
    recorder.record((
        _RETRIEVE, call.request_id, start_ns, recorder.now(), got, call.bytes, configuration.here().rank,
        outcome, _attribution(call), asked,
    ))  # fmt: skip


def stored(call: Call, start_ns: int, tokens: int | None, outcome: str, reason: str | None) -> None:
    """A store ends now; one without keys stored nothing."""
    recorder.record((
        _STORE if call.keys else _DROP, call.request_id, start_ns, recorder.now(), tokens,
        call.bytes if call.keys else None, configuration.here().rank, outcome, reason, _attribution(call),
        call.keys,
    ))  # fmt: skip


def store_ended(engine: Any, call: Call, start_ns: int, asked: int | None, stored_tokens: int) -> None:
    """A store came to its end; `asked` and `stored_tokens` in tokens, the latter of the keys handed over."""
    if call.keys:
        outcome = "partial" if call.no_room else "ok"
        stored(call, start_ns, min(asked or 0, stored_tokens), outcome, None)
        return
    reason = "duplicate" if call.there else "unknown"
    if not engine.is_healthy():
        reason = "unhealthy"
    elif call.no_room:
        reason = "no_room"
    stored(call, start_ns, asked, "skipped", reason)


def length(tokens: Any, offsets: Any = None) -> int | None:
    """Tokens that a call is about, given themselves or as lengths of chunks."""
    if tokens is not None:
        return len(tokens)
    return None if offsets is None else int(sum(offsets))


def _attribution(call: Call) -> str:
    return "operation" if call.request_id is None else "request"
