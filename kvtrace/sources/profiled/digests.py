"""Numbers for rows that have none of their own, the same wherever and whenever a trace is read.

Words are few and cost a hash each; numbers are mixed in (splitmix64's finaliser), a column at a time. Rows
that say the same are told apart by how many of them came before.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    import numpy.typing as npt

    Digests = npt.NDArray[np.uint64]

_FIRST = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xBF58476D1CE4E5B9)
_THIRD = np.uint64(0x94D049BB133111EB)
_NOTHING = 0x5BD1E9955BD1E995
"""Stands for null, which no number is mixed like."""


def span_ids(rows: pl.DataFrame) -> pl.Series:
    """A number from 1 on for each row, by all of its columns and its place among those that say the same."""
    mixed = np.zeros(rows.height, np.uint64)
    for name in rows.columns:
        mixed = _mixed(mixed, _values(rows[name]))
    found = _mixed(mixed, _nth(mixed))
    return pl.Series(np.maximum(found, np.uint64(1)), dtype=pl.UInt64)


def _nth(said: Digests) -> Digests:
    """How many rows before each say the same."""
    order = np.argsort(said, kind="stable")
    places = np.arange(said.size)
    alike = said[order]
    first = np.ones(said.size, bool)
    first[1:] = alike[1:] != alike[:-1]
    since = np.maximum.accumulate(np.where(first, places, 0)) if said.size else places
    found = np.empty(said.size, np.uint64)
    found[order] = places - since
    return found


def _values(column: pl.Series) -> Digests:
    if column.dtype == pl.String:
        coded = column.to_arrow().cast(pa.string()).dictionary_encode()
        numbers = np.array([*map(_of_word, coded.dictionary.to_pylist()), _NOTHING], np.uint64)
        return np.asarray(numbers[coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)])
    filled = column.fill_null(0).to_numpy().astype(np.uint64)
    return np.where(column.is_null().to_numpy(), np.uint64(_NOTHING), filled + np.uint64(1))


def _of_word(word: str) -> int:
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")


def _mixed(state: Digests, values: Digests) -> Digests:
    with np.errstate(over="ignore"):
        found = (state ^ values) + _FIRST
        found = (found ^ (found >> np.uint64(30))) * _SECOND
        found = (found ^ (found >> np.uint64(27))) * _THIRD
        return np.asarray(found ^ (found >> np.uint64(31)), np.uint64)
