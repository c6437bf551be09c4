"""Metric pages of one address, page after page; rows without a time of their own get the page's."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvtrace.collect.pages.fetching import Missed
from kvtrace.collect.pages.gathering import Gathered
from kvtrace.collect.pages.missing import Missing
from kvtrace.sources import prometheus
from kvtrace.sources.prometheus.pages import split_pages
from kvtrace.sources.prometheus.rows import Rows
from kvtrace.sources.stream import Undecodable

if TYPE_CHECKING:
    from kvtrace.collect.intake import Item
    from kvtrace.importer.staging import Staging

_HEAD_BYTES = 1 << 16


@dataclass(eq=False)
class Metrics:
    """One address whose pages are metrics."""

    name: str
    format: str = prometheus.FORMAT
    spans: int = 0
    other_rows: int = 0
    notes: dict[str, None] = field(default_factory=dict)
    came: bool = False
    promised: str = "no page of metrics could be read"
    _pages: int = 0
    _rows: Rows = field(init=False)
    _gathered: Gathered = field(init=False)
    _missing: Missing = field(init=False)

    def __post_init__(self) -> None:
        """What is counted over all pages is said once."""
        self._rows = Rows(self.name)
        self._gathered = Gathered(self.name, self.format)
        self._missing = Missing(self.name)

    def take(self, items: list[Item], staging: Staging) -> None:
        """Decode pages."""
        for item in items:
            found = item.content
            if isinstance(found, Missed):
                staging.losses.extend(self._missing.add(found))
            elif not prometheus.looks_like(found.content[:_HEAD_BYTES]):
                self._no_metrics(found.time_ns, staging)
            else:
                self._page(found.content, found.time_ns, staging)

    def finish(self, staging: Staging) -> None:
        """Say what was met on the way."""
        last = self._rows.rest()  # no rows any more: what was counted over all pages
        staging.losses.extend((*last.losses, *self._missing.losses()))
        self.notes |= dict.fromkeys(last.notes) | self._missing.note()
        self._gathered.stage(staging, over=True)

    def _no_metrics(self, time_ns: int, staging: Staging) -> None:
        lie = Missed("undecodable", "page that is no metrics", time_ns)
        staging.losses.extend(self._missing.add(lie))

    def _page(self, content: bytes, time_ns: int, staging: Staging) -> None:
        self.came = True
        staging.losses.extend(self._missing.came())
        lines = content.split(b"\n")
        kept = [line for line in lines if len(line) <= prometheus.LONGEST_LINE_BYTES]
        if len(kept) < len(lines):
            self._rows_lost(len(lines) - len(kept))
        number = self._pages
        for page in split_pages([kept]):
            if not isinstance(page, Undecodable):
                self._pages = number + page.number + 1
                page = replace(page, number=number + page.number)
            for part in self._rows.take(page):
                self._gathered.add(part.tables.get("metric"), time_ns)
        self._gathered.add(self._rows.part().tables.get("metric"), time_ns)
        self._gathered.stage(staging)
        self.other_rows = self._gathered.rows

    def _rows_lost(self, count: int) -> None:
        detail = f"line longer than {prometheus.LONGEST_LINE_BYTES:,} bytes"
        list(self._rows.take(Undecodable(detail, count)))
