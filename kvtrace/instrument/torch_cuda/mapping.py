"""When, on the host's clock, did something happen on the device?

A device's clock runs from another zero and a little faster or slower. An anchor is an event on an idle
stream: its device time lies between the host clock read before it was recorded and the one read when it was
seen to be over, so the offset (host minus device) lies in an interval.

    host     ──b────s───────────────────────b───s──────►      b: before the record, s: seen to be over
                 │ anchor 0                   │ anchor 1
    device   ────D0───────────────────────────D1───────►

    offset   in [b0-D0, s0-D0], then in [b1-D1, s1-D1], and between them it moved at most DRIFT_PPM:
             the intervals, widened by what may have drifted, are intersected; the middle is the aim

From anchor 1 on the offset in use walks from where it was towards the new aim, at most SLEW_PPM: the mapping
is continuous and never runs backwards, no interval is torn, nothing mapped earlier changes. Device times are
ns since the first anchor of the device (a chain from anchor to anchor: the driver gives differences as 32-bit
milliseconds, which are coarser than a microsecond beyond 16 s).
"""

from __future__ import annotations

DRIFT_PPM = 100
"""How much the two clocks may drift apart, parts a million; a crystal's worst is half of that."""
SLEW_PPM = 500
MOST_SEGMENTS = 64
_MILLION = 1_000_000


class Segment:
    """From `device_ns` on the offset walks from `begin` to `aim`, which is known within `error` ns."""

    __slots__ = ("aim", "begin", "device_ns", "error")

    def __init__(self, device_ns: int, begin: int, aim: int, error: int) -> None:
        self.device_ns = device_ns
        self.begin = begin
        self.aim = aim
        self.error = error

    def offset(self, device_ns: int) -> int:
        """Host minus device at a device time, ns."""
        gap = self.aim - self.begin
        walked = max(0, device_ns - self.device_ns) * SLEW_PPM // _MILLION
        return self.begin + (min(gap, walked) if gap >= 0 else -min(-gap, walked))

    def bound(self, device_ns: int) -> int:
        """How far the mapping may be from the truth there, ns, if the drift is below DRIFT_PPM."""
        away = abs(device_ns - self.device_ns) * DRIFT_PPM // _MILLION + 1
        return self.error + abs(self.aim - self.offset(device_ns)) + away


class Mapping:
    """Device ns -> host ns of one device, from its anchors."""

    __slots__ = ("_first", "_high", "_low", "_segments", "anchors", "jumps", "worst_error")

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._first: tuple[int, int] | None = None
        self._low = self._high = 0
        self.anchors = 0
        self.jumps = 0
        self.worst_error = 0

    def anchor(self, device_ns: int, before_ns: int, seen_ns: int) -> None:
        """One more anchor, later than those before: its device time and the two readings of the host."""
        low, high = before_ns - device_ns, seen_ns - device_ns
        if self._segments:
            last = self._segments[-1]
            apart = max(0, device_ns - last.device_ns) * DRIFT_PPM // _MILLION + 1
            both = max(low, self._low - apart), min(high, self._high + apart)
            if both[0] <= both[1]:
                low, high = both
            else:
                self.jumps += 1
            begin = last.offset(device_ns)
        else:
            begin = (low + high) // 2
        aim, error = (low + high) // 2, (high - low + 1) // 2
        self._low, self._high = low, high
        self._segments.append(Segment(device_ns, begin, aim, error))
        del self._segments[:-MOST_SEGMENTS]
        self._first = self._first or (device_ns, aim)
        self.anchors += 1
        self.worst_error = max(self.worst_error, error)

    def host(self, device_ns: int) -> int:
        """The host's time of a device time, ns; in the order of the device."""
        return device_ns + self._at(device_ns).offset(device_ns)

    def bound(self, device_ns: int) -> int:
        """How far `host` may be from the truth, ns."""
        return self._at(device_ns).bound(device_ns)

    def drift_ppb(self) -> int | None:
        """How much faster the host's clock runs than the device's, parts a billion; None with one anchor."""
        if self._first is None or len(self._segments) < 2:
            return None
        last = self._segments[-1]
        return (last.aim - self._first[1]) * 1_000_000_000 // max(1, last.device_ns - self._first[0])

    def _at(self, device_ns: int) -> Segment:
        for segment in reversed(self._segments):
            if segment.device_ns <= device_ns:
                return segment
        return self._segments[0]
