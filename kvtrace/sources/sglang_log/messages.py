"""SGLang's sentences about its cache: a pattern each, and the columns that it fills.

prefetch   storage -> host       tokens = what the tree took of it; `matched` was in the host already
load back  host -> gpu           only its failures are told
write      gpu -> host           only its failures are told (write_back)
backup     host -> storage       only its failures are told
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kvtrace.sources.records import LATEST_NS
from kvtrace.sources.sglang_words import COMPONENTS, storage

if TYPE_CHECKING:
    from collections.abc import Callable

Said = dict[str, Any]
WORDS = (
    b"HiCache", b"write_back: ", b"Write page to storage", b"Prefetch operation ", b"load_back: ",
    b"Revoking prefetch", b"storage backend", b"server_args=ServerArgs(",
)  # fmt: skip
"""One of these is in every line that is looked at."""
REASONS = {
    "deadline": "timeout", "storage_transfer": "io", "host_capacity": "no_room", "device_capacity": "no_room",
}  # fmt: skip
"""Why a prefetch gave less, in our words; the rest are unknown, and stay an attribute."""
_NOTHING: Said = {"outcome": "failed", "attributes": {"usable_tokens": "0"}}
_DOWN: Said = {"tier_from": "gpu", "tier_to": "host", "component": COMPONENTS["host"]}


def _count(given: str) -> int | None:
    found = int(given) if given.isdecimal() and len(given) < 20 else None
    return found if found is not None and found <= LATEST_NS else None


def _prefetch(named: dict[str, str], backend: str | None, **more: Any) -> Said:
    tier, component = storage(backend)
    said = {key: value for key, value in named.items() if key not in ("req", "how") and value}
    return {
        "op": "load", "name": "hicache_prefetch", "purpose": "prefetch", "tier_from": tier, "tier_to": "host",
        "component": component, "attributes": {**said, **more.pop("attributes", {})}, **more,
    }  # fmt: skip


def _prefetched(named: dict[str, str], backend: str | None) -> Said:
    tokens = _count(named["loaded"])
    if named["how"] == "dropped":
        return _prefetch(named, backend, tokens=_count(named["completed"]), reason="no_room", **_NOTHING)
    return _prefetch(named, backend, tokens=tokens, outcome="ok")


def _discarded(named: dict[str, str], backend: str | None) -> Said:
    reason = REASONS.get(named["reason"], "unknown")
    return _prefetch(named, backend, tokens=_count(named["requested"]), reason=reason, **_NOTHING)


def _declined(named: dict[str, str], backend: str | None) -> Said:
    reason = "no_room" if named.get("why") == "host memory allocation failure" else "unknown"
    return _prefetch(named, backend, tokens=_count(named.get("hit", "")), outcome="skipped", reason=reason)


def _missing(named: dict[str, str], backend: str | None) -> Said:
    return _prefetch(named, backend, reason="not_found", **_NOTHING)


def _broken(named: dict[str, str], backend: str | None) -> Said:
    return _prefetch(named, backend, reason="io", **_NOTHING)


def _asked(named: dict[str, str], backend: str | None) -> Said:
    said = {"op": "lookup", "name": "hicache_query", "component": storage(backend)[1]}
    if named.get("attempts"):
        return {**said, "outcome": "skipped", "attempt": _count(named["attempts"]), "reason": "unknown"}
    return {**said, "outcome": "failed", "reason": "unknown"}


def _shrank(named: dict[str, str], _backend: str | None) -> Said:
    return {"name": "hicache_prefix_shrank", "attributes": {
        "lookup_match": named["before"], "current_match": named["now"]}}  # fmt: skip


def _unwritten(named: dict[str, str], _backend: str | None) -> Said:
    return {"op": "drop", "name": "hicache_write_back", "reason": "no_room", **_DOWN,
            "attributes": {"node": named["node"]}}  # fmt: skip


def _stays(named: dict[str, str], _backend: str | None) -> Said:
    return {"op": "store", "name": "hicache_write_back", "outcome": "failed", "reason": "no_room", **_DOWN,
            "attributes": {"node": named["node"]}}  # fmt: skip


def _not_back(named: dict[str, str], _backend: str | None) -> Said:
    return {"op": "load", "name": "hicache_load_back", "outcome": "failed", "reason": "no_room",
            "tokens": _count(named["tokens"]), "tier_from": "host", "tier_to": "gpu", "purpose": "reuse",
            "component": COMPONENTS["host"],
            "attributes": {"node": named["node"], "usable_tokens": "0"}}  # fmt: skip


def _not_backed_up(named: dict[str, str], backend: str | None) -> Said:
    tier, component = storage(backend)
    said = {key: value for key, value in named.items() if value}
    return {"op": "store", "name": "hicache_backup", "outcome": "failed", "reason": "io", "tier_from": "host",
            "tier_to": tier, "component": component, "attributes": said}  # fmt: skip


def _m(pattern: str, meaning: Callable[[dict[str, str], str | None], Said]) -> tuple[re.Pattern[bytes], Any]:
    return re.compile(pattern.encode()), meaning


MESSAGES: tuple[tuple[re.Pattern[bytes], Callable[[dict[str, str], str | None], Said]], ...] = (
    _m(r"HiCache prefetch (?P<how>success|dropped) req=(?P<req>.+?) completed=(?P<completed>\d+) "
       r"matched=(?P<matched>\d+) loaded=(?P<loaded>\d+) occupied=(?P<occupied>\d+)\s*$", _prefetched),
    _m(r"HiCache prefetch (?P<how>success|dropped) req=(?P<req>.+?) completed_local=(?P<local>\d+) "
       r"completed_synced=(?P<completed>\d+) matched=(?P<matched>\d+) loaded=(?P<loaded>\d+) "
       r"released=(?P<released>\d+) occupied=(?P<occupied>\d+)\s*$", _prefetched),
    _m(r"HiCache hybrid prefetch discarded req=(?P<req>.+?)(?: reason=(?P<reason>\w+))? "
       r"completed=(?P<completed>\d+) requested=(?P<requested>\d+)(?: |$)", _discarded),
    _m(r"HiCache prefetch declined req=(?P<req>.+?) reason=(?P<raw_reason>\w+) "
       r"device_prefix=(?P<device_prefix>\d+) hit=(?P<hit>\d+)\s*$", _declined),
    _m(r"Revoking prefetch for request (?P<req>.+?) due to (?P<why>insufficient hits|host memory "
       r"allocation failure)(?: \((?P<hit>\d+)\))?\.\s*$", _declined),
    _m(r"Prefetch operation (?P<req>.+?) failed to retrieve page (?P<page>[0-9a-zA-Z_-]{1,128})\.\s*$",
       _missing),
    _m(r"HiCache (?P<what>prefetch transfer|sidecar prefetch) failed for request (?P<req>.+?)\s*$", _broken),
    _m(r"HiCache storage query failed for request (?P<req>.+?)\s*$", _asked),
    _m(r"HiCache storage prefetch reissue cap reached req=(?P<req>.+?) attempts=(?P<attempts>\d+);", _asked),
    _m(r"HiCache device prefix shrank before admission req=(?P<req>.+?) lookup_match=(?P<before>\d+) "
       r"current_match=(?P<now>\d+);", _shrank),
    _m(r"write_back: KV (?:subtree|cache on device are) dropped without backup due to host memory pressure, "
       r"(?:subtree )?root (?:node )?(?P<node>\d+)", _unwritten),
    _m(r"write_back: backup failed under host memory pressure .*?root node (?P<node>\d+) stays", _stays),
    _m(r"load_back: FAILED to load (?P<tokens>\d+) tokens for node (?P<node>\d+) ", _not_back),
    _m(r"Write page to storage: (?P<pages>\d+) pages failed\.\s*$", _not_backed_up),
    _m(r"HiCache backup failed after (?P<completed>\d+) tokens\s*$", _not_backed_up),
)  # fmt: skip
"""Sentence -> what it says; the first that matches."""
