"""Stores and retrieves between the GPU and L1, as the server's stream saw them.

    submitted ── start ═══ copy ═══ end      paired by transfer_key: one session has several at a time, from
                                             several workers (engine_id) and of several steps

A retrieve begins before its wait for vLLM's stream, a store after it: the two are not comparable. A store
that ends with nothing stored is a drop; why, nothing says. Engine-driven transfers give none of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.instrument.lmcache.pairs import Pairs, Queues
from kvtrace.recorder import shape

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.lmcache.blocks import Handler, Row

_START = ("request_id", "transfer_id", "submit_ns", "start_ns", "device", "attributes.engine_id",
          "attributes.model_name")  # fmt: skip
_END = ("end_ns", "tokens", "bytes", "outcome", "reason", "attributes.objects")
_SAME = {
    "component": "lmcache.l1", "state_kind": "kv", "observer": "server", "evidence": "native",
    "attribution": "request",
}  # fmt: skip
_SUBMITTED = shape(
    "span", ("name", "request_id", "start_ns", "end_ns", "device", "attributes.seq"),
    observer="server", evidence="native", attribution="request", outcome="ok",
)  # fmt: skip


class Transfers:
    """Transfers under way."""

    def __init__(self, tier: str = "host") -> None:
        store = {"op": "store", "name": "mp.store", "tier_from": "gpu", "tier_to": tier, **_SAME}
        load = {"op": "load", "name": "mp.retrieve", "tier_from": tier, "tier_to": "gpu", **_SAME}
        load["purpose"] = "reuse"
        self._store = self._shapes(store)
        self._load = self._shapes(load)
        self._drop = shape("span", ("span_id", *_END), part="close", op="drop")
        self._dropped = shape("span", (*_START, *_END), **store | {"op": "drop"})
        self._open = Pairs()
        self._submitted = Queues()

    @staticmethod
    def _shapes(constants: dict[str, str]) -> tuple[int, int, int]:
        return (
            shape("span", ("span_id", *_START), part="open", **constants),
            shape("span", ("span_id", *_END), part="close", op=constants["op"]),
            shape("span", (*_START, *_END), **constants),
        )

    def handlers(self) -> dict[str, Handler]:
        """Name of an event -> what decodes it."""
        return {
            "mp.store.submitted": lambda *event: self._asked("mp.store", *event),
            "mp.retrieve.submitted": lambda *event: self._asked("mp.retrieve", *event),
            "mp.store.start": lambda _seq, at, sid, said: self._begin("mp.store", at, sid, said),
            "mp.retrieve.start": lambda _seq, at, sid, said: self._begin("mp.retrieve", at, sid, said),
            "mp.store.end": self._stored,
            "mp.retrieve.end": self._retrieved,
        }

    def _asked(self, what: str, seq: int, at: int, sid: str, said: dict[str, Any]) -> list[Row]:
        """It has no transfer key: the oldest of the same request and device belongs to the next start."""
        device = said.get("device")
        self._submitted.put((what, sid, device), at)
        return [(_SUBMITTED, f"{what}.submitted", sid, at, at, device, seq)]

    def _begin(self, what: str, at: int, sid: str, said: dict[str, Any]) -> list[Row]:
        submit_ns = self._submitted.take((what, sid, said.get("device")))
        span = self._open.begin((what, said.get("transfer_key") or (sid, said.get("engine_id"))))
        kind = (self._store if what == "mp.store" else self._load)[0]
        return [(kind, span, *_known(sid, said, submit_ns, at))]

    def _stored(self, _seq: int, at: int, sid: str, said: dict[str, Any]) -> list[Row]:
        stored = said.get("stored_count")
        dropped = stored == 0
        outcome, reason = ("skipped", "unknown") if dropped else ("ok", None)
        end = (at, said.get("num_tokens"), said.get("total_bytes"), outcome, reason, stored)
        span, _ = self._open.end(("mp.store", said.get("transfer_key") or (sid, said.get("engine_id"))))
        if span is not None:
            return [(self._drop if dropped else self._store[1], span, *end)]
        alone = self._dropped if dropped else self._store[2]
        return [(alone, *_known(sid, said, None, None), *end)]

    def _retrieved(self, _seq: int, at: int, sid: str, said: dict[str, Any]) -> list[Row]:
        """LMCache writes num_tokens 0 when it failed, in whole or in part."""
        failed = said.get("num_tokens") == 0
        outcome, reason = ("failed", "unknown") if failed else ("ok", None)
        end = (at, said.get("num_tokens"), said.get("total_bytes"), outcome, reason,
               said.get("retrieved_count"))  # fmt: skip
        span, _ = self._open.end(("mp.retrieve", said.get("transfer_key") or (sid, said.get("engine_id"))))
        if span is not None:
            return [(self._load[1], span, *end)]
        return [(self._load[2], *_known(sid, said, None, None), *end)]


def _known(sid: str, said: dict[str, Any], submit_ns: int | None, start_ns: int | None) -> tuple[object, ...]:
    return (sid or None, said.get("transfer_key"), submit_ns, start_ns, said.get("device"),
            said.get("engine_id"), said.get("model_name"))  # fmt: skip
