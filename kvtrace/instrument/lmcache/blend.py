"""CacheBlend's requests (`cb.*`): reuse of chunks that are no prefix. By LMCache's source, not seen running.

    cb.lookup ═ its parts (fingerprints, prefix, coordinator, sparse prefetch): op null
    cb.retrieve ═ cb.scatter: into the GPU's pages; without a copy it is a `cb.retrieve.noop`: all recomputed

On CUDA the events of a retrieve are recorded on another stream than its work: they may not bracket it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.instrument.lmcache.pairs import Pairs
from kvtrace.instrument.lmcache.points import numbers
from kvtrace.recorder import shape

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.lmcache.blocks import Handler, Row

PARTS = (
    "cb.prefix_lookup",
    "cb.fingerprint_match",
    "cb.coordinator_match",
    "cb.sparse_prefetch",
    "cb.scatter",
)
POINTS = (
    "cb.request.start", "cb.request.end", "cb.retrieve.submitted", "cb.chunks.evicted",
    "cb.fingerprints.registered",
)  # fmt: skip
_SAME = {
    "component": "lmcache.blend", "observer": "server", "evidence": "native", "attribution": "request",
}  # fmt: skip
_OPEN = ("span_id", "request_id", "start_ns")
_LOOKUP = {"op": "lookup", "name": "cb.lookup"}
_LOAD = {
    "op": "load", "name": "cb.retrieve", "tier_from": "host", "tier_to": "gpu", "purpose": "reuse",
    "state_kind": "kv",
}  # fmt: skip
OPEN = {name: shape("span", _OPEN, part="open", name=name, **_SAME) for name in PARTS}
OPEN["cb.lookup"] = shape("span", _OPEN, part="open", **_LOOKUP, **_SAME)
OPEN["cb.retrieve"] = shape("span", _OPEN, part="open", **_LOAD, **_SAME)
ANSWERED = (
    "span_id", "end_ns", "outcome", "requested_tokens", "found_tokens", "attributes.hit_tokens",
    "attributes.non_prefix_hit_tokens", "attributes.stale_chunks",
)  # fmt: skip
NOTHING = shape(
    "span", ("start_ns", "end_ns", "request_id", "attributes.seq", "attributes.reason",
             "attributes.dropped_matches"),
    name="cb.retrieve.noop", outcome="skipped", **_SAME,
)  # fmt: skip


class Blend:
    """What is under way; LMCache names the worker where several do the same."""

    def __init__(self) -> None:
        self._open = Pairs()
        self._answered = shape("span", ANSWERED, part="close", op="lookup")

    def handlers(self) -> dict[str, Handler]:
        """Name of an event -> what decodes it."""
        found: dict[str, Handler] = {name: numbers(name) for name in POINTS}
        found["cb.retrieve.noop"] = _nothing
        for name in OPEN:
            found[f"{name}.start"] = self._starts(name)
            found[f"{name}.end"] = self._ends(name)
        found["cb.lookup.end"] = self._found
        return found

    def _starts(self, name: str) -> Handler:
        def rows(_seq: int, at: int, sid: str, said: dict[str, Any]) -> list[Row]:
            return [(OPEN[name], self._open.begin((name, sid, said.get("worker_id"))), sid or None, at)]

        return rows

    def _ends(self, name: str) -> Handler:
        """Its numbers; a `success` of 0 is a failure."""

        def rows(seq: int, at: int, sid: str, said: dict[str, Any]) -> list[Row]:
            span, _ = self._open.end((name, sid, said.get("worker_id")))
            if span is None:
                return list(numbers(f"{name}.end")(seq, at, sid, said))
            known = {key: value for key, value in said.items() if isinstance(value, (bool, int, float))}
            columns = tuple(f"attributes.{key}" for key in sorted(known))
            kind = shape("span", ("span_id", "end_ns", "outcome", *columns), part="close", name=name)
            outcome = "failed" if said.get("success") == 0 else "ok"
            return [(kind, span, at, outcome, *(known[key] for key in sorted(known)))]

        return rows

    def _found(self, seq: int, at: int, sid: str, said: dict[str, Any]) -> list[Row]:
        """Of what was found only the prefix counts from the first token on; the rest are attributes."""
        span, _ = self._open.end(("cb.lookup", sid, None))
        if span is None:
            return list(numbers("cb.lookup.end")(seq, at, sid, said))
        asked, hit = said.get("requested_tokens"), said.get("hit_tokens") or 0
        outcome = "miss" if not hit else "ok" if isinstance(asked, int) and hit >= asked else "partial"
        return [(self._answered, span, at, outcome, asked, said.get("prefix_hit_tokens"), hit,
                 said.get("non_prefix_hit_tokens"), said.get("stale_chunks"))]  # fmt: skip


def _nothing(seq: int, at: int, sid: str, said: dict[str, Any]) -> list[Row]:
    """A full recompute although the lookup hit; its reason is one of LMCache's few codes."""
    return [(NOTHING, at, at, sid or None, seq, str(said.get("reason"))[:80], said.get("dropped_matches"))]
