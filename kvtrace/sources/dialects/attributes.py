"""The attributes of a batch by name, and which of them a dialect understood."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

Mask = npt.NDArray[np.bool_]


def map_array(rows: int, row: npt.NDArray[np.int64], keys: pa.Array, values: pa.Array) -> pa.MapArray:
    """A map a row from (row, key, value) triples sorted by row; a row without triples has a null map."""
    counts = np.bincount(row, minlength=rows)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    found = pa.MapArray.from_arrays(pa.array(offsets), keys, values)
    empty = counts == 0
    if not empty.any():
        return found
    return pa.MapArray.from_arrays(pa.array(offsets, mask=np.append(empty, False)), keys, values)


class Attributes:
    """Attributes of all spans of a batch, sorted by name once, so that a name is a slice."""

    def __init__(self, table: pa.Table, rows: int) -> None:
        self.rows = rows
        key = table["key"].combine_chunks()
        if not pa.types.is_dictionary(key.type):
            key = key.dictionary_encode()
        self._names: list[str] = key.dictionary.to_pylist()
        self._keys = key
        self._row = table["row"].to_numpy().astype(np.int64)
        self._values = table["value"].combine_chunks()
        codes = key.indices.to_numpy(zero_copy_only=False)
        self._order = np.argsort(codes, kind="stable")
        self._starts = np.searchsorted(codes[self._order], np.arange(len(self._names) + 1))
        self._code = {name: number for number, name in enumerate(self._names)}
        self._understood = np.zeros(self._row.size, bool)

    def names(self) -> list[str]:
        """Every attribute name of the batch that at least one span has."""
        return [name for name, code in self._code.items() if self._starts[code] < self._starts[code + 1]]

    def _positions(self, name: str) -> npt.NDArray[np.int64]:
        code = self._code.get(name)
        return self._order[:0] if code is None else self._order[self._starts[code] : self._starts[code + 1]]

    def text(self, name: str) -> pl.Series:
        """The attribute of every span, null where a span does not have it (the last one, if it has two)."""
        at = self._positions(name)
        if not at.size:
            return pl.Series(name, [None], dtype=pl.String).new_from_index(0, self.rows)
        index = np.full(self.rows, -1, np.int64)
        index[self._row[at]] = at
        return pl.Series(name, self._values.take(pa.array(index, mask=index < 0)))

    def understood(self, name: str, mask: Mask) -> None:
        """Note that these spans' attribute went into a column: it does not stay in the rest."""
        at = self._positions(name)
        self._understood[at] |= mask[self._row[at]]

    def rest(self) -> pa.MapArray:
        """What was not understood, a map a span; of a name given twice the last value."""
        left = np.flatnonzero(~self._understood)
        code = self._keys.indices.to_numpy(zero_copy_only=False)[left].astype(np.int64)
        pair = self._row[left] * (len(self._names) + 1) + code
        if np.unique(pair).size != pair.size:
            _, last = np.unique(pair[::-1], return_index=True)
            left = np.sort(left[pair.size - 1 - last])
        at = pa.array(left)
        keys = self._keys.take(at).dictionary_decode()
        return map_array(self.rows, self._row[left], keys, self._values.take(at))


def integers(text: pl.Series) -> pl.Series:
    """Text -> int64; null where it is no whole number (12, "12" and 12.0 are)."""
    if text.dtype == pl.Int64:
        return text
    found = text.cast(pl.Int64, strict=False)
    if found.null_count() > text.null_count():
        number = text.cast(pl.Float64, strict=False)
        whole = ((number == number.round(0)) & (number.abs() < 2.0**53)).fill_null(value=False)
        found = found.fill_null(number.set(~whole, None).cast(pl.Int64, strict=False))
    return found


def floats(text: pl.Series) -> pl.Series:
    """Text -> float64; null where it is no finite number."""
    found = text.cast(pl.Float64, strict=False)
    return found.set(~found.is_finite(), None)
