"""Lookups: what a request asked for, what was found where, and which keys it asked for.

mp.lookup_prefetch.start ── mp.lookup (keys) ── the storage manager's work ── ... ── .end, when the
client polls: the interval holds the client's pause, and a client that never asks leaves it open.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.instrument.lmcache.keys import hashes, space_of, tenant
from kvtrace.instrument.lmcache.pairs import MOST, Pairs
from kvtrace.recorder import shape

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.lmcache.blocks import Handler, Row
    from kvtrace.instrument.lmcache.prefetches import Prefetches

EARLY = {
    "empty_chunk_hashes": "below_chunk",
    "no_gpu_context": "no_context",
    "no_group_layout_descs": "no_context",
}
"""LMCache's word for a lookup that asked nothing -> ours."""
_END = (
    "end_ns", "requested_tokens", "found_tokens", "found_by_tier.host", "found_by_tier.disk",
    "found_by_tier.peer", "found_by_tier.object", "found_by_tier.unknown", "outcome", "reason", "identity_id",
    "attributes.early_exit_reason", "attributes.model_name",
)  # fmt: skip
_TIERS = ("host", "disk", "peer", "object", "unknown")
_WHOLE = {
    "op": "lookup", "name": "mp.lookup_prefetch", "component": "lmcache", "observer": "server",
    "evidence": "native", "attribution": "request",
}  # fmt: skip
OPEN = shape("span", ("span_id", "request_id", "start_ns", "attempt"), part="open", **_WHOLE)
CLOSE = shape("span", ("span_id", *_END), part="close")
ALONE = shape("span", ("request_id", *_END), **_WHOLE)
"""An end whose start was not seen."""
KEY = shape(
    "request_key",
    ("request_id", "attempt", "position", "key_space", "key", "tokens", "time_ns"),
    source="lmcache.mp.lookup",
)


class Lookups:
    """Lookups under way, and how often each request asked."""

    def __init__(
        self,
        first_tier: str = "host",
        second_tier: str | None = "unknown",
        prefetches: Prefetches | None = None,
    ) -> None:
        self._first = _TIERS.index(first_tier)
        self._second = None if second_tier is None else _TIERS.index(second_tier)
        self._prefetches = prefetches
        self._open = Pairs()
        self._attempts: dict[str, int] = {}

    def handlers(self) -> dict[str, Handler]:
        """Name of an event -> what decodes it."""
        return {
            "mp.lookup_prefetch.start": self._start,
            "mp.lookup_prefetch.end": self._end,
            "mp.lookup": self._keys,
        }

    def _start(self, _seq: int, at: int, sid: str, _metadata: dict[str, Any]) -> list[Row]:
        attempt = self._attempts.pop(sid, 0) + 1
        if len(self._attempts) >= MOST:
            self._attempts.pop(next(iter(self._attempts)))
        self._attempts[sid] = attempt
        return [(OPEN, self._open.begin(sid), sid, at, attempt)]

    def _end(self, _seq: int, at: int, sid: str, metadata: dict[str, Any]) -> list[Row]:
        said = (at, *self._answer(metadata), metadata.get("model_name") or None)
        span, _ = self._open.end(sid)
        return [(CLOSE, span, *said)] if span is not None else [(ALONE, sid, *said)]

    def _answer(self, metadata: dict[str, Any]) -> tuple[object, ...]:
        asked, found = metadata.get("requested_tokens"), metadata.get("hit_tokens")
        first, second = metadata.get("l1_hit_tokens"), metadata.get("l2_hit_tokens")
        where: list[int | None] = [None] * len(_TIERS)
        if isinstance(first, int):
            where[self._first] = first
        if self._second is not None and isinstance(second, int):
            where[self._second] = (where[self._second] or 0) + second
        early = metadata.get("early_exit_reason") or None
        reason = None if early is None else EARLY.get(early, "unknown")
        outcome = "skipped" if early else _outcome(asked, found)
        return asked, found, *where, outcome, reason, tenant(metadata.get("cache_salt") or ""), early

    def _keys(self, _seq: int, at: int, sid: str, metadata: dict[str, Any]) -> list[Row]:
        request = metadata.get("request_id") or sid
        space, tokens = space_of(str(metadata.get("model_name"))), metadata.get("chunk_size")
        attempt = self._attempts.get(request)
        if self._prefetches is not None and isinstance(tokens, int):
            self._prefetches.chunk_tokens = tokens
        return [
            (KEY, request, attempt, position, space, chunk, tokens, at)
            for position, chunk in enumerate(hashes(metadata.get("chunk_hashes")))
        ]


def _outcome(asked: Any, found: Any) -> str | None:
    if not isinstance(found, int):
        return None
    if not found:
        return "miss"
    return "ok" if isinstance(asked, int) and found >= asked else "partial"
