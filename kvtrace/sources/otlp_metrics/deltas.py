"""Changes -> totals: what an exporter of delta temporality sends, added up series by series.

    start of the first    time            time
           0               +3              +2
           |----- 3 --------|----- 2 -------|        changes as they come
           0                3               5        totals as the table holds them

A change that comes a second time (same start, same time) counts once: an exporter that got no answer sends
again. One that comes after a later one of its series cannot be added any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter

    from kvtrace.sources.otlp_metrics.points import Metric, Pairs, Point

SERIES = 50_000
HELD_BYTES = 64 << 20
"""More series than any engine has, and about what their totals take: changes of the rest are dropped."""


@dataclass(slots=True)
class Deltas:
    """The last total of every series of changes; what could not be added is in `counted`."""

    counted: Counter[str]
    _totals: dict[tuple[Metric, Pairs], Point] = field(default_factory=dict)
    _held: int = 0

    def added(self, metric: Metric, change: Point) -> tuple[Point, ...]:
        """The total after a change, with the 0 that the first one starts from; nothing if it is set aside."""
        key = (metric, change.attributes)
        before = self._totals.get(key)
        if before is None:
            self._held += _size(metric, change)
            if len(self._totals) >= SERIES or self._held > HELD_BYTES:
                self._held -= _size(metric, change)
                self.counted["series"] += 1
                return ()
        if before is not None and change.time_ns <= before.time_ns:
            again = (change.start_ns, change.time_ns) == (before.start_ns, before.time_ns)
            self.counted["again" if again else "disordered"] += 1
            return ()
        total = change if before is None else _sum(before, change)
        # a start of 0 says nothing, and one at its own time that nothing was counted in between
        first = before is None and 0 < change.start_ns < change.time_ns
        self._totals[key] = total
        self.counted["changes"] += 1
        return (_nothing(change), total) if first else (total,)


def _size(metric: Metric, change: Point) -> int:
    """About how many bytes a series takes."""
    texts = len(metric.name) + sum(len(key) + len(text) for key, text in change.attributes)
    return 500 + texts + 40 * len(change.counts)


def _nothing(change: Point) -> Point:
    """Where the first change of a series starts."""
    return change._replace(
        time_ns=change.start_ns, low=None, high=None, value=_zero(change.value),
        observed=_zero(change.observed), total=_zero(change.total), counts=(0.0,) * len(change.counts),
    )  # fmt: skip


def _zero(value: float | None) -> float | None:
    return None if value is None else 0.0


def _sum(before: Point, change: Point) -> Point:
    """A total and a change; buckets whose bounds moved are not compared, and left out from there on."""
    same = before.bounds == change.bounds and len(before.counts) == len(change.counts)
    counts = tuple(map(float.__add__, before.counts, change.counts)) if same else ()
    return change._replace(
        value=_plus(before.value, change.value), observed=_plus(before.observed, change.observed),
        total=_plus(before.total, change.total), bounds=change.bounds if same else (), counts=counts,
    )  # fmt: skip


def _plus(before: float | None, change: float | None) -> float | None:
    """A total stays where a change says nothing; it is unknown where one was."""
    return before if change is None else change if before is None else before + change
