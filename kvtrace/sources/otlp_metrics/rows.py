"""Points -> rows of `metric`, in columns; what cannot be a row is counted."""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from kvtrace.sources.decoded import ROWS_A_PART
from kvtrace.sources.dialects import LATEST_NS
from kvtrace.sources.otlp_metrics import points
from kvtrace.sources.otlp_metrics.deltas import HELD_BYTES, SERIES, Deltas

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.otlp_metrics.points import Metric, Pairs, Point

EXACT = 2**53
"""From here on, neighbouring whole numbers share a float64."""
LABELS = 64
LONGEST_TEXT = 1 << 14
"""Characters of a name, or of all labels of a point together."""
BUCKETS = 1000
WAITING_TEXT = 32 << 20
"""Characters of labels of the rows that wait: a row a bucket repeats those of its point, 16 MB at most."""
SCOPE, UNIT, SOURCE = "otel.scope.name", "otel.unit", "kvtrace.source"
ROWS_A_POINT = 5
"""Beside its buckets and quantiles: count, sum, extremes, since when."""
_SCHEMA = {
    "name": pl.String, "kind": pl.String, "value": pl.Float64, "time_ns": pl.Int64, "process": pl.String,
}  # fmt: skip
_SUFFIX = re.compile(r"_(total|bucket|count|sum|created)$")

LOSSES = {
    "impossible": ("impossible_time", "points without a time, or outside of 64-bit nanoseconds"),
    "levels": ("dropped", "changes of what may also fall: their level is not known"),
    "series": ("dropped", f"changes of series beyond {SERIES:,}, or beyond {HELD_BYTES >> 20} MiB of them"),
    "disordered": ("dropped", "changes that came after later ones of their series"),
    "again": ("duplicate", "changes that came twice"),
    "labels": ("dropped", f"points with more than {LABELS} labels, or names and labels of {LONGEST_TEXT:,}"),
    "broken": ("undecodable", "points that say what cannot be"),
    "nameless": ("undecodable", "points of metrics without a name"),
    "buckets": ("undecodable", f"points whose buckets do not fit, or are more than {BUCKETS:,}"),
}
"""What is counted -> the cause and the words of the loss."""
NOTES = {
    "nan": "{} values are NaN, or not recorded: null in the table",
    "inexact": "{} counts are 2^53 or more: a float64 may be off by one and more",
    "changes": "{} points were changes: the table holds their totals",
    "exponential": "{} exponential histograms: their count and sum are kept, their buckets are not",
    "exemplars": "{} exemplars are counted and not kept",
    "traces": "{} of them name a trace",
}


class Rows:
    """The rows that wait, and what was counted on the way."""

    def __init__(self, source: str) -> None:
        self.counted: Counter[str] = Counter()
        self._source = source
        self._deltas = Deltas(self.counted)
        self._clear()

    def _clear(self) -> None:
        self._text = 0
        self._waiting: list[tuple[str, str, float | None, int, str | None, int]] = []
        self._labels: dict[Pairs, int] = {}

    @property
    def full(self) -> bool:
        """Whether it is time for a part."""
        rows = len(self._waiting)
        return rows >= ROWS_A_PART or (rows > 0 and self._text >= WAITING_TEXT)

    def __len__(self) -> int:
        return len(self._waiting)

    def frame(self) -> pl.DataFrame:
        """The rows that wait; none wait afterwards."""
        pairs = [pair for labels in self._labels for pair in labels]
        parts = [pa.array([pair[at] for pair in pairs], pa.string()) for at in (0, 1)]
        offsets = [0, *accumulate(map(len, self._labels))]
        labels = pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), pa.StructArray.from_arrays(parts, ["key", "value"])
        )
        *columns, own = zip(*self._waiting, strict=True)
        frame = pl.DataFrame(dict(zip(_SCHEMA, columns, strict=True)), schema=_SCHEMA)
        found = frame.with_columns(pl.Series(labels.take(pa.array(own, pa.int32()))).alias("labels"))
        self._clear()
        return found

    def take(self, metric: Metric, point: Point | None) -> None:
        """The rows of a point, unless something makes it none: then that is counted."""
        if point is None:
            self.counted["broken"] += 1
            return
        self.counted["exemplars"] += point.examples[0]
        self.counted["traces"] += point.examples[1]
        wrong = self._wrong(metric, point)
        if wrong is not None:
            self.counted[wrong] += 1
            return
        self.counted["exponential"] += metric.kind == points.EXPONENTIAL
        labels = self._labelled(metric, point)
        if metric.temporality != points.DELTA or metric.kind in (points.GAUGE, points.SUMMARY):
            self._rows(metric, point, labels, created=True)
            return
        for total in self._deltas.added(metric, point):
            self._rows(metric, total, labels, created=False)

    def _wrong(self, metric: Metric, point: Point) -> str | None:
        """Why a point is no row."""
        if not 0 < point.time_ns <= LATEST_NS:
            return "impossible"
        if not metric.name:
            return "nameless"
        size = len(metric.name) + len(metric.unit) + len(metric.who.scope)
        size += sum(len(key) + len(text) for key, text in point.attributes)
        if len(point.attributes) > LABELS or size > LONGEST_TEXT:
            return "labels"
        self._text += size * (ROWS_A_POINT + len(point.counts) + len(point.quantiles))
        falls = metric.kind == points.SUM and not metric.monotonic
        return "levels" if falls and metric.temporality == points.DELTA else None

    def _labelled(self, metric: Metric, point: Point) -> Pairs:
        own = ((SCOPE, metric.who.scope), (UNIT, metric.unit))
        found = (*point.attributes, *((key, text) for key, text in own if text))
        if metric.who.process is None:
            found = (*found, (SOURCE, self._source))
        return _once(found)

    def _rows(self, metric: Metric, point: Point, labels: Pairs, *, created: bool) -> None:
        said = not point.flags & points.NO_VALUE
        counts = metric.monotonic if metric.kind == points.SUM else metric.kind != points.GAUGE
        for name, kind, value, extra in self._samples(metric, point):
            own = _once((*labels, *extra)) if extra else labels
            self._row(name, kind, value if said else None, point.time_ns, metric.who.process, own)
        if created and counts and 0 < point.start_ns <= point.time_ns:
            name, began = f"{_SUFFIX.sub('', metric.name)}_created", point.start_ns / 1e9
            self._row(name, "gauge", began, point.time_ns, metric.who.process, labels)

    def _samples(self, metric: Metric, point: Point) -> Iterator[tuple[str, str, float | None, Pairs]]:
        """Name, kind, value and further labels of each row of a point."""
        name = metric.name
        if metric.kind in (points.GAUGE, points.SUM):
            counts = metric.kind == points.SUM and metric.monotonic
            yield name, "counter" if counts else "gauge", point.value, ()
            return
        kind = "summary" if metric.kind == points.SUMMARY else "histogram"
        if len(point.quantiles) > BUCKETS:
            self.counted["buckets"] += 1
        else:
            yield from ((name, kind, value, (("quantile", repr(at)),)) for at, value in point.quantiles)
        if point.counts:
            if len(point.counts) == len(point.bounds) + 1 <= BUCKETS:
                bounds = (*map(repr, point.bounds), "+Inf")
                for bound, count in zip(bounds, accumulate(point.counts), strict=True):
                    yield f"{name}_bucket", kind, count, (("le", bound),)
            else:
                self.counted["buckets"] += 1
        yield f"{name}_count", kind, point.observed, ()
        if point.total is not None:
            yield f"{name}_sum", kind, point.total, ()
        for word, extreme in (("min", point.low), ("max", point.high)):
            if extreme is not None:
                yield f"{name}_{word}", "gauge", extreme, ()

    def _row(
        self, name: str, kind: str, value: float | None, time_ns: int, process: str | None, labels: Pairs
    ) -> None:
        if value is None or math.isnan(value):
            self.counted["nan"] += 1
            value = None
        elif kind != "gauge" and EXACT <= abs(value) < math.inf:
            self.counted["inexact"] += 1
        own = self._labels.setdefault(labels, len(self._labels))
        self._waiting.append((name, kind, value, time_ns, process, own))


def _once(pairs: Pairs) -> Pairs:
    """Each name once: ours, whatever an attribute says."""
    names = dict(pairs)
    return pairs if len(names) == len(pairs) else tuple(names.items())
