"""How long does the scheduler wait for the lookup servers of LMCache inside the engine, and what do they say?

    LMCacheLookupClient.lookup          asks and waits: one call, one row
    LMCacheAsyncLookupClient.lookup     asks         ... lookup_cache  None  None  1024     the answer is read
                                                     ... lookup_cache  too late: 0          timeout
                                                     ... cancel_lookup                      cancelled

The decisive answer of an asynchronous lookup arrives in a thread of the client and is seen by nobody there:
the row ends where the scheduler reads it. `failed`: no server answered; `skipped`: less than a chunk, nobody
was asked. What vLLM's scheduler makes of it is vllm/lookups.py; what the server did is engine.py and
prefetching.py in the workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.lmcache.inprocess import rows
from kvtrace.instrument.wrapping import SKIP, around

if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_INQUIRY = recorder.shape(
    "span", ("request_id", "start_ns", "end_ns", "tokens", "outcome", "attributes.found_tokens"),
    name="lmcache_lookup_client", component=rows.COMPONENT, observer="scheduler", evidence="shim",
    attribution="request",
)  # fmt: skip
_MOST = 100_000
_PLACE, _POLLED = "_kvtrace_lookups", "_kvtrace_polled"


def install(module: ModuleType) -> None:
    """Wrap the client that waits for its answer."""
    around(module.LMCacheLookupClient, "lookup", _asked, _told)


def install_asynchronous(module: ModuleType) -> None:
    """Wrap the client that asks and polls."""
    owner = module.LMCacheAsyncLookupClient
    around(owner, "lookup", _sent, _nothing, _refused)
    around(owner, "lookup_cache", _polls, _polled, _polls_no_more)
    around(owner, "cancel_lookup", _cancels, _nothing)


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _asked(client: Any, token_ids: Any, lookup_id: str, *_: Any, **__: Any) -> tuple[int, bool]:
    del token_ids
    return recorder.now(), lookup_id in client.reqs_status


def _told(
    token: tuple[int, bool], found: int, client: Any, token_ids: Any, lookup_id: str, *_: Any, **__: Any
) -> None:
    start_ns, before = token
    outcome = "ok" if found else "miss"
    said: int | None = found
    if not found and not before and lookup_id not in client.reqs_status:
        short = len(token_ids) < int(client.config.chunk_size)
        outcome, said = ("skipped", 0) if short else ("failed", None)
    recorder.record((_INQUIRY, lookup_id, start_ns, recorder.now(), len(token_ids), outcome, said))


def _sent(client: Any, token_ids: Any, lookup_id: str, *_: Any, **__: Any) -> object:
    """Before the call, which sleeps after it has sent."""
    waiting = vars(client).setdefault(_PLACE, {})
    if len(waiting) >= _MOST:
        recorder.lost("dropped", detail="lookups of LMCache's asynchronous client")
        return SKIP
    waiting[lookup_id] = recorder.now(), len(token_ids)
    return None


def _refused(
    _token: None, _error: BaseException, client: Any, token_ids: Any, lookup_id: str, *_: Any, **__: Any
) -> None:
    del token_ids
    _close(client, lookup_id, None, "failed")


def _polls(client: Any, lookup_id: str) -> None:
    vars(client)[_POLLED] = lookup_id


def _polled(_token: None, found: int | None, client: Any, lookup_id: str) -> None:
    """-1: it was never asked for; None: no answer yet."""
    vars(client)[_POLLED] = None
    if found is not None and found >= 0:
        _close(client, lookup_id, found, "ok" if found else "miss")


def _polls_no_more(_token: None, _error: BaseException, client: Any, *_: Any, **__: Any) -> None:
    vars(client)[_POLLED] = None


def _cancels(client: Any, lookup_id: str) -> object:
    """A poll that waited too long cancels its lookup itself."""
    word = "timeout" if vars(client).get(_POLLED) == lookup_id else "cancelled"
    _close(client, lookup_id, None, word)
    return SKIP


def _close(client: Any, lookup_id: str, found: int | None, outcome: str) -> None:
    asked = vars(client).get(_PLACE, {}).pop(lookup_id, None)
    if asked is not None:
        start_ns, tokens = asked
        recorder.record((_INQUIRY, lookup_id, start_ns, recorder.now(), tokens, outcome, found))
