"""What does LMCache inside the engine look up, keep pinned, load and store, and for whom?

    lookup(pin)           found and pinned  ──────────────► lookup_unpin      lock_hold, mode read
    retrieve(req_id)      reads from tiers, copies to the GPU              op null: vllm/inside.py has it
    store(req_id)         copies from the GPU, hands over to the tiers        store | drop

A store that found no room stores what fits: of one that stored nothing the reason is no_room. What `store`
and `retrieve` enqueue on a GPU may end later than they return: what a device times is torch_cuda/'s.
A retrieve unpins what it read; when the request is done `lookup_unpin` does so again (lmcache_double_unpin).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.lmcache import plugin
from kvtrace.instrument.lmcache.facts import seed_of
from kvtrace.instrument.lmcache.inprocess import storage
from kvtrace.instrument.vllm import configuration
from kvtrace.instrument.vllm.settings import at, said
from kvtrace.instrument.wrapping import around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

COMPONENT = "lmcache.inprocess"
_LOOKUP = recorder.shape(
    "span",
    ("request_id", "start_ns", "end_ns", "tokens", "rank", "outcome", "attributes.found_tokens",
     "attributes.pinned"),
    name="lmcache_lookup", component=COMPONENT, observer="worker", evidence="shim", attribution="request",
)  # fmt: skip
_PINNED = recorder.shape(
    "span", ("span_id", "request_id", "start_ns", "tokens", "rank", "attributes.keys"), part="open",
    name="lmcache_pin", op="lock_hold", mode="read", component=COMPONENT, observer="worker", evidence="shim",
    attribution="request",
)  # fmt: skip
_UNPINNED = recorder.shape("span", ("span_id", "end_ns"), part="close", outcome="ok")
_RETRIEVE = recorder.shape(
    "span",
    ("request_id", "start_ns", "end_ns", "tokens", "bytes", "rank", "outcome", "attributes.asked_tokens"),
    name="lmcache_retrieve", component=COMPONENT, observer="worker", evidence="shim", attribution="request",
)  # fmt: skip
_COLUMNS = (
    "request_id", "start_ns", "end_ns", "tokens", "bytes", "rank", "outcome", "reason", "attributes.keys",
)  # fmt: skip
_MOVED = {"tier_from": "gpu", "tier_to": "host", "component": COMPONENT, "observer": "worker"}
_STORE = recorder.shape(
    "span", _COLUMNS, name="lmcache_store", op="store", evidence="shim", attribution="request", **_MOVED
)
_DROP = recorder.shape(
    "span", _COLUMNS, name="lmcache_store", op="drop", evidence="shim", attribution="request", **_MOVED
)
_MOST = 100_000
IDENTITY = {
    "chunk_size": "config.chunk_size",
    "hash_algorithm": "config.pre_caching_hash_algorithm",
    "world_size": "metadata.world_size",
    "kv_cache_dtype": "metadata.kv_dtype",
    "serde": "config.remote_serde",
}
"""Our name of a field -> where LMCacheEngine holds it; the model is the engine's own."""
IN_KEY = ("chunk_size", "hash_algorithm", "hash_seed", "world_size", "kv_cache_dtype")
"""Of them in CacheEngineKey (utils.py) or in its hash."""


def install(module: ModuleType) -> None:
    """Wrap the engine."""
    owner = module.LMCacheEngine
    around(owner, "__init__", _now, _made)
    around(owner, "lookup", _now, _looked_up)
    around(owner, "lookup_unpin", _unpins, _unpinned)
    around(owner, "retrieve", _begins, _retrieved)
    around(owner, "store", _begins, _stored)


def _now(*_: Any, **__: Any) -> int:
    return recorder.now()


def _made(_start_ns: int, _result: None, engine: Any, *_: Any, **__: Any) -> None:
    """What its keys are made of: `ENGINE:lmcache`; the engine's own identity is that of its GPU blocks."""
    config = configuration.here().config
    if config is None:
        return
    found = {name: said(at(engine, path)) for name, path in IDENTITY.items()}
    found |= {"hash_seed": seed_of(found["hash_algorithm"]), "engine_version": plugin.version()}
    fields = {name: text for name, text in found.items() if text is not None}
    enforced = {name: "key" if name in IN_KEY else "nobody" for name in fields}
    name = f"{configuration.engine_name(config, 'worker')}:lmcache"
    for side in ("writer", "reader"):
        recorder.identity(name, side, fields, source="LMCacheEngineConfig", enforced_by=enforced)


def _begins(_engine: Any, *_: Any, **options: Any) -> int:
    storage.begin(options.get("req_id"))
    return recorder.now()


def _unpins(_engine: Any, lookup_id: str, *_: Any, **__: Any) -> int:
    storage.begin(lookup_id)
    return recorder.now()


def _tokens(tokens: Any, offsets: Any = None) -> int | None:
    if tokens is not None:
        return len(tokens)
    return None if offsets is None else int(sum(offsets))


def _looked_up(
    start_ns: int, found: int, engine: Any, tokens: Any = None, hashes: Any = None, offsets: Any = None,
    search_range: Any = None, lookup_id: str | None = None, pin: object = None, *_: Any, **__: Any,
) -> None:  # fmt: skip
    del hashes, search_range
    now = recorder.now()
    asked = _tokens(tokens, offsets)
    rank = configuration.here().rank
    pins = engine.lookup_pins.get(lookup_id) if pin else None
    keys = sum([len(each) for each in pins.values()]) if pins else 0
    outcome = "skipped" if not engine.is_healthy() else "ok" if found else "miss"
    recorder.record((_LOOKUP, lookup_id, start_ns, now, asked, rank, outcome, found, keys or None))
    held = vars(engine).setdefault("_kvtrace_pins", {})
    if keys and len(held) < _MOST and lookup_id not in held:
        span_id = held[lookup_id] = recorder.next_id()
        recorder.record((_PINNED, span_id, lookup_id, now, found, rank, keys))


def _unpinned(_start_ns: int, _result: Any, engine: Any, lookup_id: str, *_: Any, **__: Any) -> None:
    span_id = vars(engine).get("_kvtrace_pins", {}).pop(lookup_id, None)
    if span_id is not None:
        recorder.record((_UNPINNED, span_id, recorder.now()))
    storage.begin(None)


def _retrieved(
    start_ns: int, mask: Any, _engine: Any, tokens: Any, wanted: Any = None, *_: Any, **options: Any
) -> None:
    wanted = options.get("mask", wanted)
    asked = len(tokens) if wanted is None else int(wanted.sum())
    got = int(mask.sum())
    outcome = "ok" if got >= asked else "partial" if got else "failed"
    recorder.record((
        _RETRIEVE, options.get("req_id"), start_ns, recorder.now(), got, storage.under.bytes,
        configuration.here().rank, outcome, asked,
    ))  # fmt: skip
    storage.begin(None)


def _stored(
    start_ns: int, _result: Any, engine: Any, tokens: Any = None, hashes: Any = None, offsets: Any = None,
    mask: Any = None, *_: Any, **options: Any,
) -> None:  # fmt: skip
    """A rank that stores nothing has no row; chunks are of one size but for the last."""
    del hashes
    now, under = recorder.now(), storage.under
    if under.keys or not engine._is_passive():  # noqa: SLF001 - no public way
        asked = _tokens(tokens, offsets) if mask is None else int(mask.sum())
        shape, outcome, reason, moved = _STORE, "ok", None, asked
        if not under.keys:
            reason = "unhealthy" if not engine.is_healthy() else "no_room" if under.no_room else "unknown"
            shape, outcome = _DROP, "skipped"
        elif under.no_room:
            outcome, moved = "partial", min(asked or 0, under.keys * int(engine.config.chunk_size))
        recorder.record((
            shape, options.get("req_id"), start_ns, now, moved, under.bytes if under.keys else None,
            configuration.here().rank, outcome, reason, under.keys,
        ))  # fmt: skip
    storage.begin(None)
