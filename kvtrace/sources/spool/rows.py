"""Decoded columns -> rows of the run's tables: their types, unix times, maps, and who recorded them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from kvtrace.schema.tables import TABLES
from kvtrace.sinks.parquet.arrow import memory_schema
from kvtrace.sources.dialects.attributes import map_array

if TYPE_CHECKING:
    from collections.abc import Mapping

ATTRIBUTES = "attributes."
FOUND_BY_TIER = "found_by_tier."
LABELS = "labels."
_MAPS: dict[str, pa.DataType] = {ATTRIBUTES: pa.string(), FOUND_BY_TIER: pa.int64(), LABELS: pa.string()}
TIMES: dict[str, frozenset[str]] = {
    table: frozenset(column.name for column in columns if column.type == "int64" and "unix ns" in column.doc)
    for table, columns in TABLES.items()
}
"""Table -> its columns that are points in time; the recorder writes them as raw monotonic nanoseconds."""
_WORD = pa.dictionary(pa.int32(), pa.string())
COUNTED_ID = 1 << 39
"""Span ids of whole rows have this bit; the lower ones are the row's number in its spool."""


def typed(rows: pa.Table, table: str) -> pa.Table:
    """The columns in the types that the run has; what the table has no column for becomes an attribute.

    A value that its column cannot hold becomes null.
    """
    schema = memory_schema(table)
    columns: dict[str, pa.ChunkedArray] = {}
    for name in rows.column_names:
        target, kind = name, None
        if name in schema.names:
            kind = schema.field(name).type
        elif name.startswith(FOUND_BY_TIER):
            kind = pa.int64()
        else:
            target, kind = name if name.startswith((ATTRIBUTES, LABELS)) else ATTRIBUTES + name, pa.string()
        columns[target] = _cast(rows[name], kind)
    return pa.table(columns)


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Values of another type; null where they have no such value."""
    if values.type == kind:
        return values
    if pa.types.is_dictionary(kind) and pa.types.is_string(values.type):
        return values.dictionary_encode()
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
    except pa.ArrowNotImplementedError:
        return pa.chunked_array([pa.nulls(len(values), kind)])
    plain = pl.Series(values).cast(pl.Int64 if pa.types.is_integer(kind) else pl.Float64, strict=False)
    return pa.chunked_array([plain.to_arrow().cast(kind, safe=False)])


def plain_ids(rows: pa.Table) -> pa.Table:
    """Ids as text: a dictionary would remember those of all operations that have ended."""
    for name in ("request_id", "trace_id"):
        if name in rows.column_names and pa.types.is_dictionary(rows[name].type):
            rows = rows.set_column(rows.column_names.index(name), name, rows[name].cast(pa.string()))
    return rows


def numbered(rows: pa.Table, numbers: npt.NDArray[np.int64], prefix: int) -> pa.Table:
    """Give whole rows of `span` that have no id one made of the process's prefix and the row's number."""
    ids = pa.array((np.uint64(prefix) << np.uint64(40)) | np.uint64(COUNTED_ID) | numbers.astype(np.uint64))
    if "span_id" not in rows.column_names:
        return rows.append_column("span_id", ids)
    at = rows.column_names.index("span_id")
    return rows.set_column(at, "span_id", pc.coalesce(rows["span_id"].combine_chunks(), ids))


def in_unix_time(rows: pa.Table, table: str, offset_ns: int) -> pa.Table:
    """Points in time moved from the monotonic clock to unix time; one beyond 64 bits becomes null."""
    for name in TIMES[table].intersection(rows.column_names):
        moved = _moved(rows[name], offset_ns)
        rows = rows.set_column(rows.column_names.index(name), name, moved)
    return rows


def _moved(times: pa.ChunkedArray, offset_ns: int) -> pa.ChunkedArray:
    try:
        return pc.add_checked(times, offset_ns)
    except pa.ArrowInvalid:
        low, high = -(2**63) - min(offset_ns, 0), 2**63 - 1 - max(offset_ns, 0)
        possible = pc.and_(pc.greater_equal(times, low), pc.less_equal(times, high))
        return pc.add(pc.if_else(possible, times, None), offset_ns)


def with_maps(rows: pa.Table) -> pa.Table:
    """Columns called attributes.<key>, found_by_tier.<tier> and labels.<name> as maps."""
    for prefix, kind in _MAPS.items():
        names = [name for name in rows.column_names if name.startswith(prefix)]
        if names:
            values = [rows[name].combine_chunks() for name in names]
            keys = [name.removeprefix(prefix) for name in names]
            rows = rows.drop_columns(names).append_column(
                prefix[:-1], _map(rows.num_rows, keys, values, kind)
            )
    return rows


def _map(rows: int, keys: list[str], values: list[pa.Array], kind: pa.DataType) -> pa.Array:
    """A map a row of the keys that have a value there; null where none has."""
    at = [np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False)) for column in values]
    row = np.concatenate(at)
    code = np.repeat(np.arange(len(keys)), [own.size for own in at])
    found = pa.concat_arrays([column.cast(kind).drop_null() for column in values])
    if len(keys) > 1:
        order = np.argsort(row, kind="stable")
        row, code, found = row[order], code[order], found.take(pa.array(order))
    return map_array(rows, row, pa.array(keys, pa.string()).take(pa.array(code)), found)


def with_words(rows: pa.Table, table: str, words: Mapping[str, str | None]) -> pa.Table:
    """Fill text columns of the table with one word each where the rows do not have their own."""
    schema = memory_schema(table)
    for name, word in words.items():
        if name not in schema.names or word is None:
            continue
        if name not in rows.column_names:
            rows = rows.append_column(name, constant(word, rows.num_rows, schema.field(name).type))
        elif rows[name].null_count:
            kind = schema.field(name).type
            filled = pc.fill_null(rows[name].cast(pa.string()), word)
            filled = filled.dictionary_encode() if pa.types.is_dictionary(kind) else filled
            rows = rows.set_column(rows.column_names.index(name), name, filled)
    return rows


def constant(word: str, rows: int, kind: pa.DataType = _WORD) -> pa.Array:
    """The same word in every row."""
    if not pa.types.is_dictionary(kind):
        return pa.repeat(pa.scalar(word, kind), rows)
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([word]))


def as_open(rows: pa.Table) -> pa.Table:
    """Operations that never closed: outcome open, for requests status open too; their end stays null."""
    rows = with_words(rows, "span", {"outcome": "open"})
    if "op" not in rows.column_names:
        return rows
    is_request = pc.fill_null(pc.equal(rows["op"].cast(pa.string()), "request"), fill_value=False)
    known = (
        rows["status"].cast(pa.string())
        if "status" in rows.column_names
        else pa.nulls(rows.num_rows, pa.string())
    )
    status = pc.if_else(pc.and_(is_request, pc.is_null(known)), "open", known)
    if "status" in rows.column_names:
        rows = rows.drop_columns(["status"])
    return rows.append_column("status", status.cast(pa.string()).dictionary_encode())


def table_of(rows: list[dict[str, Any]], table: str) -> pa.Table:
    """A few rows as a table."""
    target = memory_schema(table)
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in target]
    return pa.Table.from_arrays(columns, schema=target)
