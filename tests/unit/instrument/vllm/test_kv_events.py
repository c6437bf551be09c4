"""The engine's own KV events as rows, without a token."""

from __future__ import annotations

from types import SimpleNamespace as Some
from typing import TYPE_CHECKING, Any

from kvtrace.instrument.vllm import configuration, kv_events
from tests.unit.instrument.vllm.test_settings import config

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told


class BlockStored(Some):
    """As vLLM's: keys of a chain, with the tokens of all of them."""


class BlockRemoved(Some):
    """As vLLM's."""


class AllBlocksCleared(Some):
    """As vLLM's: nothing in it."""


class NullEventPublisher:
    def publish(self, events: Any) -> None:
        assert events


def publisher(connector: str | None = None) -> Any:
    """A publisher as vLLM's factory makes it, after the configuration is known."""

    class Publisher:
        def publish(self, events: Any) -> None:
            assert events

    class EventPublisherFactory:
        @classmethod
        def create(cls, kind: type) -> Any:
            return kind()

    kv_events.install(Some(EventPublisherFactory=EventPublisherFactory))  # type: ignore[arg-type]
    configuration.here().config = config(kv_transfer_config=Some(kv_connector=connector))
    EventPublisherFactory.create(NullEventPublisher)
    return EventPublisherFactory.create(Publisher)


def stored(**other: Any) -> BlockStored:
    event = {
        "block_hashes": [0x1F, 2**64 - 1],
        "parent_block_hash": 7,
        "token_ids": [9] * 32,
        "block_size": 16,
    }
    return BlockStored(**{**event, "medium": "GPU", "group_idx": 0, **other})


def test_a_stored_chain_is_a_row_a_block(told: Told) -> None:
    publisher().publish(Some(events=[stored()]))
    assert [(row["event"], row["key"], row["parent_key"], row["tokens"]) for row in told.rows] == [
        ("stored", "000000000000001f", "0000000000000007", 16),
        ("stored", "ffffffffffffffff", "000000000000001f", 16),
    ]
    assert {(row["tier"], row["component"], row["medium_raw"]) for row in told.rows} == {
        ("gpu", "vllm.gpu", "GPU")
    }
    assert {row["key_space"] for row in told.rows} == {"vllm:sha256:tiny-llama"}
    assert {row["object_group"] for row in told.rows} == {"0"}
    assert "9, 9" not in repr(told.rows)


def test_long_keys_are_hexadecimal_too(told: Told) -> None:
    publisher().publish(Some(events=[stored(block_hashes=[b"\x01\xff"], parent_block_hash=None)]))
    assert [(row["key"], row["parent_key"]) for row in told.rows] == [("01ff", None)]


def test_placeholders_of_offloaded_blocks_form_no_chain(told: Told) -> None:
    placeholder = stored(medium="CPU", block_size=0, token_ids=[], parent_block_hash=None, locality="LOCAL")
    publisher("OffloadingConnector").publish(Some(events=[placeholder]))
    assert [(row["parent_key"], row["tokens"], row["locality"]) for row in told.rows] == [
        (None, None, "local")
    ] * 2
    assert {(row["tier"], row["component"]) for row in told.rows} == {("host", "vllm.offloading.cpu")}


def test_storage_is_the_medium_of_the_tier_that_owns_it(told: Told) -> None:
    events = [
        BlockRemoved(block_hashes=[1], medium="STORAGE", ownership=owner)
        for owner in ("fs", "obj", "p2p", None)
    ]
    publisher("OffloadingConnector").publish(Some(events=events))
    assert [(row["event"], row["tier"], row["component"]) for row in told.rows] == [
        ("removed", "disk", "vllm.offloading.fs"),
        ("removed", "object", "vllm.offloading.obj"),
        ("removed", "peer", "vllm.offloading.p2p"),
        ("removed", "unknown", "vllm.offloading.storage"),
    ]


def test_a_cleared_pool_is_one_row_without_a_key(told: Told) -> None:
    publisher().publish(Some(events=[AllBlocksCleared()]))
    assert [(row["event"], row["key"], row["tier"]) for row in told.rows] == [("cleared", None, "gpu")]


def test_batches_are_numbered_as_on_the_wire(told: Told) -> None:
    own = publisher()
    for _ in range(3):
        own.publish(Some(events=[AllBlocksCleared()]))
    assert [row["seq"] for row in told.rows] == [0, 1, 2]


def test_an_engine_without_events_is_left_alone(told: Told) -> None:
    publisher()
    NullEventPublisher().publish(Some(events=[stored()]))
    assert told.rows == []
