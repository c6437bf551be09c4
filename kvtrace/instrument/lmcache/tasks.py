"""Stores to and loads from L2, one row a task of an adapter: from its submission to its completion.

LMCache does not say when an adapter begins: the interval holds its queue. A task that is never completed
stays open: nothing else reports a backend that hangs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from kvtrace.instrument.lmcache.pairs import Pairs
from kvtrace.recorder import shape
from kvtrace.schema.lmcache_keys import L2_TIERS

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.lmcache.blocks import Handler, Row
    from kvtrace.instrument.lmcache.prefetches import Prefetches

_OPEN = ("span_id", "transfer_id", "submit_ns", "start_ns", "tier_from", "tier_to", "component",
         "attributes.adapter_index", "attributes.task_id", "attributes.key_count",
         "attributes.submitted_bytes")  # fmt: skip
_SAME = {"state_kind": "kv", "observer": "server", "evidence": "native"}
_END = ("span_id", "end_ns", "bytes", "outcome", "reason")
STORE_OPEN = shape("span", _OPEN, part="open", op="store", name="l2.store", attribution="key", **_SAME)
STORE_CLOSE = shape(
    "span", (*_END, "attributes.succeeded_count", "attributes.failed_count"), part="close", op="store"
)
LOAD_OPEN = shape(
    "span", (*_OPEN, "request_id", "purpose", "attributes.prefetch_id"), part="open",
    op="load", name="l2.load_task", attribution="request", **_SAME,
)  # fmt: skip
LOAD_ENDED = shape("span", ("span_id", "end_ns", "request_id"), part="update")
LOAD_CLOSE = shape("span", ("span_id", "outcome", "reason", "bytes", "tokens"), part="close", op="load")


class Tasks:
    """Tasks of L2's adapters under way. `tiers`: a configured adapter's type -> its medium."""

    def __init__(self, prefetches: Prefetches, first_tier: str, tiers: dict[str, str]) -> None:
        self._prefetches = prefetches
        self._first, self._tiers = first_tier, tiers
        self._open = Pairs()
        self._server = os.urandom(3).hex()  # two servers of one run both count from 0

    def handlers(self) -> dict[str, Handler]:
        """Name of an event -> what decodes it."""
        return {
            "l2.store.submitted": self._stores,
            "l2.store.completed": self._stored,
            "l2.load_task.submitted": self._loads,
            "l2.load_task.completed": self._loaded,
        }

    def _begun(self, what: str, at: int, said: dict[str, Any], kept: Any) -> tuple[object, ...]:
        adapter, task = said.get("adapter_index"), said.get("task_id")
        name = str(said.get("l2_name") or "")
        tier = self._tiers.get(name) or L2_TIERS.get(name, "unknown")
        way = (self._first, tier) if what == "store" else (tier, self._first)
        span = self._open.begin((what, adapter, task), kept)
        return (span, f"l2/{what}/{adapter}/{task}/{self._server}", at, at, *way,
                f"lmcache.l2.{name}" if name else "lmcache.l2", adapter, task, said.get("key_count"),
                said.get("total_bytes"))  # fmt: skip

    def _stores(self, _seq: int, at: int, _sid: str, said: dict[str, Any]) -> list[Row]:
        return [(STORE_OPEN, *self._begun("store", at, said, None))]

    def _stored(self, _seq: int, at: int, _sid: str, said: dict[str, Any]) -> list[Row]:
        """A failed task counts all its keys as failed, whatever its adapter kept."""
        span, _ = self._open.end(("store", said.get("adapter_index"), said.get("task_id")))
        if span is None:
            return []  # its beginning was before us, or dropped: counted there
        failed = said.get("failed_count")
        outcome, reason = ("failed", "unknown") if failed else ("ok", None)
        return [(STORE_CLOSE, span, at, said.get("bytes_transferred"), outcome, reason,
                 said.get("succeeded_count"), failed)]  # fmt: skip

    def _loads(self, _seq: int, at: int, _sid: str, said: dict[str, Any]) -> list[Row]:
        prefetch = said.get("request_id")
        begun = self._begun("load", at, said, prefetch)
        request, warm = self._prefetches.request_of(prefetch)
        self._prefetches.loading(prefetch, begun[0], said.get("total_bytes"), said.get("key_count"))
        return [(LOAD_OPEN, *begun, request, "prefetch" if warm else "reuse", prefetch)]

    def _loaded(self, _seq: int, at: int, _sid: str, said: dict[str, Any]) -> list[Row]:
        """Completed, well or not: that is known when its prefetch is (prefetches.py)."""
        span, prefetch = self._open.end(("load", said.get("adapter_index"), said.get("task_id")))
        if span is None:
            return []
        return [(LOAD_ENDED, span, at, self._prefetches.request_of(prefetch)[0])]


def closing(tasks: list[tuple[int, int | None, int | None]], loaded: Any, failed: Any) -> list[Row]:
    """The load tasks of a prefetch that is over, with their bytes and tokens where all was loaded.

    Which of several adapters failed nobody says.
    """
    if not failed:
        return [(LOAD_CLOSE, span, "ok", None, size, tokens) for span, size, tokens in tasks]
    if not loaded or len(tasks) == 1:
        outcome = "partial" if loaded else "failed"
        return [(LOAD_CLOSE, span, outcome, "not_found", None, None) for span, *_ in tasks]
    return [(LOAD_CLOSE, span, "unknown", None, None, None) for span, *_ in tasks]
