"""One column of a ROWS frame: bytes -> numpy, checked -> Arrow, without a loop over its values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvtrace.schema import frames
from kvtrace.sources.spool.damage import NonsenseError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from kvtrace.sources.spool.texts import Texts

INTEGERS = {"int64": pa.int64(), "uint64": pa.uint64(), "uint8": pa.uint8()}
WORDS = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, slots=True)
class Column:
    """One column as its bytes say: `data` and, for FLOAT and MIXED, `marks`; for MEMBERS the five inside."""

    kind: int
    rows: int
    data: npt.NDArray[np.generic] | None = None
    marks: npt.NDArray[np.uint8] | None = None
    inside: tuple[Column, ...] = ()


def read_column(kind: int, raw: memoryview, rows: int, texts: Texts | None) -> Column:
    """Check a column and look at its bytes as numbers.

    Raises:
        NonsenseError: it has another length than its rows, or names a text that is not known.
    """
    if kind == frames.MEMBERS:
        return _read_members(raw, rows, texts)
    width, code = _LAYOUT.get(kind, (-1, ""))
    if len(raw) != width * rows:
        raise NonsenseError("length of a column")
    if kind == frames.NULL:
        return Column(kind, rows)
    if kind not in _MARKED:
        data = np.frombuffer(raw, code)
        _check(kind, data, None, texts)
        return Column(kind, rows, data)
    marks, data = np.frombuffer(raw[:rows], np.uint8), np.frombuffer(raw[rows:], code)
    _check(kind, data, marks, texts)
    return Column(kind, rows, data, marks)


_MARKED = {frames.FLOAT, frames.MIXED}
_LAYOUT = {
    frames.NULL: (0, ""), frames.INT: (8, "<i8"), frames.INT_NULL: (8, "<i8"), frames.FLOAT: (9, "<f8"),
    frames.BOOL: (1, "u1"), frames.TEXT: (4, "<i4"), frames.MIXED: (5, "<i4"),
}  # fmt: skip


def _check(kind: int, data: npt.NDArray, marks: npt.NDArray[np.uint8] | None, texts: Texts | None) -> None:  # type: ignore[type-arg]
    fine = True
    if kind in {frames.TEXT, frames.MIXED}:
        fine = texts.knows(data) if texts is not None else bool((data == -1).all())
    if kind == frames.BOOL:
        fine = not data.size or int(data.max()) <= 2
    if kind == frames.MIXED and marks is not None and marks.size:
        fine = fine and int(marks.max()) <= frames.MIXED_TEXT and bool(((data < 0) == (marks == 0)).all())
    if not fine:
        raise NonsenseError("values of a column")


def _read_members(raw: memoryview, rows: int, texts: Texts | None) -> Column:
    if len(raw) < 4 * rows:
        raise NonsenseError("members")
    lengths = np.frombuffer(raw[: 4 * rows], "<i4")
    if lengths.size and int(lengths.min()) < -1:
        raise NonsenseError("members")
    total = int(np.maximum(lengths, 0).sum(dtype=np.int64))
    if total > frames.MAX_MEMBERS:
        raise NonsenseError("members")
    inside = []
    at = 4 * rows
    for _ in range(frames.MEMBER_COLUMNS):
        if at + frames.COLUMN_HEAD.size > len(raw):
            raise NonsenseError("members")
        kind, size = frames.COLUMN_HEAD.unpack_from(raw, at)
        at += frames.COLUMN_HEAD.size
        if kind == frames.MEMBERS or at + size > len(raw):
            raise NonsenseError("members")
        inside.append(read_column(kind, raw[at : at + size], total, texts))
        at += size
    if at != len(raw):
        raise NonsenseError("members")
    return Column(frames.MEMBERS, rows, lengths, None, tuple(inside))


def join(columns: list[Column]) -> Column | None:
    """Columns of one name and epoch as one; None when their kinds differ."""
    first = columns[0]
    if len(columns) == 1:
        return first
    if any(column.kind != first.kind for column in columns):
        return None
    inside = [join(list(parts)) for parts in zip(*(column.inside for column in columns), strict=True)]
    if any(part is None for part in inside):
        return None
    return Column(
        first.kind,
        sum(column.rows for column in columns),
        None if first.data is None else np.concatenate([column.data for column in columns]),
        None if first.marks is None else np.concatenate([column.marks for column in columns]),
        tuple(part for part in inside if part is not None),
    )


def arrow(column: Column, target: str, texts: Texts | None) -> pa.Array:
    """A column as one of schema.tables.TYPES (text as a dictionary); what does not fit becomes null."""
    if target in INTEGERS:
        return _as_integers(column, target, texts)
    if target == "float64":
        return _as_floats(column, texts)
    if target == "bool":
        return _as_bools(column, texts)
    return _as_text(column, texts)


def _plain_integers(column: Column) -> pa.Array | None:
    data: Any = column.data
    if column.kind == frames.INT:
        return pa.array(data)
    if column.kind == frames.INT_NULL:
        return pa.array(data, mask=data == frames.MISSING_INT)
    if column.kind == frames.BOOL:
        return pa.array(data.astype(np.int64), mask=data == 2)
    if column.kind == frames.FLOAT:
        whole = (column.marks != 0) & np.isfinite(data) & (data == np.trunc(data)) & (np.abs(data) < 2**63)
        return pa.array(np.where(whole, data, 0).astype(np.int64), mask=~whole)
    return None


def _as_integers(column: Column, target: str, texts: Texts | None) -> pa.Array:
    kind = INTEGERS[target]
    if column.kind == frames.NULL:
        return pa.nulls(column.rows, kind)
    found = _plain_integers(column)
    if found is None:
        lower, upper = (
            (-(1 << 63), 1 << 63) if target == "int64" else (0, 1 << (64 if target == "uint64" else 8))
        )
        marks = column.marks.tolist() if column.marks is not None else [frames.MIXED_TEXT] * column.rows
        pairs = zip(_as_text(column, texts).to_pylist(), marks, strict=True)
        parsed = [_whole(text, mark) for text, mark in pairs]
        return pa.array([v if v is not None and lower <= v < upper else None for v in parsed], kind)
    if target == "int64":
        return found
    upper = 255 if target == "uint8" else (1 << 63) - 1
    fits = pc.and_(pc.greater_equal(found, 0), pc.less_equal(found, upper))
    return pc.if_else(fits, found, None).cast(kind)


def _as_floats(column: Column, texts: Texts | None) -> pa.Array:
    if column.kind == frames.NULL:
        return pa.nulls(column.rows, pa.float64())
    if column.kind == frames.FLOAT:
        mask = column.marks == 0
        return pa.array(column.data, mask=mask if mask.any() else None)  # type: ignore[union-attr]
    found = _plain_integers(column)
    if found is not None:
        return found.cast(pa.float64(), safe=False)
    return pa.array([_parsed(text, float) for text in _as_text(column, texts).to_pylist()], pa.float64())


def _as_bools(column: Column, texts: Texts | None) -> pa.Array:
    if column.kind == frames.BOOL:
        return pa.array(column.data == 1, mask=column.data == 2)
    words = {"true": True, "false": False, "1": True, "0": False}
    return pa.array([words.get(text) for text in _as_text(column, texts).to_pylist()], pa.bool_())


def _whole(text: str | None, mark: int) -> int | None:
    """One value of a column of several types as an integer, where it is one."""
    if text is None or mark == frames.MIXED_BOOL:
        return None if text is None else int(text == "true")
    found = _parsed(text, float if mark == frames.MIXED_FLOAT else int)
    if isinstance(found, float):
        return int(found) if found.is_integer() else None
    return found


def _parsed(text: str | None, kind: Callable[[str], float]) -> int | float | None:
    try:
        return None if text is None else kind(text)
    except ValueError:
        return None


def _as_text(column: Column, texts: Texts | None) -> pa.Array:
    if column.kind in {frames.TEXT, frames.MIXED} and texts is not None:
        return texts.dictionary(column.data)  # type: ignore[arg-type]
    if column.kind == frames.FLOAT:
        assert column.data is not None
        assert column.marks is not None
        pairs = zip(column.data.tolist(), column.marks.tolist(), strict=True)
        return pa.array(
            [repr(value) if there else None for value, there in pairs], pa.string()
        ).dictionary_encode()
    if column.kind == frames.BOOL:
        assert column.data is not None
        names = pa.array(["false", "true"])
        return pa.DictionaryArray.from_arrays(
            pa.array(np.minimum(column.data, 1).astype(np.int32), mask=column.data == 2), names
        )
    found = _plain_integers(column)
    if found is None:
        return pa.nulls(column.rows, pa.string()).dictionary_encode()
    return found.cast(pa.string()).dictionary_encode()
