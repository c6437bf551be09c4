"""Rows of decoders (polars) as Arrow rows of a run's tables.

polars has no maps: a column that is one comes as a list of (key, value) entries, as a struct whose fields are
the keys, or as Python dictionaries; an entry without a value does not exist.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow as pa

from kvtrace.sinks.parquet.arrow import memory_schema
from kvtrace.sources.dialects import STAGED

_SAID = ("op", "name", "observer", "process", "request_id", "start_ns", "end_ns", "attempt", "evidence")
"""What tells one record of a source from another."""

if TYPE_CHECKING:
    from collections.abc import Iterable


def arrow_rows(frame: pl.DataFrame, table: str) -> pa.Table:
    """The columns of a frame with the types of a table; an unknown one is a mistake of ours.

    Raises:
        ValueError: such a column.
    """
    schema = STAGED if table == "span" else memory_schema(table)
    if table == "span":
        frame = with_ids(frame)
    unknown = set(frame.columns) - set(schema.names)
    if unknown:
        raise ValueError(f"{table} has no column {', '.join(sorted(unknown))}")
    fields = [schema.field(name) for name in frame.columns]
    columns = [_column(frame[field.name], field.type) for field in fields]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def with_ids(frame: pl.DataFrame) -> pl.DataFrame:
    """Give rows that have no span id one of what they say, so that the same record read twice is one row."""
    if "span_id" in frame.columns and not frame["span_id"].null_count():
        return frame
    said = [name for name in _SAID if name in frame.columns]
    texts = frame.select(
        pl.concat_str([pl.col(name).cast(pl.String).fill_null("") for name in said], separator="\0")
    ).to_series()
    made = [int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") or 1 for text in texts]
    own = pl.Series("made", made, dtype=pl.UInt64)
    given = frame["span_id"].cast(pl.UInt64) if "span_id" in frame.columns else None
    return frame.with_columns(span_id=own if given is None else given.fill_null(own))


def _column(values: pl.Series, kind: pa.DataType) -> pa.Array:
    if pa.types.is_map(kind):
        return _maps(values, kind)
    if pa.types.is_list(kind):
        return pa.array(values.to_list(), kind)
    found = values.to_arrow()
    if pa.types.is_dictionary(kind):
        return found.cast(pa.string()).dictionary_encode()
    return found.cast(kind)


def _maps(values: pl.Series, kind: pa.MapType) -> pa.Array:
    if isinstance(values.dtype, pl.List) and isinstance(values.dtype.inner, pl.Struct):
        entries = ([(e["key"], e["value"]) for e in row or () if e] or None for row in values.to_list())
    else:
        entries = ([*row.items()] if row else None for row in values.to_list())
    return pa.array(_held(entries), kind)


def _held(rows: Iterable[list[tuple[str, Any]] | None]) -> list[list[tuple[str, Any]] | None]:
    """Maps without the entries that hold nothing; a map without entries is none."""
    kept = ([(key, value) for key, value in row if value is not None] if row else None for row in rows)
    return [row or None for row in kept]
