"""LMCache inside the engine: what breaks off, fails, is late or finds no room, without LMCache."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.lmcache.inprocess import calls, inquiring, prefetching, reading
from tests.unit.instrument.lmcache.miniature import CHUNK, LAYERS, Piece, cache

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told


def only(told: Told) -> dict[str, Any]:
    (row,) = told.rows
    assert told.losses == []
    return row


def test_a_layerwise_store_ends_with_its_last_yield_and_not_when_it_is_thrown_away(told: Told) -> None:
    made = cache().store_layer(list(range(10)), req_id="r")
    for _ in range(LAYERS + 1):
        told.clock += 5
        next(made)
    row = dict(only(told))
    told.clock += 1000
    del made
    assert only(told) == row
    assert (row["op"], row["request_id"], row["tokens"], row["bytes"]) == ("store", "r", 10, 200)
    assert (row["outcome"], row["end_ns"] - row["start_ns"]) == ("ok", 10)


def test_between_the_steps_a_thread_is_in_the_call_that_it_was_in(told: Told) -> None:
    own = cache()
    calls.begin("other")
    outer = calls.under.call
    made = [own.store_layer(list(range(4)), req_id="r"), own.store_layer(list(range(8)), req_id="q")]
    for _ in range(LAYERS + 1):
        for each in made:
            next(each)
            assert calls.under.call is outer
    assert (outer.request_id, outer.bytes) == ("other", 0)
    assert [(row["request_id"], row["bytes"], row["tokens"]) for row in told.rows] == [
        ("r", 80, 4), ("q", 160, 8),
    ]  # fmt: skip


def test_a_layerwise_store_without_room_stores_what_fits(told: Told) -> None:
    own = cache()
    own.storage_manager.room = 1
    list(own.store_layer(list(range(10)), req_id="r"))
    row = only(told)
    assert (row["op"], row["tokens"], row["outcome"], row["reason"]) == ("store", CHUNK, "partial", None)


@pytest.mark.parametrize("why", ["no_room", "duplicate", "unhealthy"])
def test_a_layerwise_store_that_stores_nothing_says_why(told: Told, why: str) -> None:
    own = cache()
    own.storage_manager.room = 0 if why == "no_room" else 9
    own.storage_manager.keys = {0, 4, 8} if why == "duplicate" else set()
    own.healthy = why != "unhealthy"
    list(own.store_layer(list(range(10)), req_id="r"))
    row = only(told)
    assert (row["op"], row["outcome"], row["reason"], row["tokens"]) == ("drop", "skipped", why, 10)


def test_a_layerwise_store_that_breaks_off_stored_nobody_knows_how_much(told: Told) -> None:
    made = cache().store_layer(list(range(8)), req_id="r")
    next(made)
    next(made)
    made.close()
    row = only(told)
    assert (row["op"], row["outcome"], row["tokens"], row["bytes"]) == ("store", "cancelled", None, 80)


@pytest.mark.parametrize(("got", "outcome"), [(8, "ok"), (4, "partial"), (0, "failed")])
def test_a_layerwise_retrieve_is_what_its_mask_says(told: Told, got: int, outcome: str) -> None:
    assert len(list(cache().retrieve_layer(list(range(8)), got=got))) == 2
    row = only(told)
    assert (row["tokens"], row["outcome"], row["attributes.asked_tokens"]) == (got, outcome, 8)
    assert (row["request_id"], row["attribution"]) == (None, "operation")


def test_a_layerwise_retrieve_that_raises_raises_into_the_engine_and_failed(told: Told) -> None:
    made = cache().retrieve_layer(list(range(8)), got=-1, req_id="r")
    next(made)
    with pytest.raises(OSError, match="engine"):
        next(made)
    assert (only(told)["outcome"], only(told)["attribution"]) == ("failed", "request")


def test_what_a_backend_reads_in_a_step_is_of_the_call_of_that_step(told: Told) -> None:
    class LocalDiskBackend:
        async def batched_get_non_blocking(self, lookup_id: str, keys: list[int]) -> list[Any]:
            if lookup_id == "bad":
                raise OSError
            return [Piece(CHUNK) for _ in keys[1:]]

    LocalDiskBackend.__module__ = "disk"
    reading.install(SimpleNamespace(__name__="disk", LocalDiskBackend=LocalDiskBackend))  # type: ignore[arg-type]
    asyncio.run(LocalDiskBackend().batched_get_non_blocking("q", [1, 2]))
    row = only(told)
    assert (row["request_id"], row["tier_from"], row["bytes"]) == ("q", "disk", 40)
    assert (row["outcome"], row["reason"], row["attributes.found_keys"]) == ("partial", "not_found", 1)
    with pytest.raises(OSError):  # noqa: PT011 - it has no text
        asyncio.run(LocalDiskBackend().batched_get_non_blocking("bad", [1]))
    assert (told.rows[1]["outcome"], told.rows[1]["reason"]) == ("failed", "io")


def test_a_lookup_sent_ahead_ends_where_it_is_answered(told: Told) -> None:
    own = cache()
    server = type("Server", (), {"send_response_to_scheduler": lambda *_: None})
    prefetching.install_server(SimpleNamespace(LMCacheAsyncLookupServer=server))  # type: ignore[arg-type]
    answers: Any = server()
    answers.lmcache_engine = own
    own.async_lookup_and_prefetch(lookup_id="r", tokens=[1, 2, 3])
    told.clock += 7
    answers.send_response_to_scheduler("r", 2)
    answers.send_response_to_scheduler("r", 2)
    row = only(told)
    assert (row["outcome"], row["tokens"], row["attributes.found_tokens"]) == ("ok", 3, 2)
    assert row["end_ns"] - row["start_ns"] == 7


def test_a_lookup_sent_ahead_that_is_never_answered_says_so(told: Told) -> None:
    own = cache()
    manager = own.storage_manager
    with pytest.raises(ValueError, match="refused"):
        own.async_lookup_and_prefetch("refused", None)
    own.async_lookup_and_prefetch("bad", [1])
    with pytest.raises(ValueError):  # noqa: PT011 - it has no text
        asyncio.run(manager.async_lookup_and_prefetch("bad"))
    own.async_lookup_and_prefetch("broken", [1])
    with pytest.raises(RuntimeError):
        manager.prefetch_all_done_callback(None, "broken")
    own.async_lookup_and_prefetch("unheard", [1])
    asyncio.run(manager.async_lookup_and_prefetch("unheard"))
    assert [(row["request_id"], row["outcome"], row["attributes.found_tokens"]) for row in told.rows] == [
        ("refused", "failed", None), ("bad", "failed", None), ("broken", "failed", None),
        ("unheard", "unknown", None),
    ]  # fmt: skip
    assert told.losses == []


def polling(answers: list[int | None]) -> Any:
    """A client whose polls are answered so; "late": it gives up itself."""

    class LMCacheAsyncLookupClient:
        def lookup(self, token_ids: Any, lookup_id: str) -> None: ...

        def lookup_cache(self, lookup_id: str) -> int | None:
            answer = answers.pop(0)
            if answer == 0:
                self.cancel_lookup(lookup_id)
            return answer

        def cancel_lookup(self, lookup_id: str) -> None: ...

    inquiring.install_asynchronous(SimpleNamespace(LMCacheAsyncLookupClient=LMCacheAsyncLookupClient))  # type: ignore[arg-type]
    return LMCacheAsyncLookupClient()


@pytest.mark.parametrize(
    ("answers", "outcome", "found"), [([-1, None, 512], "ok", 512), ([-1, None, 0], "timeout", None)]
)
def test_a_polled_lookup_ends_where_its_answer_is_read_or_given_up(
    told: Told, answers: list[int | None], outcome: str, found: int | None
) -> None:
    client = polling(answers)
    client.lookup_cache(lookup_id="r")
    client.lookup([1] * 600, lookup_id="r")
    while answers:
        told.clock += 10
        client.lookup_cache(lookup_id="r")
    client.cancel_lookup("r")
    row = only(told)
    assert (row["outcome"], row["attributes.found_tokens"], row["tokens"]) == (outcome, found, 600)
    assert row["end_ns"] - row["start_ns"] == 20


def test_a_polled_lookup_that_the_engine_cancels_is_cancelled(told: Told) -> None:
    client = polling([-1])
    client.lookup_cache(lookup_id="r")
    client.lookup([1] * 600, lookup_id="r")
    client.cancel_lookup("r")
    assert only(told)["outcome"] == "cancelled"


def test_a_waiting_client_without_an_answer_failed(told: Told) -> None:
    class LMCacheLookupClient:
        config = SimpleNamespace(chunk_size=CHUNK)
        reqs_status: dict[str, int] = {}  # noqa: RUF012 - as a field of the instance

        def lookup(self, _token_ids: Any, _lookup_id: str) -> int:
            return 0

    inquiring.install(SimpleNamespace(LMCacheLookupClient=LMCacheLookupClient))  # type: ignore[arg-type]
    LMCacheLookupClient().lookup([1] * 8, "r")
    LMCacheLookupClient().lookup([1], "s")
    assert [(row["outcome"], row["attributes.found_tokens"]) for row in told.rows] == [
        ("failed", None), ("skipped", 0),
    ]  # fmt: skip
