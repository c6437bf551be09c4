"""On the bus: subscribed before the first event, to all but tokens; drops and failures are counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.lmcache import bus as ours
from kvtrace.instrument.lmcache import storage
from kvtrace.instrument.lmcache.subscriber import LOOK_NS, Storage
from tests.unit.instrument.lmcache.literal import Bus, Event, Kind, key, read

if TYPE_CHECKING:
    from tests.unit.instrument.conftest import Told
    from tests.unit.instrument.lmcache.conftest import Server


def test_it_hears_everything_but_tokens_from_the_first_event_on(server: Server, told: Told) -> None:
    bus = server.start(Bus())
    assert set(bus.callbacks) == set(Kind) - {Kind.TOKENS}
    assert server.tracing == [True]
    bus.publish(Event(Kind.LOCKED, {"keys": [key(1)]}))
    (row,) = told.table("block")
    assert (row["event"], row["key"], row["ttl_ns"], row["tier"]) == (
        "locked",
        "01010101",
        3_000_000_000,
        "host",
    )


def test_its_times_are_on_the_clock_of_the_run(server: Server, told: Told) -> None:
    server.start(Bus()).publish(Event(Kind.STARTED, session_id="r", timestamp=4.0))
    (row,) = told.table("span")
    assert row["start_ns"] == 4_000_000_000 - 500


def test_events_are_numbered_as_they_come(server: Server, told: Told) -> None:
    bus = server.start(Bus())
    for _ in range(3):
        bus.publish(Event(Kind.STARTED, session_id="r"))
    assert [row["attributes.seq"] for row in told.table("span")] == [0, 1, 2]


def test_starting_the_bus_twice_subscribes_once(server: Server) -> None:
    bus = server.start(Bus())
    bus.start()
    assert {len(found) for found in bus.callbacks.values()} == {1}
    assert len(bus._registered_subscribers) == 1


def test_a_bus_that_cannot_be_heard_is_said_of_the_process(server: Server, told: Told) -> None:
    bus = server.start(Bus(enabled=False))
    assert bus.callbacks == {}
    assert server.tracing == []
    said = {name: state for each in told.described for name, state in each["instruments"].items()}
    assert (said[ours.INSTRUMENT], said[ours.CALLS]) == (ours.OFF, ours.OFF)
    assert {(each["role"], each["product"], each["version"]) for each in told.described} == {
        ("server", "lmcache", "0.5.5")
    }


def test_what_nobody_knows_is_a_row_and_counted(server: Server, told: Told) -> None:
    server.start(Bus()).publish(Event(Kind.NEW, {"count": 3, "text": "secret"}))
    (row,) = told.table("span")
    assert (row["name"], row["attributes.count"]) == ("l9.moved", 3)
    assert told.losses == [("undecodable", "LMCache's event l9.moved: nobody knows it")]
    assert "secret" not in repr(told.rows)


def test_what_we_cannot_decode_is_counted_and_goes_nowhere(server: Server, told: Told) -> None:
    server.start(Bus()).publish(Event(Kind.LOCKED, {"keys": [object()]}))
    assert told.losses == [("hook_failure", "lmcache.subscriber: AttributeError")]
    assert told.table("block") == []


def test_an_event_without_a_time_is_set_aside(server: Server, told: Told) -> None:
    server.start(Bus()).publish(Event(Kind.STARTED, session_id="r", timestamp=0.0))
    assert told.losses == [("impossible_time", "an event of LMCache without a time")]
    assert told.table("span") == []


def losses(told: Told) -> list[dict[str, Any]]:
    return [row for row in told.rows if row["table"] == "loss"]


def test_what_the_bus_dropped_is_a_loss_of_the_time_since_the_last_look(server: Server, told: Told) -> None:
    bus = server.start(Bus())
    bus.publish(Event(Kind.STARTED, session_id="r"))
    since, told.clock = told.clock, told.clock + LOOK_NS + 1
    bus.dropped = 40
    for seconds in (2.5, 3.5, 3.6):  # within a second nobody looks
        bus.publish(Event(Kind.STARTED, session_id="r", timestamp=seconds))
    (found,) = losses(told)
    assert (found["cause"], found["count"]) == ("dropped", 40)
    assert (found["from_ns"], found["to_ns"]) == (since, told.clock)


def test_what_it_dropped_at_its_end_is_counted_when_it_stops(server: Server, told: Told) -> None:
    bus = server.start(Bus())
    bus.dropped = 2
    (own,) = bus._registered_subscribers
    own.shutdown()
    own.shutdown()
    assert [row["count"] for row in losses(told)] == [2]


def test_callbacks_of_others_that_fail_are_theirs(server: Server, told: Told) -> None:
    bus = server.start(Bus())
    bus.failures = {"L1MetricsSubscriber": 3, "Subscriber._callback.<locals>.receive": 1}
    (own,) = bus._registered_subscribers
    own.shutdown()
    assert [cause for cause, _ in told.losses] == ["hook_failure"]


def test_a_prefetch_is_tied_to_its_request_when_it_is_submitted(server: Server, told: Told) -> None:
    server.start(Bus())
    spec = SimpleNamespace(keys=[key(1)], mode=SimpleNamespace(name="LOOKUP"))
    server.manager.submit_prefetch_task(spec, external_request_id="r")
    (row,) = told.table("span")
    assert (row["name"], row["request_id"], row["attributes.prefetch_id"]) == ("prefetch.submitted", "r", 5)
    assert ours.prefetches.request_of(5) == ("r", False)


#  4 objects were asked for: two shards, one object group or two, with a window or without
@pytest.mark.parametrize(
    ("windows", "tokens"), [([-1], 512), ([-1, -1], 256), ([-1, 4], None), ([], None), (None, None)]
)
def test_a_load_from_l2_has_the_tokens_of_its_chunks_where_every_chunk_has_as_many_objects(
    server: Server, windows: list[int] | None, tokens: int | None
) -> None:
    server.start(Bus())
    spec = SimpleNamespace(keys=[key(1)], mode="lookup")
    if windows is not None:
        spec.attn_desc = SimpleNamespace(num_chunks_in_sw=windows, world_size=2)
    server.manager.submit_prefetch_task(spec, external_request_id="r")
    decode = Storage().handlers(ours.prefetches, 0)
    asked = {"request_id": 5, "adapter_index": 0, "task_id": 1, "l2_name": "fs", "key_count": 4}
    decode["mp.lookup"](0, 10, "r", {"request_id": "r", "chunk_size": 256, "chunk_hashes": []})
    decode["l2.load_task.submitted"](1, 20, "", {**asked, "total_bytes": 400})
    decode["l2.load_task.completed"](2, 30, "", asked)
    (row, *_) = read(
        decode["l2.prefetch.load.completed"](
            3, 31, "", {"request_id": 5, "loaded_count": 4, "failed_count": 0}
        )
    )
    assert (row["outcome"], row["bytes"], row.get("tokens")) == ("ok", 400, tokens)


def test_what_is_deleted_by_force_says_so_and_evictions_do_not(told: Told) -> None:
    manager = type("L1Manager", (), {"clear": lambda *_, **__: 7, "delete": lambda *_, **__: 8})
    storage.install_first_level(SimpleNamespace(L1Manager=manager))
    own = manager()
    assert (own.clear(force=True), own.clear(), own.delete([key(1)], force=True), own.delete([key(2)])) == (
        7,
        7,
        8,
        8,
    )
    assert [(row["event"], row["reason"], row.get("key")) for row in told.table("block")] == [
        ("cleared", "force", None), ("cleared", "unlocked", None), ("cleared", "force_delete", "01010101"),
    ]  # fmt: skip
