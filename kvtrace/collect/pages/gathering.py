"""Rows of many small pages become parts of the size that decoders give."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.sources.decoded import ROWS_A_PART, Decoded

if TYPE_CHECKING:
    from kvtrace.importer.staging import Staging


@dataclass(slots=True)
class Gathered:
    """Rows of `metric` that wait, in the order in which they came."""

    source: str
    format: str
    rows: int = 0
    _waiting: list[pl.DataFrame] = field(default_factory=list)

    def add(self, frame: pl.DataFrame | None, time_ns: int) -> None:
        """Rows of one page; those without a time of their own have the page's."""
        if frame is not None and frame.height:
            timed = pl.col("time_ns").cast(pl.Int64).fill_null(time_ns)
            self._waiting.append(frame.with_columns(timed))
            self.rows += frame.height

    def stage(self, staging: Staging, *, over: bool = False) -> None:
        """Stage what waits when it is much, or all of it."""
        waiting = sum(frame.height for frame in self._waiting)
        if waiting >= ROWS_A_PART or (over and waiting):
            staging.take(Decoded({"metric": pl.concat(self._waiting)}), self.source, self.format)
            self._waiting = []
