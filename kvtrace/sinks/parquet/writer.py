"""Writes one finished Parquet file at a time: as *.tmp, encoded for size, renamed into place.

Integers are delta-packed (times, counter ids and token counts of neighbouring rows differ little), text
is dictionary-encoded, everything is zstd: what a span costs on disk is measured in BENCHMARKS.md.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace.errors import RunError
from kvtrace.schema import VERSION
from kvtrace.schema.layout import PARTIAL
from kvtrace.sinks.parquet.arrow import conform, memory_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

ROW_GROUP_ROWS = 256 * 1024
DICTIONARY_BYTES = 16 << 20
"""Ids of all requests of a row group fit; a dictionary that does not would be written and not be used."""
_UNLIKE = {
    "span": {
        "trace_id": "PLAIN",
        "transfer_id": "DELTA_BYTE_ARRAY",
    },
    "alias": {"alias": "DELTA_BYTE_ARRAY", "request_id": "DELTA_BYTE_ARRAY"},
}
"""Text that hardly repeats, or only in neighbouring rows, where zstd finds it: a dictionary costs more."""
_STATISTICS = ["bucket", "op", "request_id", "start_ns", "end_ns", "time_ns"]
"""Columns by which readers skip row groups; for the others they are not worth their cost."""


def _leaves(field: pa.Field, path: str) -> Iterator[tuple[str, pa.DataType]]:
    """Parquet leaf columns below a field, named as Parquet names them."""
    kind = field.type
    if pa.types.is_map(kind):
        yield from _leaves(pa.field("key", kind.key_type), f"{path}.key_value.key")
        yield from _leaves(pa.field("value", kind.item_type), f"{path}.key_value.value")
    elif pa.types.is_list(kind):
        yield from _leaves(kind.value_field, f"{path}.list.element")
    elif pa.types.is_struct(kind):
        for child in kind:
            yield from _leaves(child, f"{path}.{child.name}")
    else:
        yield path, kind


def _encodings(schema: pa.Schema, unlike: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Which leaves get a dictionary, and the encoding of the others."""
    dictionary: list[str] = []
    encoding: dict[str, str] = {}
    for field in schema:
        for path, kind in _leaves(field, field.name):
            if pa.types.is_integer(kind) and kind.bit_width >= 32:
                encoding[path] = "DELTA_BINARY_PACKED"
            elif path in unlike:
                encoding[path] = unlike[path]
            elif pa.types.is_string(kind) or pa.types.is_dictionary(kind) or pa.types.is_integer(kind):
                dictionary.append(path)
    return dictionary, encoding


@contextmanager
def open_writer(path: Path, table: str) -> Iterator[pq.ParquetWriter]:
    """A writer for `path` that leaves either the whole file or nothing.

    Raises:
        RunError: the disk is full, read-only, or the folder cannot be written.
    """
    partial = path.with_name(path.name + PARTIAL)
    schema = memory_schema(table)
    dictionary, encoding = _encodings(schema, _UNLIKE.get(table, {}))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(
            partial,
            schema,
            compression="zstd",
            compression_level=1,
            version="2.6",
            use_dictionary=dictionary,
            dictionary_pagesize_limit=DICTIONARY_BYTES,
            column_encoding=encoding,
            write_statistics=_STATISTICS,
            store_schema=False,
        ) as writer:
            writer.add_key_value_metadata({"kvtrace.table": table, "kvtrace.schema": str(VERSION)})
            yield writer
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise RunError(
            f"{path}: cannot be written ({error.strerror or error}). Free space or choose another --out."
        ) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_table(path: Path, table: str, batches: pa.Table | Iterable[pa.Table]) -> int:
    """Write a whole table (or its parts, in order) into one file; returns the number of rows."""
    parts = [batches] if isinstance(batches, pa.Table) else batches
    rows = 0
    with open_writer(path, table) as writer:
        for part in parts:
            writer.write_table(conform(part, table), row_group_size=ROW_GROUP_ROWS)
            rows += part.num_rows
    return rows
