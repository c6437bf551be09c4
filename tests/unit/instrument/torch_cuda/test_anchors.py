"""When the device's clock is compared with the host's.

host     b─s ... 4 s while copies are made ... b─s        one event each on an idle stream
device    D0                                    D1        D1 = D0 + what the driver says between them
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.instrument.scope import request
from kvtrace.instrument.torch_cuda import anchors
from kvtrace.instrument.torch_cuda.anchors import Anchors

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.instrument.torch_cuda.conftest import Told, World
    from tests.unit.instrument.torch_cuda.device import Clocked

SECOND = 1_000_000_000


@pytest.fixture
def taken(told: Told, device: Clocked) -> Anchors:
    told.tick = 100
    return Anchors(device, 0)


def test_an_anchor_is_taken_at_once_and_again_after_four_seconds(taken: Anchors, told: Told) -> None:
    taken.renew()
    told.clock += anchors.EVERY_NS // 2
    taken.renew()
    assert taken.mapping.anchors == 1
    told.clock += anchors.EVERY_NS // 2
    taken.renew()
    assert taken.mapping.anchors == 2


def test_of_some_tries_the_narrowest_counts(
    taken: Anchors, told: Told, device: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen after 300, 40 and 90 us: all wider than enough, so all three are tried."""
    late = iter((300_000, 40_000, 90_000))
    make = device.event

    def event(index: int) -> Any:
        made = make(index)
        own, when = made.record, next(late)
        return type("Slow", (), {
            "record": lambda _self, stream: own(stream),
            "query": lambda _self: setattr(told, "clock", told.clock + when) or True,
            "elapsed_time": made.elapsed_time,
        })()  # fmt: skip

    monkeypatch.setattr(device, "event", event)
    taken.renew()
    assert 20_000 <= taken.mapping.worst_error <= 20_200


def test_a_device_that_is_busy_is_looked_at_again_and_never_waited_for(
    taken: Anchors, told: Told, device: Clocked
) -> None:
    """Its interval is wide, and true: the anchor before it, 4 s ago, says more.

    host    b────1 ms: not over, go on ............ 5 s s
    """
    taken.renew()
    narrow = taken.mapping.worst_error
    told.clock += anchors.EVERY_NS
    device.work(taken._stream, 5 * SECOND)
    begun = told.clock
    taken.renew()
    assert told.clock - begun < 2 * anchors.PATIENCE_NS
    told.clock += 3 * SECOND
    taken.renew()
    assert taken.mapping.anchors == 1
    told.clock += 3 * SECOND
    taken.renew()
    assert taken.mapping.anchors == 2
    assert taken.mapping.worst_error < narrow + 10 * SECOND // 10_000
    assert taken.mapping.jumps == 0


def test_a_first_anchor_that_is_wide_says_too_little(taken: Anchors, told: Told, device: Clocked) -> None:
    taken._stream = device.own_stream(0)
    device.work(taken._stream, SECOND)
    taken.renew()
    told.clock += 2 * SECOND
    taken.renew()
    assert taken.nearest(told.clock) is None
    taken.renew()
    assert taken.mapping.worst_error < 1_000


def test_after_a_pause_the_chain_begins_anew_and_its_facts_stay(taken: Anchors, told: Told) -> None:
    taken.renew()
    told.clock += anchors.STALE_NS + SECOND
    taken.renew()
    assert taken.facts() == {
        "anchors": 2, "clock_jumps": 0, "anchor_error_ns": taken.facts()["anchor_error_ns"],
    }  # fmt: skip
    assert len(taken._kept) == 1
    assert taken.nearest(0) is taken._kept[0]


def test_a_copy_is_measured_from_the_last_anchor_before_it(taken: Anchors, told: Told) -> None:
    times = []
    for _ in range(3):
        taken.renew()
        times.append(told.clock)
        told.clock += anchors.EVERY_NS
    found = [taken.nearest(time) for time in times]
    assert found == list(taken._kept)


@pytest.mark.parametrize("drift_ppm", [-60.0, 0.0, 60.0])
def test_an_hour_of_drift_moves_no_copy_by_more_than_a_fraction_of_a_millisecond(
    world: Callable[..., World], drift_ppm: float
) -> None:
    """60 ppm are 216 ms an hour; between two anchors they are 240 us."""
    here = world()
    here.told.tick = 10
    here.device.drift_ppm = drift_ppm
    truth = []
    with request("r1"):
        for _ in range(3_600):
            here.gpu().copy_(here.host())
            truth.append(here.device.default.free_ns)
            here.read(SECOND)
    rows = here.told.rows
    assert len(rows) == 3_600
    assert not here.told.losses
    off = [abs(row["end_ns"] - end) for row, end in zip(rows, truth, strict=True)]
    assert max(off[5:]) < 300_000
    for earlier, later in pairwise(rows):
        assert earlier["submit_ns"] <= earlier["start_ns"] <= earlier["end_ns"] <= later["start_ns"]
    here.copies.reaper.tell()
    facts = here.told.facts["attributes"]
    assert facts["stand-in:0.clock_jumps"] == 0
    assert abs(facts["stand-in:0.drift_ppb"] + drift_ppm * 1_000) < 2_000


def test_durations_are_the_devices_own(world: Callable[..., World]) -> None:
    here = world()
    here.told.tick = 10
    with request("r1"):
        for copy_ns in (1_000, 40_000, 3_000_000):
            here.device.copy_ns = copy_ns
            here.gpu().copy_(here.host())
            here.read(10_000_000)
            row = here.told.rows[-1]
            assert abs(row["end_ns"] - row["start_ns"] - copy_ns) < 1_000
