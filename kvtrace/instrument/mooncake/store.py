"""How does a call of the store become a row?

    put(key, value)                 store   ok | failed, reason by the return code
    batch_get_into(keys, ...)       load    ok | partial | failed, bytes of what came
    batch_is_exist(keys)            lookup  ok | partial | miss; for a request: which keys it asked for
    get_replica_desc(key)           lookup  which kinds of replicas hold it
    remove(key)                     evict   cleared

Start and end are the call's, on the host's clock. A failed store whose keys were all there is a drop.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument import asked
from kvtrace.instrument.mooncake import calls, codes, places
from kvtrace.instrument.wrapping import around

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.mooncake.calls import Call

COMPONENT = "mooncake.store"
KEY_SPACE = "mooncake:unknown:unknown"
_COLUMNS = (
    "span_id", "name", "request_id", "transfer_id", "attribution", "start_ns", "end_ns", "outcome", "reason",
    "attributes.keys", "attributes.codes", "attributes.error",
)  # fmt: skip
_ALL: dict[str, str] = {
    "component": COMPONENT, "observer": "client", "evidence": "shim", "clock": "host",
}  # fmt: skip
_MOVED = (*_COLUMNS, "submit_ns", "bytes")
STORE = recorder.shape("span", (*_MOVED, "tier_from"), op="store", tier_to=places.FAR, **_ALL)
DROP = recorder.shape("span", (*_MOVED, "tier_from"), op="drop", tier_to=places.FAR, **_ALL)
LOAD = recorder.shape("span", (*_MOVED, "tier_to", "tier_from"), op="load", **_ALL)
LOOKUP = recorder.shape(
    "span", (*_COLUMNS, "attributes.found_keys", "attributes.replicas"), op="lookup", **_ALL
)
EVICT = recorder.shape(
    "span", (*_COLUMNS, "attributes.removed_keys"), op="evict", tier_from=places.FAR, **_ALL
)
BLOCK = recorder.shape(
    "block", ("time_ns", "event", "mode", "key", "bytes", "reason", "request_id", "span_id", "tier"),
    component=COMPONENT, key_space=KEY_SPACE, evidence="shim",
)  # fmt: skip
ASKED = recorder.shape(
    "request_key", ("time_ns", "request_id", "position", "key"), key_space=KEY_SPACE, source=COMPONENT
)
_EVENTS = {"store": ("stored", "write"), "load": ("accessed", "read"), "evict": ("removed", None)}


def instrument(cls: type) -> None:
    """Wrap what this class of stores has; what a version lacks is reported, not invented."""
    for call in (*calls.STORES, *calls.LOADS, *calls.LOOKUPS, *calls.REMOVALS):
        around(cls, call.name, _begin, _ended(call), _raised(call.name, call.op))
    for name in calls.SWEEPS:
        around(cls, name, _begin, _swept(name), _raised(name, "evict"))
    for name in ("get_replica_desc", "batch_get_replica_desc"):
        around(cls, name, _begin, _described(name), _raised(name, "lookup"))


def near(name: str) -> str:
    """The tier of this process's end: a pointer may be the GPU's once CUDA is in use here."""
    torch = sys.modules.get("torch")
    device = getattr(torch, "cuda", None)
    if name in calls.VALUES or torch is None or device is None:
        return "host"
    return "unknown" if device.is_initialized() else "host"


def _begin(*_: Any, **__: Any) -> int:
    return recorder.now()


def _ended(call: Call) -> Any:
    def ended(start_ns: int, result: Any, _store: Any, *args: Any, **kwargs: Any) -> None:
        end_ns = recorder.now()
        keys = call.keys(args, kwargs)
        answers = call.read(result, len(keys))
        sizes = None if call.sizes is None else call.sizes(args, kwargs)
        _row(call, keys, answers, sizes, start_ns, end_ns)

    ended.__qualname__ = f"ended.{call.name}"
    return ended


def _row(
    call: Call, keys: list[Any], answers: calls.Answers, sizes: calls.Sizes, start_ns: int, end_ns: int
) -> None:
    """The call, and what became of each key."""
    failed = [answer for answer in answers if answer is codes.UNSAID or answer < 0]
    moved = [_bytes(answer, sizes, place) for place, answer in enumerate(answers)]
    who = asked.by("key")
    span_id = recorder.next_id()
    outcome, reason = _outcome(call.op, answers, failed)
    row = (span_id, call.name, *who, start_ns, end_ns, outcome, reason, len(keys), codes.said(failed), None)
    if call.op == "lookup":
        recorder.record((LOOKUP, *row, answers.count(1), None))
        for position, key in enumerate(keys if who[0] is not None else ()):
            recorder.record((ASKED, start_ns, who[0], position, str(key)))
        return
    if call.op == "evict":
        recorder.record((EVICT, *row, len(answers) - len(failed)))
    else:
        total = sum(size for size in moved if size is not None) if len(failed) < len(answers) else None
        known = (start_ns, total, near(call.name))
        if call.op == "load":
            recorder.record((LOAD, *row, *known, places.of(keys)))
        else:
            recorder.record((DROP if outcome == "skipped" else STORE, *row, *known))
    if call.op != "load":
        places.forget(keys)
    event, mode = _EVENTS[call.op]
    record, tier = recorder.record, places.of(keys)
    for key, answer, size in zip(keys, answers, moved, strict=False):
        if answer is codes.UNSAID or answer < 0:
            record((BLOCK, end_ns, "failed", mode, str(key), None, codes.name(answer), who[0], span_id, tier))
        else:
            record((BLOCK, end_ns, event, mode, str(key), size, None, who[0], span_id, tier))


def _bytes(answer: int | None, sizes: calls.Sizes, place: int) -> int | None:
    """Bytes of one key: a load answers them, a store was given them; null where it failed."""
    if answer is codes.UNSAID or answer < 0:
        return None
    return answer if sizes is None else sizes[place]


def _outcome(op: str, answers: calls.Answers, failed: calls.Answers) -> tuple[str, str | None]:
    if op == "lookup":
        found = answers.count(1)
        if failed and not found:
            return "failed", codes.reason(op, failed[0])
        return "miss" if not found and answers else "ok" if found == len(answers) else "partial", None
    if not failed:
        return "ok", "cleared" if op == "evict" else None
    if op == "store" and all(code == codes.EXISTS for code in failed) and len(failed) == len(answers):
        return "skipped", "duplicate"
    why = codes.reason(op, failed[0])
    return "failed" if len(failed) == len(answers) else "partial", why


def _raised(name: str, op: str) -> Any:
    """The bindings refused the arguments: nothing was asked of the store."""
    shape = {"store": STORE, "load": LOAD, "lookup": LOOKUP, "evict": EVICT}[op]

    def raised(start_ns: int, error: BaseException, *_: Any, **__: Any) -> None:
        row = (start_ns, recorder.now(), "failed", "unknown", None, None, type(error).__name__)
        rest: dict[str, tuple[Any, ...]] = {
            "store": (start_ns, None, near(name)),
            "load": (start_ns, None, near(name), places.FAR),
            "lookup": (None, None),
            "evict": (None,),
        }
        recorder.record((shape, recorder.next_id(), name, *asked.by("key"), *row, *rest[op]))

    raised.__qualname__ = f"raised.{name}"
    return raised


def _swept(name: str) -> Any:
    def swept(start_ns: int, result: Any, *_: Any, **__: Any) -> None:
        went, row = result >= 0, (recorder.next_id(), name, *asked.by("aggregate"), start_ns, recorder.now())
        why = None if went else codes.name(result)
        outcome = ("ok", "cleared") if went else ("failed", "unknown")
        recorder.record((EVICT, *row, *outcome, None, why, None, result if went else None))

    swept.__qualname__ = f"swept.{name}"
    return swept


def _described(name: str) -> Any:
    batch = name.startswith("batch")
    argument = calls.argument(0, "keys" if batch else "key")

    def described(start_ns: int, result: Any, store: Any, *args: Any, **kwargs: Any) -> None:
        end_ns, who, given = recorder.now(), asked.by("key"), argument(args, kwargs)
        keys = given if batch else [given]
        count, there, media = len(keys), 0, []
        for key in keys:  # a missing key is not in the answer
            replicas = result.get(key, ()) if batch else result
            found = [places.medium(store, replica) for replica in replicas]
            places.learn(key, found)
            there += bool(found)
            media += found
        said = " ".join(f"{tier}={media.count(tier)}" for tier in places.NEAREST if tier in media) or None
        outcome = "miss" if not there else "ok" if there == count else "partial"
        row = (start_ns, end_ns, outcome, None, count, None, None, there, said)
        recorder.record((LOOKUP, recorder.next_id(), name, *who, *row))

    described.__qualname__ = f"described.{name}"
    return described
