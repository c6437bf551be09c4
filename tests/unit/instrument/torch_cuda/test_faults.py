"""What goes wrong with a device is counted, one loss a copy, and never reaches the engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kvtrace.instrument.scope import request
from kvtrace.instrument.torch_cuda import station
from kvtrace.instrument.torch_cuda.stand_in import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.instrument.torch_cuda.conftest import World


def copy(here: World, times: int = 1) -> None:
    for _ in range(times):
        with request("r1"):
            here.gpu().copy_(here.host())


def test_a_pool_that_is_empty_costs_the_copies_it_has_no_events_for(world: Callable[..., World]) -> None:
    here = world(most=3)
    copy(here, 5)
    assert here.told.losses == [("dropped", "load", "copy: no event is free")] * 2
    assert len(here.read()) == 3
    copy(here, 3)
    assert len(here.read()) == 6


def test_a_copy_that_never_ends_is_counted_after_a_minute_and_its_pair_retired(
    world: Callable[..., World],
) -> None:
    """Those behind it on its stream cannot be over either; the pool makes others in their place."""
    here = world(most=2)
    here.device.copy_ns = NEVER
    copy(here)
    hung = here.copies.reaper.stations[0].incoming[0]
    assert here.read(station.NEVER_NS - 10_000_000) == []
    assert here.told.losses == []
    here.read(20_000_000)
    assert here.told.losses == [("dropped", "load", "copy: did not end")]
    here.device.default.free_ns = 0
    here.device.copy_ns = 50_000
    copy(here, 2)
    assert len(here.read()) == 2
    pool = here.copies.reaper.stations[0].pool
    assert pool.made == 2
    assert hung not in pool._free


def test_an_event_that_is_destroyed_costs_its_copy_alone(world: Callable[..., World]) -> None:
    here = world()
    copy(here, 3)
    middle = here.copies.reaper.stations[0].incoming[1]
    middle.end.broken = RuntimeError("invalid resource handle")
    assert len(here.read()) == 2
    assert here.told.losses == [("dropped", "load", "copy: event cannot be read: RuntimeError")]


def test_events_that_fail_now_and_then_do_not_make_a_device_that_is_gone(world: Callable[..., World]) -> None:
    here = world()
    copy(here, 60)
    for pair in list(here.copies.reaper.stations[0].incoming)[::2]:
        pair.end.broken = RuntimeError("invalid resource handle")
    assert len(here.read(10_000_000)) == 30
    assert len(here.told.losses) == 30
    assert here.copies.reaper.stations[0].gone_until_ns == 0


def test_a_stream_that_is_gone_costs_the_copy_that_would_use_it(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world()

    def gone(_index: int) -> None:
        raise RuntimeError("invalid device context")

    with monkeypatch.context() as patch:
        patch.setattr(here.device, "stream", gone)
        copy(here)
    assert here.told.losses == [("dropped", "load", "copy: event cannot be recorded: RuntimeError")]
    copy(here)
    assert len(here.read()) == 1


def test_a_stream_that_goes_away_during_a_copy_costs_that_copy(world: Callable[..., World]) -> None:
    here = world()
    with request("r1"):
        pair = here.copies.begin("copy_", "load", 0)
        pair.end.broken = RuntimeError("invalid resource handle")
        here.copies.end(pair, 16)
    copy(here)
    assert len(here.read()) == 1
    assert here.told.losses == [("dropped", "load", "copy: event cannot be recorded: RuntimeError")]


def test_a_device_that_was_reset_loses_all_that_waits_and_is_left_alone_for_a_while(
    world: Callable[..., World],
) -> None:
    here = world()
    copy(here, 40)
    here.device.broken = RuntimeError("CUDA error: an illegal memory access was encountered")
    assert here.read() == []
    assert len(here.told.losses) == 40
    assert {(cause, op) for cause, op, _ in here.told.losses} == {("dropped", "load")}
    copy(here)
    assert here.told.losses[-1] == ("dropped", "load", "copy: device is gone")
    here.device.broken = None
    here.read(station.GONE_NS + 1)
    copy(here)
    assert len(here.read()) == 1


def test_a_device_that_stays_broken_is_asked_only_now_and_then(world: Callable[..., World]) -> None:
    here = world()
    here.device.broken = RuntimeError("CUDA error: device-side assert triggered")
    copy(here, 50)
    assert here.read() == []
    assert len(here.told.losses) == 50


def test_a_copy_that_only_a_graph_captures_is_counted_and_takes_no_event(
    world: Callable[..., World],
) -> None:
    here = world()
    here.device.is_capturing = True
    copy(here)
    assert here.told.losses == [("dropped", "load", "copy: captured by a graph, not run")]
    assert here.device.events == 0


def test_nothing_is_asked_of_a_device_while_somebody_captures_and_the_thread_is_not_relaxed(
    world: Callable[..., World],
) -> None:
    here = world()
    copy(here)
    here.copies.reaper._relaxed = False
    here.device.is_capturing = True
    assert here.read() == []
    here.device.is_capturing = False
    assert len(here.read()) == 1


def test_a_device_clock_that_jumps_gives_a_loss_and_no_invented_time(world: Callable[..., World]) -> None:
    here = world()
    copy(here)
    assert len(here.read()) == 1
    here.device.zero_ns += 3_600_000_000_000
    copy(here)
    assert len(here.read()) == 1
    assert here.told.losses == [("impossible_time", "load", "copy: the device's clock jumped")]
    copy(here)
    assert len(here.read()) == 2


def test_an_end_before_its_start_is_set_aside(world: Callable[..., World]) -> None:
    here = world()
    copy(here)
    (pair,) = here.copies.reaper.stations[0].incoming
    pair.end.stamp = pair.start.stamp - 10_000
    assert here.read() == []
    assert here.told.losses == [("negative_duration", "load", None)]


def test_at_the_end_what_is_over_is_written_and_the_rest_counted(world: Callable[..., World]) -> None:
    here = world()
    copy(here)
    here.device.copy_ns = NEVER
    here.told.clock += 1_000_000
    copy(here)
    here.copies.finish()
    here.copies.finish()
    copy(here)
    assert len(here.told.rows) == 1
    assert here.told.losses == [("dropped", "load", "copy: the process ended before it did")]


def test_a_forked_child_begins_without_what_waits_in_its_parent(world: Callable[..., World]) -> None:
    here = world()
    copy(here, 3)
    here.copies.begin_again()
    assert here.copies.reaper.stations == {}


def test_a_reaper_that_stumbles_goes_on(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    here = world()
    copy(here)

    def stumble() -> None:
        raise OSError("no clock")

    with monkeypatch.context() as patch:
        patch.setattr(here.copies.reaper.stations[0].anchors, "renew", stumble)
        assert here.read() == []
    assert len(here.read()) == 1


@pytest.mark.parametrize("streams", [1, 500])
def test_many_copies_grow_nothing(world: Callable[..., World], streams: int) -> None:
    """Each round 100 copies and one look of the reaper, on streams that come and go."""
    here = world(most=256)
    here.told.record = lambda _row: None
    mine = here.device.default
    target, source = here.gpu(), here.host()
    with request("r1"):
        for turn in range(100):
            mine.cuda_stream = turn % streams
            for _ in range(100):
                target.copy_(source)
            target.calls.clear()
            here.read(10_000_000)
    there = here.copies.reaper.stations[0]
    assert there.pool.made <= 100
    assert here.device.events <= 2 * 100 + there.anchors.mapping.anchors * 3
    assert len(there._lanes) <= station.MOST_IDLE_LANES
    assert not there.waiting()
    assert not here.told.losses
