"""The words (schema/tables.py) as Arrow schemas."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

from kvtrace import schema
from kvtrace.schema.tables import MEMBER, TABLES
from kvtrace.schema.vocabulary import CLOSED

_SCALARS = {
    "string": pa.string(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "uint8": pa.uint8(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "map<string,int64>": pa.map_(pa.string(), pa.int64()),
}
MEMBER_TYPE = pa.struct([(column.name, _SCALARS[column.type]) for column in MEMBER])
"""One entry of `members`."""


def arrow_type(name: str) -> pa.DataType:
    """Arrow type of one of schema.tables.TYPES."""
    return pa.list_(MEMBER_TYPE) if name == "list<member>" else _SCALARS[name]


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Arrow schema of a table of a run, its schema version in the metadata."""
    fields = [pa.field(column.name, arrow_type(column.type)) for column in TABLES[table]]
    return pa.schema(fields, metadata={"kvtrace.table": table, "kvtrace.schema": str(schema.VERSION)})


IDS = ("request_id", "trace_id")
"""Text columns of `span` that some rows share."""
WORDS = frozenset(
    {*CLOSED, "run_id", "name", "reason", "component", "engine", "process", "device", "stream", *IDS}
)
"""Text columns of `span` whose values repeat: kept dictionary-encoded in memory, plain text on disk."""


WORD = pa.dictionary(pa.int32(), pa.string())
CODED_MAP = pa.map_(WORD, WORD)
"""Attributes as they are held: to sort their rows moves numbers, not text."""


@cache
def memory_schema(table: str) -> pa.Schema:
    """The schema of a table as its rows are held: WORDS of `span` and attributes are dictionaries."""
    found = arrow_schema(table)
    if table != "span":
        return found
    kinds = {"attributes": CODED_MAP, **dict.fromkeys(WORDS, WORD)}
    fields = [pa.field(field.name, kinds.get(field.name, field.type)) for field in found]
    return pa.schema(fields, metadata=found.metadata)


def conform(data: pa.Table, table: str) -> pa.Table:
    """Bring a table into its schema in memory: columns in order, missing ones null.

    Raises:
        ValueError: a column that the schema does not have (a mistake of ours, never of the input).
    """
    target = memory_schema(table)
    unknown = set(data.column_names) - set(target.names)
    if unknown:
        raise ValueError(f"{table} has no column {', '.join(sorted(unknown))}")
    rows = data.num_rows
    columns = [
        data[field.name].cast(field.type) if field.name in data.column_names else pa.nulls(rows, field.type)
        for field in target
    ]
    return pa.Table.from_arrays(columns, schema=target)


def used(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same column with a dictionary of those words alone that occur, in the order in which they do."""
    codes = column.indices.dictionary_encode()
    return pa.DictionaryArray.from_arrays(codes.indices, column.dictionary.take(codes.dictionary))


def with_used_texts(table: pa.Table) -> pa.Table:
    """A part of a table without the ids and attributes of the other parts."""
    for name in (*IDS, "attributes"):
        if name in table.column_names:
            column = table[name].combine_chunks()  # copies, so that nothing of the other parts is below it
            if column.type == CODED_MAP:
                column = _used_entries(column)
            elif pa.types.is_dictionary(column.type):
                column = used(column)
            table = table.set_column(table.column_names.index(name), name, column)
    return table


def _used_entries(maps: pa.MapArray) -> pa.MapArray:
    """Maps, contiguous in memory, their values with a dictionary of those that occur."""
    empty = np.append(maps.is_null().to_numpy(zero_copy_only=False), False)
    offsets = pa.array(maps.offsets.to_numpy(), pa.int32(), mask=empty if empty.any() else None)
    return pa.MapArray.from_arrays(offsets, maps.keys, used(maps.items))


def together(parts: list[pa.Table], schema: pa.Schema) -> pa.Table:
    """Tables of different columns as one, of the columns that any of them has, in the order of a schema.

    Dictionaries are made one, memory is contiguous.
    """
    seen = {name for part in parts for name in part.column_names}
    fields = [field for field in schema if field.name in seen]
    fitted = [
        pa.table(
            {
                field.name: part[field.name].cast(field.type)
                if field.name in part.column_names
                else pa.nulls(part.num_rows, field.type)
                for field in fields
            }
        )
        for part in parts
    ]
    return pa.concat_tables(fitted).unify_dictionaries().combine_chunks()
