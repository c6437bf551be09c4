"""L2's part of a lookup: two intervals a prefetch, tied to the request that it is for.

    request ── submit_prefetch_task ─► prefetch id (an int; no event ties it: storage.py does)
                 l2.prefetch.lookup  submitted ═══════ completed        what do L2's adapters hold?
                 l2.prefetch.load            submitted ════════ completed   bring it to L1

They stay open when a backend hangs. A prefetch that loads nothing completes a load that never began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.lmcache.pairs import MOST, Pairs
from kvtrace.instrument.lmcache.tasks import closing
from kvtrace.recorder import shape

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.instrument.lmcache.blocks import Handler, Row

LOOKUP, LOAD = "l2.prefetch.lookup", "l2.prefetch.load"
_SAME = {"component": "lmcache.l2", "observer": "server", "evidence": "native", "attribution": "request"}
_SAID = ("request_id", "start_ns", "attributes.seq", "attributes.prefetch_id")
_ASKED = ("attributes.key_count", "attributes.adapter_count")
_HIT = ("end_ns", "outcome", "request_id", "attributes.prefix_hit_count")
_DONE = ("end_ns", "outcome", "request_id", "attributes.loaded_count", "attributes.failed_count")
OPEN = {name: shape("span", ("span_id", *_SAID, *_ASKED), part="open", name=name, **_SAME)
        for name in (LOOKUP, LOAD)}  # fmt: skip
LOOKED_UP = shape("span", ("span_id", *_HIT), part="close", name=LOOKUP)
LOADED = shape("span", ("span_id", *_DONE), part="close", name=LOAD)
LOOKUP_ALONE = shape(
    "span", (*_SAID, "end_ns", "outcome", "attributes.prefix_hit_count"), name=LOOKUP, **_SAME
)
LOAD_ALONE = shape(
    "span",
    (*_SAID, "end_ns", "outcome", "attributes.loaded_count", "attributes.failed_count",
     "attributes.submitted"),
    name=LOAD, **_SAME,
)  # fmt: skip
NAMED = shape("span", ("span_id", "request_id"), part="update")
SUBMITTED = shape(
    "span",
    ("request_id", "start_ns", "end_ns", "attributes.prefetch_id", "attributes.l1_hit_chunks",
     "attributes.requested_keys", "attributes.mode"),
    name="prefetch.submitted", component="lmcache", observer="server", evidence="shim", attribution="request",
    outcome="ok",
)  # fmt: skip


class Prefetches:
    """Prefetches under way and whom they are for; `tie` is called by other threads than the rest."""

    def __init__(self) -> None:
        self._open = Pairs()
        self.chunk_tokens: int | None = None
        """Tokens of a chunk, one number a server; null until a lookup has said it."""
        self._requests: dict[int, tuple[str | None, bool, int | None]] = {}
        self._nameless: dict[int, list[int]] = {}
        self._tasks: dict[int, list[tuple[int, int | None, Any]]] = {}

    def handlers(self) -> dict[str, Handler]:
        """Name of an event -> what decodes it."""
        return {
            f"{LOOKUP}.submitted": lambda *event: self._begin(LOOKUP, *event),
            f"{LOAD}.submitted": lambda *event: self._begin(LOAD, *event),
            f"{LOOKUP}.completed": self._looked_up,
            f"{LOAD}.completed": self._loaded,
        }

    def tie(self, prefetch: int, request: str | None, *, warm: bool, objects: int | None = None) -> list[Row]:
        """Whom a prefetch is for: rows for what it had begun before this was known.

        `objects`: of how many a chunk consists; None where that differs from chunk to chunk.
        """
        if len(self._requests) >= MOST:
            self._requests.pop(next(iter(self._requests)), None)
        self._requests[prefetch] = (request, warm, objects)
        return [(NAMED, span, request) for span in self._nameless.pop(prefetch, ())]

    def request_of(self, prefetch: Any) -> tuple[str | None, bool]:
        """(request, whether it is a warm-up); (None, False) where that is not known, or not yet."""
        return self._requests.get(prefetch, (None, False, None))[:2]

    def loading(self, prefetch: Any, span: Any, size: int | None, keys: Any) -> None:
        """A load task of a prefetch has begun."""
        if len(self._tasks) >= MOST:
            self._tasks.pop(next(iter(self._tasks)))
        self._tasks.setdefault(prefetch, []).append((span, size, keys))

    def _begin(self, what: str, seq: int, at: int, _sid: str, said: dict[str, Any]) -> list[Row]:
        prefetch = said.get("request_id")
        span = self._open.begin((what, prefetch))
        request, _ = self.request_of(prefetch)
        rows: list[Row] = [
            (OPEN[what], span, request, at, seq, prefetch, said.get("key_count"), said.get("adapter_count"))
        ]
        if isinstance(prefetch, int) and prefetch not in self._requests:
            rows += self._remember(prefetch, span)
        return rows

    def _remember(self, prefetch: int, span: int) -> list[Row]:
        """Its submitter has not returned yet; it may return while we are here."""
        if len(self._nameless) < MOST:
            self._nameless.setdefault(prefetch, []).append(span)
        if prefetch in self._requests:
            return [(NAMED, late, self.request_of(prefetch)[0]) for late in self._nameless.pop(prefetch, ())]
        return []

    def _looked_up(self, seq: int, at: int, _sid: str, said: dict[str, Any]) -> list[Row]:
        prefetch, hits = said.get("request_id"), said.get("prefix_hit_count")
        span, _ = self._open.end((LOOKUP, prefetch))
        request, _ = self.request_of(prefetch)
        if span is not None:
            return [(LOOKED_UP, span, at, "ok", request, hits)]
        return [(LOOKUP_ALONE, request, at, seq, prefetch, at, "ok", hits)]

    def _loaded(self, seq: int, at: int, _sid: str, said: dict[str, Any]) -> list[Row]:
        """The end of a prefetch: its load tasks are judged by what came of all of them."""
        prefetch: Any = said.get("request_id")
        loaded, failed = said.get("loaded_count"), said.get("failed_count")
        span, _ = self._open.end((LOAD, prefetch))
        request, _ = self.request_of(prefetch)
        outcome = "ok" if not failed else "partial" if loaded else "failed"
        rows = closing(self._counted(prefetch), loaded, failed)
        if span is not None:
            return [*rows, (LOADED, span, at, outcome, request, loaded, failed)]
        return [*rows, (LOAD_ALONE, request, at, seq, prefetch, at, outcome, loaded, failed, 0)]

    def _counted(self, prefetch: Any) -> list[tuple[int, int | None, int | None]]:
        """The load tasks of a prefetch that is over, with the tokens of each.

        Whole chunks of so many objects each; the objects of one chunk may be shared out among several
        adapters: then nobody knows.
        """
        tasks = self._tasks.pop(prefetch, [])
        objects, chunk = self._requests.get(prefetch, (None, False, None))[2], self.chunk_tokens
        tokens: list[int | None] = [None] * len(tasks)
        if objects and chunk and len(tasks) == 1 and isinstance(keys := tasks[0][2], int):
            tokens[0] = None if keys % objects else keys // objects * chunk
        return [(span, size, known) for (span, size, _), known in zip(tasks, tokens, strict=True)]


def submitted(request: str | None, at: int, handle: Any, mode: str) -> Row:
    """The row that says whom a prefetch is for: what `submit_prefetch_task` gave back."""
    return (SUBMITTED, request, at, at, handle.prefetch_request_id, handle.l1_hit_chunks,
            handle.total_requested_keys, mode)  # fmt: skip


def tell(rows: list[Row]) -> None:
    """Record rows."""
    for row in rows:
        recorder.record(row)
