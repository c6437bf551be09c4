"""Prometheus and OpenMetrics text: pages of metrics, as an engine, a cache server or a router shows them.

    bytes ──► lines ──► pages (pages.py) ──► families (families.py) ──► rows of `metric` (rows.py)

A file has no Content-Type, so each page shows itself which of the two formats it is. A file may hold many
pages, scrape after scrape. How rows tell them apart, without a column of their own:

    kvtrace.source   label: the file
    kvtrace.page     label: which page of the file, from "0"

so that the order of pages survives any sorting of rows also where the text has no timestamps (the question
`counters` puts them in order, and says which files are one process).

* name: the sample's own, as the page writes it; kind: counter, gauge, histogram or summary. Info, state sets
  and gauge histograms are gauges; so is `_created`, which is a time and kept, because its move shows a
  restart. Untyped is null.
* value: NaN is null and counted in a note; infinities are kept. Counts from 2^53 on may be off, and noted.
* time: from the text (classic: milliseconds, OpenMetrics: seconds), else null: nothing says when a page was
  read. A timestamp outside of what int64 nanoseconds hold sets the sample aside, as a loss.
* exemplars stay out of the tables: their labels are free text. They are counted, and how many name a trace.
* a native histogram gives its _count and _sum, unless the page shows these itself; its buckets are left out.
* process is null: a page names no process. None is invented.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources.lines import lines
from kvtrace.sources.prometheus.pages import split_pages
from kvtrace.sources.prometheus.rows import Rows
from kvtrace.sources.prometheus.sniffing import looks_like
from kvtrace.sources.stream import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream, Undecodable

__all__ = ["FORMAT", "decode", "looks_like", "read"]

FORMAT = "prometheus"
LONGEST_LINE_BYTES = 1 << 14
"""A sample is some hundred bytes; the library's time grows with the square of a line's length."""


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:  # noqa: ARG001 - holds no content
    """The parts of a file of pages; `source` becomes the label kvtrace.source."""
    yield from decode(lines(stream, Limits(max_message_bytes=LONGEST_LINE_BYTES)), source)


def decode(batches: Iterable[list[bytes] | Undecodable], source: str) -> Iterator[Decoded]:
    """Lines -> rows of `metric`, losses and notes; the last part has what was counted over the whole file."""
    rows = Rows(source)
    for item in split_pages(batches):
        yield from rows.take(item)
    yield rows.rest()
