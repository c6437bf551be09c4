"""What columns of staged rows say, for all rows at once: words, one attribute, hashes of identities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

if TYPE_CHECKING:
    import numpy.typing as npt

_SPREAD = np.uint64(0x9E3779B97F4A7C15)


def words(table: pa.Table, column: str) -> tuple[npt.NDArray[np.int32], list[str]]:
    """A dictionary column as codes (-1: null) and its words."""
    if column not in table.column_names:
        return np.full(table.num_rows, -1, np.int32), []
    values = table[column].combine_chunks()
    codes = values.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return codes, values.dictionary.to_pylist()


def holds(table: pa.Table, column: str, *wanted: str) -> npt.NDArray[np.bool_]:
    """Rows whose word is one of the wanted."""
    codes, known = words(table, column)
    found = np.zeros(table.num_rows, bool)
    for number, word in enumerate(known):
        if word in wanted:
            found |= codes == number
    return found


def attribute(maps: pa.ChunkedArray, name: str) -> pl.Series:
    """One attribute of some rows, null where they have none of that name."""
    whole = maps.combine_chunks()
    whole = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    # A map's value_lengths() has no kernel in pyarrow where its keys are dictionary-encoded.
    lengths = np.diff(whole.offsets.to_numpy()) if len(whole) else np.empty(0, np.int64)
    row = np.repeat(np.arange(len(whole)), lengths)
    first = whole.offsets[0].as_py() if len(whole) else 0
    keys = pl.Series(whole.keys[first : first + row.size]).cast(pl.String)
    values = pl.Series(whole.items[first : first + row.size]).cast(pl.String)
    own = (keys == name).to_numpy()
    found = pl.DataFrame({"row": row[own], "value": values.filter(pl.Series(own))}).unique(
        "row", keep="first"
    )
    at = pl.DataFrame({"row": np.arange(len(whole))})
    return at.join(found, on="row", how="left", maintain_order="left")["value"]


def hashes(rows: pa.Table) -> npt.NDArray[np.uint64]:
    """A hash of (trace_id, span_id) a row.

    Of (process, span_id) for rows without a trace, which our instruments saw or were told, of (name, span_id)
    where a source says neither (arrowing.py made the id). 0 where an id is missing: it is no duplicate.
    """
    if "span_id" not in rows.column_names:
        return np.zeros(rows.num_rows, np.uint64)
    span = rows["span_id"]
    spread = span.fill_null(0).to_numpy() * _SPREAD
    found = np.zeros(rows.num_rows, np.uint64)
    anonymous = words(rows, "process")[0] < 0
    for column in ("name", "process", "trace_id"):
        codes, texts = words(rows, column)
        hashes = np.append(pl.Series(texts, dtype=pl.String).hash().to_numpy(), np.uint64(0))
        ours = anonymous if column == "name" else holds(rows, "evidence", "shim", "native", "derived")
        given = codes >= 0 if column == "trace_id" else (codes >= 0) & ours
        found = np.where(given, hashes[codes] ^ spread | np.uint64(1), found)
    return np.where(span.is_valid().to_numpy(), found, np.uint64(0))


ORIGIN = ("start_ns", "evidence", "span_id", "parent_span_id")
"""Columns that `origins` reads."""


def present(rows: pa.Table, names: tuple[str, ...]) -> list[str]:
    """Those of the names that the rows have."""
    return [name for name in names if name in rows.column_names]


def origins(rows: pa.Table) -> npt.NDArray[np.uint64]:
    """What a row's name belongs to: its span, or the span it was derived from; else its start."""
    start = rows["start_ns"].to_numpy().astype(np.uint64)
    derived = holds(rows, "evidence", "derived")
    found = start
    for column, mask in (("span_id", ~derived), ("parent_span_id", derived)):
        if column in rows.column_names:
            values = pl.Series(rows[column])
            found = np.where(mask & values.is_not_null().to_numpy(), values.fill_null(0).to_numpy(), found)
    return found
