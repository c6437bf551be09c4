"""Samples -> rows of `metric`, what was lost, and what a reader should know about a file's values."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from kvtrace.sources.decoded import ROWS_A_PART, Decoded
from kvtrace.sources.losses import Loss
from kvtrace.sources.prometheus.families import families
from kvtrace.sources.stream import Undecodable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.samples import NativeHistogram, Sample

    from kvtrace.sources.prometheus.families import Family
    from kvtrace.sources.prometheus.pages import Page

SERIES_A_PAGE = 100_000
"""More series of one page than any engine has: the rest is counted as dropped."""
LABELS_A_SERIES = 64
EXACT = 2**53
"""From here on, neighbouring whole numbers share a float64."""
SOURCE, PAGE = "kvtrace.source", "kvtrace.page"
"""Labels that say which page a row is from."""
_TRACES = frozenset({"trace_id", "traceid", "traceID", "TraceID"})
_SCHEMA = {"name": pl.String, "kind": pl.String, "value": pl.Float64, "time_ns": pl.Int64}

_NOTES = {
    "nan": "{} values are NaN: null in the table",
    "inexact": "{} counts are 2^53 or more: a float64 may be off by one and more",
    "exemplars": "{} exemplars are counted and not kept",
    "traces": "{} of them name a trace",
    "native": "{} native histograms: their count and sum are kept, their buckets are not",
}
_LOSSES = {
    "bad": ("undecodable", "lines that are no sample"),
    "impossible": ("impossible_time", "samples with a timestamp that is no time"),
    "series": ("dropped", f"samples of series beyond {SERIES_A_PAGE:,} in one page"),
    "labels": ("dropped", f"samples with more than {LABELS_A_SERIES} labels"),
    "open": ("unclean_end", "OpenMetrics pages without # EOF"),
}


class Rows:
    """The rows of a file so far, and what was counted on the way."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._counted: Counter[str] = Counter()
        self._lost: list[Loss] = []
        self._page = -1
        self._series: set[int] = set()  # hashes: a collision only makes the limit milder
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[str, list[str | float | None]] = {name: [] for name in _SCHEMA}
        self._keys: list[str] = []
        self._values: list[str] = []
        self._offsets = [0]

    def take(self, page: Page | Undecodable) -> Iterator[Decoded]:
        """Rows of a page (or a part of one), as parts of bounded size."""
        if isinstance(page, Undecodable):
            self._lost.append(Loss(self._source, "undecodable", page.count, detail=page.detail))
            return
        if page.number != self._page:
            self._page, self._series = page.number, set()
        self._counted["open"] += page.openmetrics and page.last and not page.ended
        for family in families(page.lines, openmetrics=page.openmetrics):
            self._counted["bad"] += family.bad
            self._counted["exemplars"] += family.exemplars
            self._family(family, openmetrics=page.openmetrics)
            if len(self._offsets) > ROWS_A_PART:
                yield self.part()

    def rest(self) -> Decoded:
        """The last rows, and losses and notes of the whole file."""
        losses = [
            Loss(self._source, cause, self._counted[what], detail=detail)
            for what, (cause, detail) in _LOSSES.items()
            if self._counted[what]
        ]
        notes = [
            text.format(f"{self._counted[what]:,}") for what, text in _NOTES.items() if self._counted[what]
        ]
        return Decoded(self.part().tables, losses=(*self._lost, *losses), notes=tuple(notes))

    def part(self) -> Decoded:
        """The rows that wait, which may be none."""
        rows = len(self._offsets) - 1
        if not rows:
            return Decoded()
        entries = pa.StructArray.from_arrays(
            [pa.array(self._keys, pa.string()), pa.array(self._values, pa.string())], ["key", "value"]
        )
        labels = pa.ListArray.from_arrays(pa.array(self._offsets, pa.int32()), entries)
        frame = pl.DataFrame(self._columns, schema=_SCHEMA).with_columns(
            pl.Series(labels).alias("labels"), process=pl.lit(None, pl.String)
        )
        self._clear()
        return Decoded({"metric": frame})

    def _family(self, family: Family, *, openmetrics: bool) -> None:
        """Rows of a family's samples."""
        shown = {sample.name for sample in family.samples}
        for sample in family.samples:
            if sample.exemplar is not None:
                self._counted["exemplars"] += 1
                self._counted["traces"] += not _TRACES.isdisjoint(sample.exemplar.labels)
            native = getattr(sample, "native_histogram", None)  # the library's floor, 0.20, has none
            if native is not None:
                self._counted["native"] += 1
                for name, value in _totals(sample.name, native):
                    if name not in shown:
                        whole = sample._replace(name=name, value=value, labels=sample.labels or {})
                        self._row(whole, "histogram", openmetrics=openmetrics)
            else:
                self._row(sample, family.kind(sample.name), openmetrics=openmetrics)

    def _row(self, sample: Sample, kind: str | None, *, openmetrics: bool) -> None:
        """One row, unless something makes it none: then that is counted."""
        labels = sample.labels
        if len(labels) > LABELS_A_SERIES:
            self._counted["labels"] += 1
            return
        series = hash((sample.name, *labels.items()))
        if series not in self._series:
            if len(self._series) >= SERIES_A_PAGE:
                self._counted["series"] += 1
                return
            self._series.add(series)
        try:
            value, time_ns = float(sample.value), _time_ns(sample, openmetrics=openmetrics)
        except OverflowError:  # a whole number of more than 308 digits
            self._counted["bad"] += 1
            return
        if time_ns is not None and not 0 < time_ns < 2**63:
            self._counted["impossible"] += 1
            return
        self._counted["nan"] += math.isnan(value)
        self._counted["inexact"] += kind not in (None, "gauge") and EXACT <= abs(value) < math.inf
        columns = self._columns
        columns["name"].append(sample.name)
        columns["kind"].append(kind)
        columns["value"].append(None if math.isnan(value) else value)
        columns["time_ns"].append(time_ns)
        for key in labels:
            if key not in (SOURCE, PAGE):  # ours, whatever the page says
                self._keys.append(key)
                self._values.append(labels[key])
        self._keys += (SOURCE, PAGE)
        self._values += (self._source, str(self._page))
        self._offsets.append(len(self._keys))


def _totals(name: str, histogram: NativeHistogram) -> tuple[tuple[str, float], tuple[str, float]]:
    """What a native histogram has in common with a classic one."""
    return (f"{name}_count", histogram.count_value), (f"{name}_sum", histogram.sum_value)


def _time_ns(sample: Sample, *, openmetrics: bool) -> int | None:
    """The timestamp of a sample, unix ns; 0 for one that is no number."""
    found = sample.timestamp
    if found is None:
        return None
    if not isinstance(found, int | float):
        return found.sec * 1_000_000_000 + found.nsec
    if not math.isfinite(found):
        return 0
    # the classic parser has divided milliseconds by 1000: rounding to them again gives the text's own number
    return round(found * 1e9) if openmetrics else round(found * 1000) * 1_000_000
