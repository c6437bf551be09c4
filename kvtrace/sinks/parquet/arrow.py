"""The words (schema/tables.py) as Arrow schemas."""

from __future__ import annotations

from functools import cache

import pyarrow as pa

from kvtrace import schema
from kvtrace.schema.tables import MEMBER, TABLES

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


def conform(data: pa.Table, table: str) -> pa.Table:
    """Bring a table into its schema: columns in order, missing ones null.

    Raises:
        ValueError: a column that the schema does not have (a mistake of ours, never of the input).
    """
    target = arrow_schema(table)
    unknown = set(data.column_names) - set(target.names)
    if unknown:
        raise ValueError(f"{table} has no column {', '.join(sorted(unknown))}")
    rows = data.num_rows
    columns = [
        data[field.name].cast(field.type) if field.name in data.column_names else pa.nulls(rows, field.type)
        for field in target
    ]
    return pa.Table.from_arrays(columns, schema=target)
