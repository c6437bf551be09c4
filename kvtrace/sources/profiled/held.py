"""What must be held until a trace has ended: nothing says that a call comes before its copy.

Columns, not objects: some 150 bytes a copy. Beyond MOST of one kind the rest is a counted loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from kvtrace.sources.records import Rows

MOST = 5_000_000
"""Copies, calls or ranges of one trace; a profiler's own viewers give up long before."""
_FRAME_ROWS = 20_000
_NUMBERS = ("end_ns", "bytes", "start_ns", "correlation", "owner", "process", "seen_in")

COPIES = (
    "start_ns", "end_ns", "bytes", "name", "device", "from_device", "stream", "correlation", "owner", "graph",
    "seen_in",
)  # fmt: skip
CALLS = ("start_ns", "name", "correlation", "owner", "thread", "process")
RANGES = ("start_ns", "end_ns", "name", "thread", "process", "domain")


def schema(columns: tuple[str, ...]) -> dict[str, type[pl.DataType]]:
    """Times, counts, ids and processes are whole numbers, the rest is text."""
    return {name: pl.Int64 if name in _NUMBERS else pl.String for name in columns}


class Column:
    """Rows of one kind as they come, packed into frames."""

    def __init__(self, columns: tuple[str, ...], what: str, *, most: int = MOST) -> None:
        self._schema = schema(columns)
        self._what = what
        self._most = most
        self._rows: list[tuple[Any, ...]] = []
        self._frames: list[pl.DataFrame] = []
        self._size = 0

    def add(self, row: tuple[Any, ...], rows: Rows) -> None:
        """One more, or one more that is lost."""
        if self._size >= self._most:
            rows.refuse(f"{self._what} beyond {self._most:,} of one trace", cause="dropped")
            return
        self._rows.append(row)
        self._size += 1
        if len(self._rows) >= _FRAME_ROWS:
            self._pack()

    def frame(self) -> pl.DataFrame:
        """All of them."""
        self._pack()
        return pl.concat([pl.DataFrame(schema=self._schema), *self._frames])

    def _pack(self) -> None:
        if self._rows:
            self._frames.append(pl.DataFrame(self._rows, schema=self._schema, orient="row"))
            self._rows = []


class Held:
    """The copies, calls and ranges of one trace.

    profiler: who wrote it, by the name of its format
    offset_ns: what makes its times unix times; None when nothing says so
    host, rank: of the process that was traced, where the trace says them
    """

    def __init__(self, profiler: str, *, most: int = MOST) -> None:
        self.profiler = profiler
        self.copies = Column(COPIES, "copies", most=most)
        self.calls = Column(CALLS, "calls that ask for copies", most=most)
        self.ranges = Column(RANGES, "ranges", most=most)
        self.offset_ns: int | None = None
        self.host: str | None = None
        self.rank: int | None = None
