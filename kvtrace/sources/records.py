"""Records that somebody else wrote, one JSON value a line, on their way into rows.

A decoder takes values and adds rows; what it cannot use it counts. Nothing here raises for a bad record.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import polars as pl
import pyarrow as pa

from kvtrace.sinks.parquet.arrow import arrow_schema
from kvtrace.sources.decoded import ROWS_A_PART, Decoded
from kvtrace.sources.lines import lines
from kvtrace.sources.losses import Loss
from kvtrace.sources.stream import Undecodable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvtrace.sources.stream import Limits, Stream

LATEST_NS = 2**63 - 1
LATEST_TIME_NS = 9_200_000_000_000_000_000
LONGEST_NS = 20_000_000_000_000_000
"""The latest time (2261) and the longest duration (231 days) that are believed: 64 bits hold their sum."""
EXACT_FLOATS = 2.0**53
MAX_TEXT = 512
"""Characters of a name or an id that becomes a value of a row; a longer one is no name."""
MAX_NAMES = 20
"""Different remarks, or names in one remark, that a report can be expected to show."""
OTHERS = "others"
_NO_VALUE = object()


def parse(line: bytes) -> Any:
    """The JSON value of a line; what `parsed` denies for bytes that are none, or nested beyond reason."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        return _NO_VALUE


def parsed(value: Any) -> bool:
    """Whether `parse` found a value."""
    return value is not _NO_VALUE


def at(value: Any, *path: str) -> Any:
    """What lies at a path of nested objects; None where anything on it is missing."""
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def whole(value: Any) -> int | None:
    """A count of 64 bits that is not negative; 12 and 12.0 are, true and "12" are not."""
    if isinstance(value, float) and math.isfinite(value) and value == round(value) < EXACT_FLOATS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= LATEST_NS else None


def number(value: Any) -> float | None:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # a whole number of more than 308 digits
        return None


def text(value: Any) -> str | None:
    """A name: a text that is not empty and not longer than MAX_TEXT."""
    return value if isinstance(value, str) and 0 < len(value) <= MAX_TEXT else None


def time_ns(value: Any, unit_ns: int) -> int | None:
    """A time in some unit as unix ns, exact for whole numbers; None for none, or after LATEST_TIME_NS."""
    found = number(value)
    if found is None or not 0 < found * unit_ns <= LATEST_TIME_NS:
        return None
    return value * unit_ns if isinstance(value, int) else round(found * unit_ns)


def span_ns(value: Any, unit_ns: int) -> int | None:
    """A duration in some unit as ns; None when negative or longer than LONGEST_NS."""
    found = number(value)
    return round(found * unit_ns) if found is not None and 0 <= found * unit_ns <= LONGEST_NS else None


def attributes(**named: Any) -> dict[str, str]:
    """What is known of some values, as text."""
    found = {}
    for name, value in named.items():
        if isinstance(value, bool):
            found[name] = "true" if value else "false"
        elif isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
            found[name] = repr(value)
        elif said := text(value):
            found[name] = said
    return found


class Rows:
    """Rows, losses and remarks of one input; `part` gives what waits and keeps the counts for the end."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._size = 0
        self._losses: list[Loss] = []
        self._refused: Counter[tuple[str, str | None, str]] = Counter()
        self._content: Counter[str] = Counter()
        self._remarks: Counter[str] = Counter()
        self._unknown: dict[str, Counter[str]] = {}

    def add(self, table: str, row: dict[str, Any]) -> None:
        """A row; columns that it does not name are null."""
        self._rows.setdefault(table, []).append(row)
        self._size += 1

    @property
    def full(self) -> bool:
        """Whether it is time for a part."""
        return self._size >= ROWS_A_PART

    def refuse(
        self, detail: str, *, op: str | None = None, cause: str = "undecodable", count: int = 1
    ) -> None:
        """Count what could not be used; one loss a detail at the end."""
        if count:
            known = (cause, op, detail)
            full = known not in self._refused and len(self._refused) >= MAX_NAMES
            self._refused[(cause, op, OTHERS) if full else known] += count

    def lose(self, loss: Loss) -> None:
        """A loss with a time of its own."""
        self._losses.append(loss)

    def drop(self, name: str, count: int = 1) -> None:
        """Count content that does not enter."""
        if count:
            self._content[name] += count

    def remark(self, words: str, count: int = 1) -> None:
        """A remark for whoever imports, with how often it was due."""
        full = words not in self._remarks and len(self._remarks) >= MAX_NAMES
        self._remarks[OTHERS if full else words] += count

    def ignore(self, what: str, names: Sequence[str]) -> None:
        """Fields that this version does not read, counted by name; beyond MAX_NAMES names as others."""
        for name in names:
            known = self._unknown.setdefault(what, Counter())
            known[name[:64] if name[:64] in known or len(known) < MAX_NAMES else OTHERS] += 1

    def part(self) -> Decoded:
        """What has waited since the last part."""
        tables = {table: frame(table, rows) for table, rows in self._rows.items() if rows}
        found = Decoded(tables, losses=tuple(self._losses), content=dict(self._content))
        self._rows, self._size, self._losses, self._content = {}, 0, [], Counter()
        return found

    def end(self) -> Decoded:
        """The last part, with all that was counted."""
        for (cause, op, detail), count in self._refused.items():
            self._losses.append(Loss(self.source, cause, count, op=op, detail=detail))
        notes = [f"{words}: {count:,}" for words, count in self._remarks.items()]
        for what, names in self._unknown.items():
            said = ", ".join(f"{name!r} ({count:,})" for name, count in sorted(names.items()))
            notes.append(f"fields of {what} that this version does not read: {said}")
        last = self.part()
        return Decoded(last.tables, losses=last.losses, content=last.content, notes=tuple(notes))


class Taker(Protocol):
    """Takes values one by one and adds rows."""

    rows: Rows

    def take(self, value: Any) -> None:
        """Use one value, or count it."""

    def finish(self) -> None:
        """Add what still waits when the input ends."""


def lines_of(stream: Stream, rows: Rows, limits: Limits | None = None) -> Iterator[bytes]:
    """The lines of a file one by one; what was lost on the way is counted."""
    for item in lines(stream, limits):
        if isinstance(item, Undecodable):
            rows.refuse(item.detail, count=item.count)
        else:
            yield from item


def values_of(stream: Stream, rows: Rows) -> Iterator[Any]:
    """The JSON values of a file's lines; lines that are none are counted."""
    for line in lines_of(stream, rows):
        value = parse(line)
        if parsed(value):
            yield value
        else:
            rows.refuse("lines that are no JSON")


def read_lines(stream: Stream, taker: Taker) -> Iterator[Decoded]:
    """The parts of a file of JSON lines; lines that are no JSON are counted."""
    for value in values_of(stream, taker.rows):
        taker.take(value)
        if taker.rows.full:
            yield taker.rows.part()
    taker.finish()
    yield taker.rows.end()


def frame(table: str, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows as a frame of the table's own types, of the columns that any of them names."""
    named = {name for row in rows for name in row}
    fields = [(field.name, field.type) for field in arrow_schema(table) if field.name in named]
    if table == "span" and "id_kind" in named:
        fields.append(("id_kind", pa.string()))
    columns = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in fields}
    return pl.DataFrame(pa.table(columns))


def first_values(head: bytes, count: int = 8) -> list[Any]:
    """The values of the first lines of a file; a line that is none, such as one that was cut, is left out."""
    first = [line for line in head.split(b"\n") if line.strip()][:count]
    return [value for value in map(parse, first) if parsed(value)]
