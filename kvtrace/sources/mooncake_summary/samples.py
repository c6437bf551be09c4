"""Names, sizes and rows of what a summary says."""

from __future__ import annotations

import re
from typing import Any

from kvtrace.sources.records import Rows

SOURCE, PAGE = "kvtrace.source", "kvtrace.page"
FEWEST_FOR_P95 = 100
"""Calls from which on the rank that the page takes is within a hundredth of the one it should."""
ROUNDED = "sizes, which the page rounds to a hundredth of their unit"
TOO_FEW = f"p95 of fewer than {FEWEST_FOR_P95} calls, left out: the page takes the rank down to a whole one"
_UNITS = {"B": 0, "KB": 1, "MB": 2, "GB": 3, "TB": 4, "PB": 5, "EB": 6}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,9})?) ?([KMGTPE]?B)", re.ASCII)
_NUMBER = re.compile(r"\d{1,20}(?:\.\d{1,9})?", re.ASCII)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", re.ASCII)


class Samples:
    """Rows of `metric` of one file, summary by summary.

    page: which summary of the file, from 0
    time_ns: when it was written, where anything says so
    """

    def __init__(self, source: str, process: str | None = None) -> None:
        self.rows = Rows(source)
        self.page = -1
        self.time_ns: int | None = None
        self._process = process
        self._rounded = self._too_few = 0

    def add(self, name: str, kind: str | None, value: float, **labels: str) -> None:
        """A sample."""
        own = {SOURCE: self.rows.source, PAGE: str(max(self.page, 0)), **labels}
        self.rows.add("metric", {
            "time_ns": self.time_ns, "name": name, "kind": kind, "labels": own, "value": value,
            "process": self._process,
        })  # fmt: skip

    def add_size(self, name: str, kind: str | None, text: str, **labels: str) -> bool:
        """A size; False when the text is none."""
        found = size(text)
        if found is None:
            return False
        self.add(name, kind, found, **labels)
        self._rounded += found > 0
        return True

    def add_latencies(self, name: str, said: dict[str, str], **labels: str) -> None:
        """How many calls, and their buckets."""
        count, p95, highest = (number(said.get(word)) for word in ("count", "p95", "max"))
        if count is not None:
            self.add(f"{name}.count", "counter", count, **labels)
        if p95 is not None:
            if (count or 0) >= FEWEST_FOR_P95:
                self.add(f"{name}.p95_below_us", "gauge", p95, **labels)
            else:
                self._too_few += 1
        if highest is not None:
            self.add(f"{name}.highest_bucket_us", "gauge", highest, **labels)

    def finish(self) -> None:
        """Remarks on all of it."""
        for words, count in ((ROUNDED, self._rounded), (TOO_FEW, self._too_few)):
            if count:
                self.rows.remark(words, count)


def size(text: str) -> float | None:
    """Bytes of `8.00 MB`; a unit is 1024 of the one before."""
    found = _SIZE.fullmatch(text.strip())
    return None if found is None else float(found[1]) * 1024.0 ** _UNITS[found[2]]


def number(text: Any) -> float | None:
    """A number of a summary: digits, perhaps a fraction."""
    return float(text) if isinstance(text, str) and _NUMBER.fullmatch(text) else None


def snake(name: str) -> str:
    """`NVMe-oF SSD` as nvme_of_ssd, `AllocFail` as alloc_fail."""
    fixed = name.replace("NVMe-oF", "Nvme of").replace("NoF", "Nof")
    return "_".join(word.lower() for word in _WORDS.findall(fixed)) or "unnamed"
