"""Frames of a spool, and the rows of many of them as Arrow tables, without a loop over rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kvtrace.schema.tables import MEMBER, TABLES
from kvtrace.sources.spool.values import Column, arrow, join

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from kvtrace.sources.spool.texts import Texts

_FOUND_BY_TIER = "found_by_tier."


@dataclass(frozen=True, slots=True)
class Shape:
    """What the rows of a frame are."""

    table: str
    part: str
    names: tuple[str, ...]
    constants: dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Frame:
    """One whole frame of a spool, or bytes that are none.

    `content` is the JSON of a header, facts or end, and the (monotonic, unix) pair of an anchor.
    """

    kind: str
    start: int
    end: int
    content: Any = None
    rows: int = 0
    first_row: int = 0
    written_ns: int = 0
    shape: Shape | None = None
    texts: Texts | None = field(default=None, repr=False)
    raw: tuple[Column, ...] = field(default=(), repr=False)

    @property
    def table(self) -> str:
        """Table of a frame of rows."""
        assert self.shape is not None
        return self.shape.table

    @property
    def part(self) -> str:
        """Which part of an operation its rows are, one of schema.frames.PARTS."""
        assert self.shape is not None
        return self.shape.part

    @property
    def columns(self) -> pa.Table:
        """The rows as `together` gives them."""
        return together([self])[0].columns


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one shape: columns in the types of their table, times still raw monotonic ns.

    Columns that the table does not have, attributes.<key> among them, are text; found_by_tier.<tier> is
    int64. Text is dictionary-encoded. `numbers` is each row's number in its spool, in order of writing.
    """

    table: str
    part: str
    columns: pa.Table
    numbers: npt.NDArray[np.int64]


def together(found: Iterable[Frame]) -> list[Batch]:
    """The rows of many frames, a batch a shape, in order of writing; other frames are passed over."""
    by_shape: dict[int, list[Frame]] = {}
    for frame in found:
        if frame.kind == "rows" and frame.rows:
            by_shape.setdefault(id(frame.shape), []).append(frame)
    return [_batch(frames) for frames in by_shape.values()]


def _batch(found: list[Frame]) -> Batch:
    """One batch of frames of one shape, epoch by epoch."""
    shape = found[0].shape
    assert shape is not None
    runs: list[list[Frame]] = []
    for frame in found:
        if runs and (runs[-1][0].texts is frame.texts):
            runs[-1].append(frame)
        else:
            runs.append([frame])
    tables = [_table(shape, run) for run in runs]
    whole = pa.concat_tables(tables) if len(tables) > 1 else tables[0]
    numbers = np.concatenate([np.arange(f.first_row, f.first_row + f.rows, dtype=np.int64) for f in found])
    return Batch(shape.table, shape.part, whole, numbers)


def _table(shape: Shape, run: list[Frame]) -> pa.Table:
    rows = sum(frame.rows for frame in run)
    texts = run[0].texts
    columns = {
        name: _array([frame.raw[at] for frame in run], column_type(shape.table, name), texts)
        for at, name in enumerate(shape.names)
    }
    for name, value in shape.constants.items():
        columns[name] = _constant(value, rows, column_type(shape.table, name))
    return pa.table(columns)


def _array(parts: list[Column], target: str, texts: Texts | None) -> pa.Array | pa.ChunkedArray:
    whole = join(parts)
    if whole is None:
        return pa.chunked_array([_array([part], target, texts) for part in parts])
    if target == "list<member>":
        return _members(whole, texts)
    return arrow(whole, target, texts)


def _members(column: Column, texts: Texts | None) -> pa.Array:
    assert column.data is not None
    lengths = column.data.astype(np.int32)
    offsets = np.zeros(column.rows + 1, np.int32)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    values = []
    for part, described in zip(column.inside, MEMBER, strict=True):
        found = arrow(part, described.type, texts)
        values.append(found.cast(pa.string()) if described.type == "string" else found)
    missing = np.append(lengths < 0, False)
    fields = [pa.field(described.name, value.type) for described, value in zip(MEMBER, values, strict=True)]
    return pa.ListArray.from_arrays(
        pa.array(offsets, mask=missing if missing.any() else None),
        pa.StructArray.from_arrays(values, fields=fields),
    )


def _constant(value: str | int, rows: int, target: str) -> pa.Array:
    if target not in {"string", "map"} and isinstance(value, int | float):
        kind = {"int64": pa.int64(), "uint64": pa.uint64(), "uint8": pa.uint8(), "float64": pa.float64()}[
            target
        ]
        return pa.repeat(pa.scalar(value, kind), rows)
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([str(value)]))


@cache
def column_type(table: str, name: str) -> str:
    """Type of a column, one of schema.tables.TYPES; text for what the table does not have."""
    if name.startswith(_FOUND_BY_TIER):
        return "int64"
    return next((column.type for column in TABLES[table] if column.name == name), "string")
