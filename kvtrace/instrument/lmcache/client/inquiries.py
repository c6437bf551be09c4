"""What does LMCache's client wait for when it looks a request up, and which of the waits was too long?

    maybe_submit_lookup_request   LOOKUP is sent          the server's acknowledgement     its answer
                                    |------ ack ---------------->|------- status ------------>|
    lmcache_client_lookup           |----------------------------------------------------------|

A row of op null: the inquiry as the scheduler waits for it is vllm/lookups.py's. It begins when LOOKUP is
sent, with eager prefetch before the scheduler asks. Each of the two waits has `mq_timeout` seconds; the one
that was too long is `attributes.timeout_of`, on the scheduler's lookup too: an un-acked LOOKUP may hold no
locks, an unanswered one holds them until they expire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.lmcache.client.moves import COMPONENT
from kvtrace.instrument.wrapping import SKIP, around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_ROW = recorder.shape(
    "span",
    ("request_id", "start_ns", "end_ns", "tokens", "outcome", "attributes.found_tokens",
     "attributes.acked_after_ns", "attributes.timeout_of", "attributes.servers"),
    name="lmcache_client_lookup", component=COMPONENT, observer="scheduler", evidence="shim",
    attribution="request",
)  # fmt: skip
_MOST = 100_000


class Inquiry:
    """One LOOKUP that is not answered."""

    __slots__ = ("acked_ns", "start_ns", "tokens")

    def __init__(self, start_ns: int, tokens: int) -> None:
        self.start_ns = start_ns
        self.tokens = tokens
        self.acked_ns: int | None = None


class Book:
    """The open inquiries of one adapter, and the timeouts that the scheduler has not heard of yet."""

    __slots__ = ("open", "timeouts")

    def __init__(self) -> None:
        self.open: dict[str, Inquiry] = {}
        self.timeouts: dict[str, str] = {}


def install(module: ModuleType) -> None:
    """Wrap the scheduler's adapter."""
    owner = module.LMCacheMPSchedulerAdapter
    around(owner, "maybe_submit_lookup_request", _submits, _submitted)
    around(owner, "check_lookup_result", _checks, _checked)
    around(owner, "cleanup_lookup_result", _cleans, _cleaned)


def why(connector: Any, request: Any) -> tuple[str | None, str | None]:
    """Of an inquiry that was just answered: (which wait timed out, why LMCache was not asked)."""
    adapter = getattr(connector, "scheduler_adapter", None)
    if adapter is None:
        return None, None
    book: Book | None = vars(adapter).get("_kvtrace_lookups")
    timeout = None if book is None else book.timeouts.pop(request.request_id, None)
    trackers = getattr(connector, "request_trackers", None) or {}
    state = getattr(trackers.get(request.request_id), "state", None)
    if getattr(state, "name", None) == "BYPASS_LMCACHE":
        return timeout, "failed_load"
    preempted = getattr(getattr(request, "status", None), "name", None) == "PREEMPTED"
    return timeout, "preempted" if preempted else None


def of(adapter: Any) -> Book:
    """The book of an adapter."""
    found: Book | None = vars(adapter).get("_kvtrace_lookups")
    if found is None:
        found = adapter._kvtrace_lookups = Book()  # noqa: SLF001 - ours, on an object of the engine
    return found


def _submits(adapter: Any, request_id: str, *_: Any, **__: Any) -> Any:
    return SKIP if request_id in adapter._pending_lookups else recorder.now()  # noqa: SLF001 - no public way


def _submitted(
    start_ns: int, _result: Any, adapter: Any, request_id: str, token_ids: Any, *_: Any, **__: Any
) -> None:
    book = of(adapter)
    if request_id in adapter._pending_lookups and len(book.open) < _MOST:  # noqa: SLF001 - no public way
        chunk = int(adapter.lmcache_tokens_per_chunk)
        book.open[request_id] = Inquiry(start_ns, len(token_ids) // chunk * chunk)


def _checks(adapter: Any, request_id: str) -> Any:
    """Asked over and over: only an inquiry that is open is looked at."""
    book: Book | None = vars(adapter).get("_kvtrace_lookups")
    inquiry = None if book is None else book.open.get(request_id)
    if inquiry is None:
        return SKIP
    return inquiry, adapter.is_healthy


def _checked(token: tuple[Inquiry, bool], result: Any, adapter: Any, request_id: str) -> None:
    inquiry, was_healthy = token
    if inquiry.acked_ns is None and request_id in adapter._lookup_status:  # noqa: SLF001 - no public way
        inquiry.acked_ns = recorder.now()
    if result is None:
        return
    if request_id in adapter._finished_lookup_results:  # noqa: SLF001 - no public way
        over(adapter, request_id, "ok" if result else "miss", result)
    elif was_healthy and not adapter.is_healthy:
        timeout = "ack" if inquiry.acked_ns is None else "status"
        of(adapter).timeouts[request_id] = timeout
        over(adapter, request_id, "timeout", None, timeout)
    else:
        over(adapter, request_id, "failed", None)


def _cleans(adapter: Any, request_id: str, *_: Any, **__: Any) -> Any:
    return SKIP if request_id not in of(adapter).open else None


def _cleaned(_token: None, _result: Any, adapter: Any, request_id: str, *_: Any, **__: Any) -> None:
    """The request ended before its answer."""
    over(adapter, request_id, "cancelled", None)


def over(adapter: Any, request_id: str, outcome: str, found: int | None, timeout: str | None = None) -> None:
    """Write the row of an open inquiry; nothing happens for one that is not."""
    inquiry = of(adapter).open.pop(request_id, None)
    if inquiry is None:
        return
    acked = None if inquiry.acked_ns is None else inquiry.acked_ns - inquiry.start_ns
    recorder.record((
        _ROW, request_id, inquiry.start_ns, recorder.now(), inquiry.tokens, outcome, found, acked, timeout,
        len(adapter.req_clients),
    ))  # fmt: skip
