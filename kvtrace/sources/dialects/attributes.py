"""The attributes of a batch by name, and which of them a dialect understood.

Text is never copied while dialects look at it: a name gives, per span, the number of its value among the
different values of the batch (-1: none), and a column of text is such numbers until the batch is whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from kvtrace.sinks.parquet.arrow import used

Mask = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.integer]
FEW_NAMES = 2**15
EXACT_FLOATS = 2.0**53
"""Below this every whole float64 is one integer."""


def map_array(rows: int, row: Positions, keys: pa.Array, values: pa.Array) -> pa.MapArray:
    """A map a row from (row, key, value) triples sorted by row; a row without triples has a null map."""
    counts = np.bincount(row, minlength=rows)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    empty = np.append(counts == 0, False)
    return pa.MapArray.from_arrays(pa.array(offsets, mask=empty if empty.any() else None), keys, values)


@dataclass(frozen=True)
class _Numbers:
    """What texts are as numbers: 12, "12" and 12.0 are whole; 1.5 and "twelve" are not."""

    whole: npt.NDArray[np.int64]
    is_whole: Mask
    finite: npt.NDArray[np.float64]


def _numbers(texts: pa.Array) -> _Numbers:
    """Every text as int64 and where it is one, and as float64, NaN where it is no finite number."""
    found = pl.DataFrame({"text": pl.Series(texts, dtype=pl.String)}).select_seq(
        whole=pl.col("text").cast(pl.Int64, strict=False),
        number=pl.col("text").cast(pl.Float64, strict=False),
    )
    number = found["number"].to_numpy().copy()
    number[~np.isfinite(number)] = np.nan
    given = ~np.isnan(found["whole"].to_numpy()) if found["whole"].null_count() else np.ones(len(texts), bool)
    close = ~given & (number == np.round(number)) & (np.abs(number) < EXACT_FLOATS)
    whole = found["whole"].fill_null(0).to_numpy().copy()
    whole[close] = number[close].astype(np.int64)
    return _Numbers(whole, given | close, number)


class Attributes:
    """Attributes of all spans of a batch, sorted by name once, so that a name is a slice."""

    def __init__(self, table: pa.Table, rows: int) -> None:
        self.rows = rows
        key = table["key"].combine_chunks()
        if not pa.types.is_dictionary(key.type):
            key = key.dictionary_encode()
        self._names: list[str] = key.dictionary.to_pylist()
        self._codes = key.indices.to_numpy(zero_copy_only=False)
        self._row = table["row"].to_numpy().astype(np.int64)
        value = table["value"].combine_chunks()
        self._value = value.indices.to_numpy(zero_copy_only=False)
        self.values: pa.Array = value.dictionary
        few = self._codes.astype(np.int16) if len(self._names) < FEW_NAMES else self._codes
        self._order = np.argsort(few, kind="stable")  # a radix sort for 16 bits
        self._starts = np.searchsorted(self._codes[self._order], np.arange(len(self._names) + 1))
        self._code = {name: number for number, name in enumerate(self._names)}
        self._understood = np.zeros(self._row.size, bool)

    def names(self) -> set[str]:
        """Every attribute name of the batch that at least one span has."""
        return {name for name, code in self._code.items() if self._starts[code] < self._starts[code + 1]}

    def _positions(self, name: str) -> Positions:
        code = self._code.get(name)
        return self._order[:0] if code is None else self._order[self._starts[code] : self._starts[code + 1]]

    def at(self, name: str) -> Positions:
        """Number of the attribute's value for every span, -1 without one (the last one, if it has two)."""
        found = np.full(self.rows, -1, np.int32)
        own = self._positions(name)
        found[self._row[own]] = self._value[own]
        return found

    def strings(self, at: Positions) -> pa.Array:
        """The texts of some numbers, null for -1, as a dictionary of those that occur."""
        codes = pa.array(at, pa.int32(), mask=at < 0)
        return used(pa.DictionaryArray.from_arrays(codes, self.values))

    def integers(self, name: str) -> tuple[npt.NDArray[np.int64], Mask]:
        """The attribute as int64 and where it is one."""
        values, valid = np.zeros(self.rows, np.int64), np.zeros(self.rows, bool)
        own = self._positions(name)
        if own.size:
            rows, at = self._row[own], self._value[own]
            values[rows], valid[rows] = self._numbers.whole[at], self._numbers.is_whole[at]
        return values, valid

    def floats(self, name: str) -> npt.NDArray[np.float64]:
        """The attribute as float64, NaN where it is no finite number."""
        values = np.full(self.rows, np.nan)
        own = self._positions(name)
        if own.size:
            values[self._row[own]] = self._numbers.finite[self._value[own]]
        return values

    @cached_property
    def _numbers(self) -> _Numbers:
        return _numbers(self.values)

    def words(self, name: str) -> tuple[Positions, list[str]]:
        """The attribute of every span as a number (-1: none) in a list of the texts that occur."""
        found = self.strings(self.at(name))
        return found.indices.fill_null(-1).to_numpy(zero_copy_only=False), found.dictionary.to_pylist()

    def texts(self, name: str) -> pl.Series:
        """The attribute of every span as text, null without one."""
        return pl.Series(name, self.strings(self.at(name)).cast(pa.string()))

    def understood(self, name: str, mask: Mask) -> None:
        """Note that these spans' attribute went into a column: it does not stay in the rest."""
        own = self._positions(name)
        self._understood[own] |= mask[self._row[own]]

    def misunderstood(self, name: str, mask: Mask) -> None:
        """Take back: these spans' attribute stays in the rest."""
        own = self._positions(name)
        self._understood[own] &= ~mask[self._row[own]]

    def rest(self) -> pa.MapArray:
        """What was not understood, a map a span; of a name given twice the last value."""
        left = np.flatnonzero(~self._understood)
        code = self._codes[left].astype(np.int64)
        pair = self._row[left] * (len(self._names) + 1) + code
        order = np.sort(pair)
        if (order[1:] == order[:-1]).any():
            _, last = np.unique(pair[::-1], return_index=True)
            left = np.sort(left[pair.size - 1 - last])
            code = self._codes[left].astype(np.int64)
        keys = pa.DictionaryArray.from_arrays(pa.array(code, pa.int32()), pa.array(self._names, pa.string()))
        values = used(pa.DictionaryArray.from_arrays(pa.array(self._value[left], pa.int32()), self.values))
        return map_array(self.rows, self._row[left], keys, values)
