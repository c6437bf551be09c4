"""Device time on the host's clock.

host    ──b─────s────────x──────►     the event of an anchor was over somewhere in [b, s]
device  ────D────────────X──────►     x = X + offset, and the offset is known within (s - b) / 2 at D
"""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrace.instrument.torch_cuda.mapping import DRIFT_PPM, MOST_SEGMENTS, SLEW_PPM, Mapping

SECOND = 1_000_000_000


def test_a_time_is_the_anchors_middle_and_the_device_time_since() -> None:
    mapping = Mapping()
    mapping.anchor(0, 1_000, 1_200)
    assert mapping.host(0) == 1_100
    assert mapping.host(500) == 1_600
    assert mapping.bound(0) == 101
    assert mapping.drift_ppb() is None


def test_a_wide_anchor_does_not_spoil_a_narrow_one() -> None:
    """The narrow interval, widened by what may have drifted in 1 s (100 us), lies inside the wide one."""
    mapping = Mapping()
    mapping.anchor(0, 1_000, 1_200)
    mapping.anchor(SECOND, SECOND - 400_000, SECOND + 900_000)
    assert mapping.host(SECOND) == SECOND + 1_100
    assert mapping.bound(SECOND) <= 100 + 100_000 + 3
    assert mapping.jumps == 0


def test_drift_is_measured_and_what_was_mapped_before_stays() -> None:
    """The host runs 20 ppm faster: 20 us more after each second."""
    mapping = Mapping()
    for second in range(4):
        host = second * (SECOND + 20_000)
        mapping.anchor(second * SECOND, host - 50, host + 50)
        if second == 1:
            before = mapping.host(SECOND // 2), mapping.host(SECOND)
    assert (mapping.host(SECOND // 2), mapping.host(SECOND)) == before
    assert abs((mapping.drift_ppb() or 0) - 20_000) < 1_000
    assert mapping.jumps == 0


def test_after_an_anchor_the_offset_walks_to_its_aim_and_never_jumps() -> None:
    """40 us too late at the anchor; at 500 ppm they are made good after 80 ms."""
    mapping = Mapping()
    mapping.anchor(0, 0, 0)
    mapping.anchor(SECOND, SECOND - 40_000, SECOND - 40_000)
    assert mapping.host(SECOND) == SECOND
    assert mapping.host(SECOND + 40_000_000) == SECOND + 40_000_000 - 20_000
    assert mapping.host(SECOND + 80_000_000) == SECOND + 80_000_000 - 40_000
    assert mapping.host(SECOND + 90_000_000) == SECOND + 90_000_000 - 40_000


def test_a_clock_that_jumps_is_counted_and_believed() -> None:
    mapping = Mapping()
    mapping.anchor(0, 0, 100)
    mapping.anchor(SECOND, 2 * SECOND, 2 * SECOND + 100)
    assert mapping.jumps == 1
    assert mapping.host(10_000 * SECOND) == 10_001 * SECOND + 50


def test_the_segments_are_bounded() -> None:
    mapping = Mapping()
    for second in range(1_000):
        mapping.anchor(second * SECOND, second * SECOND, second * SECOND + 10)
    assert len(mapping._segments) == MOST_SEGMENTS
    assert mapping.anchors == 1_000


anchor = st.tuples(
    st.integers(1_000_000, 8 * SECOND),  # device ns since the anchor before
    st.integers(0, 300_000),  # host: from the clock's reading to the event
    st.integers(0, 300_000),  # and from the event to the reading that saw it
    st.integers(-DRIFT_PPM, DRIFT_PPM),  # the drift meanwhile
)


@settings(max_examples=300, deadline=None)
@given(
    anchors=st.lists(anchor, min_size=1, max_size=12),
    probes=st.lists(st.floats(0, 1), min_size=2, max_size=20),
    zero=st.integers(-(10**15), 10**15),
)
def test_the_mapping_never_runs_backwards_and_is_within_its_bound(
    anchors: list[tuple[int, int, int, int]], probes: list[float], zero: int
) -> None:
    mapping = Mapping()
    truth = [(0, zero)]  # (device ns, host ns), linear between
    for apart, before, after, drift in anchors:
        device, host = truth[-1]
        truth.append((device + apart, host + apart + apart * drift // 1_000_000))
        mapping.anchor(truth[-1][0], truth[-1][1] - before, truth[-1][1] + after)
    assert mapping.jumps == 0
    for (d0, h0), (d1, h1) in pairwise(truth[1:]):
        for probe in probes:
            device = d0 + int((d1 - d0) * probe)
            host = h0 + (device - d0) * (h1 - h0) // max(1, d1 - d0)
            assert abs(mapping.host(device) - host) <= mapping.bound(device) + 2
    points = sorted({int(truth[-1][0] * probe) for probe in probes} | {device for device, _ in truth})
    mapped = [mapping.host(point) for point in points]
    assert mapped == sorted(mapped)
    for (a, x), (b, y) in pairwise(zip(points, mapped, strict=True)):
        assert abs((y - x) - (b - a)) <= (b - a) * SLEW_PPM // 1_000_000 + 2 * MOST_SEGMENTS
