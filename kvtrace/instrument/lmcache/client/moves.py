"""One store or retrieve of LMCache's client in a worker, and the rows that tell of it.

    submit_store_request      the server copies       get_finished finds its future done
      submit = start ──────────────────────────────────► end

The client knows when it asked and when it saw the end, not when the copy ran: that is its server's to say, or
copies.py's where the worker copies itself. Both share the row's transfer_id, at the latest when the runs of
client and server are imported together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import configuration

if TYPE_CHECKING:
    from typing import Any

COMPONENT = "lmcache"
_OPENED = (
    "span_id", "request_id", "transfer_id", "submit_ns", "start_ns", "tokens", "blocks", "attempt", "rank",
    "attributes.engine_id", "attributes.range", "attributes.skipped_tokens",
)  # fmt: skip
_STORE = recorder.shape(
    "span", _OPENED, part="open", name="lmcache_client_store", op="store", tier_from="gpu", tier_to="host",
    component=COMPONENT, observer="client", evidence="shim", attribution="request", clock="host",
)  # fmt: skip
_LOAD = recorder.shape(
    "span", _OPENED, part="open", name="lmcache_client_retrieve", op="load", tier_from="host", tier_to="gpu",
    purpose="reuse", component=COMPONENT, observer="client", evidence="shim", attribution="request",
    clock="host",
)  # fmt: skip
_CLOSED = ("span_id", "end_ns", "outcome", "reason", "attributes.end", "attributes.overwritten")
_CLOSE = recorder.shape("span", _CLOSED, part="close")
_STORED_NOTHING = recorder.shape("span", _CLOSED, part="close", op="drop")
_DROP = recorder.shape(
    "span",
    ("request_id", "start_ns", "end_ns", "submit_ns", "tokens", "blocks", "rank", "reason",
     "attributes.engine_id", "attributes.range"),
    name="lmcache_client_store", op="drop", tier_from="gpu", tier_to="host", component=COMPONENT,
    observer="client", evidence="shim", attribution="request", outcome="skipped",
)  # fmt: skip
_MOST = 100_000
"""So many requests have their stores numbered, and so many moves may be under way."""


class Move:
    """One store or retrieve that was asked for and is not over."""

    __slots__ = (
        "duplicate", "engine_id", "future", "is_load", "key", "overwritten", "reason", "request_id",
        "span_id", "submit_ns", "transfer_id",
    )  # fmt: skip

    def __init__(self, request_id: str, asked: Any, *, is_load: bool, engine_id: str) -> None:
        self.request_id = request_id
        self.is_load = is_load
        self.engine_id = engine_id
        self.key = (is_load, request_id, int(getattr(asked, "start", 0)), int(getattr(asked, "end", 0)))
        self.submit_ns = recorder.now()
        self.span_id = recorder.next_id()
        self.transfer_id = ""
        self.future: Any = None
        self.overwritten = False  # a later store of the request took its place in the client's books
        self.duplicate = False  # the server had every chunk of it
        self.reason: str | None = None  # why it failed, where a part of it said so


class Moves:
    """Of one adapter: the moves under way, and how many stores each request had."""

    def __init__(self, adapter: Any) -> None:
        self.engine_id = str(adapter.instance_id)
        self.running: list[Move] = []
        self.attempts: dict[str, int | None] = {}  # of the loads of the step that is bound
        self._stores: dict[str, int] = {}

    def transfer_id(self, move: Move) -> str:
        """The same on every rank: a load by its attempt, a store by its place among those of its request."""
        if move.is_load:
            return f"{move.request_id}/load/{self.attempts.get(move.request_id) or 1}"
        number = self._stores.pop(move.request_id, 0) + 1
        if len(self._stores) >= _MOST:
            del self._stores[next(iter(self._stores))]
        self._stores[move.request_id] = number
        return f"{move.request_id}/store/{number}"


expected: dict[tuple[bool, str, int, int], Move] = {}
"""Moves by what their key says: a context that copies in the worker knows no more of them."""


def of(adapter: Any) -> Moves:
    """The moves of an adapter."""
    found: Moves | None = vars(adapter).get("_kvtrace_moves")
    if found is None:
        found = adapter._kvtrace_moves = Moves(adapter)  # noqa: SLF001 - ours, on an object of the engine
    return found


def opened(moves: Moves, move: Move, asked: Any) -> None:
    """The client is about to ask for it."""
    move.transfer_id = moves.transfer_id(move)
    if len(expected) < _MOST:
        expected[move.key] = move
    skipped = int(getattr(asked, "skip_first_n_tokens", 0) or 0)
    attempt = moves.attempts.get(move.request_id) if move.is_load else None
    first, last = move.key[2:]
    recorder.record((
        _LOAD if move.is_load else _STORE, move.span_id, move.request_id, move.transfer_id, move.submit_ns,
        move.submit_ns, last - first - skipped, blocks(asked), attempt, configuration.here().rank,
        moves.engine_id, f"{first}-{last}", skipped or None,
    ))  # fmt: skip


def closed(move: Move, outcome: str, reason: str | None, seen: str) -> None:
    """It is over, as far as the client knows; `seen`: what told so (report, reply, given_up, error)."""
    if expected.get(move.key) is move:
        del expected[move.key]
    if move.duplicate and outcome == "ok":
        outcome, reason = "skipped", "duplicate"
    shape = _STORED_NOTHING if outcome == "skipped" else _CLOSE
    recorder.record((
        shape, move.span_id, recorder.now(), outcome, reason, seen, move.overwritten or None
    ))  # fmt: skip


def dropped(moves: Moves, move: Move, asked: Any) -> None:
    """The client did not even ask: it holds its server for dead."""
    first, last = move.key[2:]
    recorder.record((
        _DROP, move.request_id, move.submit_ns, move.submit_ns, move.submit_ns, last - first, blocks(asked),
        configuration.here().rank, "unhealthy", moves.engine_id, f"{first}-{last}",
    ))  # fmt: skip


def blocks(asked: Any) -> int | None:
    """GPU blocks of a move, of the group of layers that has most of them; null when it does not say."""
    ids = getattr(asked, "block_ids", None)
    if not ids:
        return None
    return len(ids) if isinstance(ids[0], int) else max([len(group) for group in ids])
