"""What both encodings give: a point of a metric, typed, its attributes already text."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvtrace.sources.otlp import values

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.sources.otlp.batch import Gate

GAUGE, SUM, HISTOGRAM, EXPONENTIAL, SUMMARY = "gauge", "sum", "histogram", "exponential", "summary"
DELTA = 1
"""AGGREGATION_TEMPORALITY_DELTA; 2 is cumulative, 0 is not said."""
NO_VALUE = 1
"""DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK."""

Pairs = tuple[tuple[str, str], ...]


class Metric(NamedTuple):
    """What all points of a metric share; `who` is the resource and the scope they come from."""

    who: Who
    name: str
    unit: str
    kind: str
    temporality: int
    monotonic: bool


class Who(NamedTuple):
    """Who measured: its process, as spans name it, and the name of the instrumentation scope."""

    process: str | None
    scope: str


class Point(NamedTuple):
    """One data point.

    value: of a gauge or a sum; None when it has none
    observed, total, low, high: of the others how many values, their sum, the extremes; None where not said
    bounds, counts: explicit buckets, one more count than bounds; empty when there are none
    quantiles: of a summary
    examples: how many exemplars it has, and how many of them name a trace
    """

    attributes: Pairs
    start_ns: int
    time_ns: int
    flags: int = 0
    value: float | None = None
    observed: float | None = None
    total: float | None = None
    low: float | None = None
    high: float | None = None
    bounds: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    quantiles: tuple[tuple[float, float], ...] = ()
    examples: tuple[int, int] = (0, 0)


def texts(pairs: Iterable[tuple[str, values.Plain]], gate: Gate) -> Pairs:
    """Attributes as text, sorted by name; content is counted and dropped, the last of a name wins."""
    return tuple(sorted(values.resource(pairs, gate).items()))
