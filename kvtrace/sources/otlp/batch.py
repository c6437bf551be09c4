"""What every OTLP decoder returns: spans and their attributes as Arrow tables, in the producer's own words.

Both decoders end in `assemble`, so that dropping content, leaving out missing values and ordering are
written once and cannot differ between protobuf and JSON.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from kvtrace.schema.content import EVENTS, is_content
from kvtrace.sources.otlp import ids
from kvtrace.sources.stream import Undecodable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvtrace.sources.otlp.ids import Matrix

Column: TypeAlias = Any
"""An Arrow array: pyarrow's stubs know nested arrays and the compute functions too badly to help."""

BAD_IDS = "ids of impossible length, read as absent"


def _schema(*columns: tuple[str, Any]) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in columns])


_WORD = pa.dictionary(pa.int32(), pa.string())
SPANS = _schema(
    ("trace_id", _WORD),
    ("span_id", pa.uint64()),
    ("parent_span_id", pa.uint64()),
    ("name", _WORD),
    ("start_ns", pa.uint64()),
    ("end_ns", pa.uint64()),
    ("status_code", pa.int32()),
    ("scope", _WORD),
    ("resource", pa.int32()),
)
"""Columns of `SpanBatch.spans`."""

ATTRIBUTES = _schema(
    ("row", pa.int32()),
    ("key", _WORD),
    ("value", _WORD),
)
"""Columns of `SpanBatch.attributes`."""


@dataclass(frozen=True, slots=True)
class SpanBatch:
    """Some spans, decoded but not yet understood: times and ids typed, attributes as text.

    spans: one row a span; trace_id 32 lower-case hex digits, "" when absent; span ids null when absent
    attributes: one row an attribute, by span row; what was missing is left out
    resources: what `spans.resource` points into, attribute name -> text
    undecodable: what was lost on the way
    content: content attribute or event -> how many were dropped
    """

    spans: pa.Table
    attributes: pa.Table
    resources: tuple[dict[str, str], ...]
    undecodable: tuple[Undecodable, ...]
    content: Mapping[str, int]


@dataclass(slots=True)
class Gate:
    """Drops what people wrote, and counts it; with `keep` it lets everything through."""

    keep: bool
    dropped: Counter[str]

    def drops(self, name: str) -> bool:
        """Whether an attribute of this name is dropped; counts it if so."""
        if self.keep or not is_content(name):
            return False
        self.dropped[name] += 1
        return True

    def hides(self, event: str) -> bool:
        """Whether a span event of this name is content as a whole; does not count it."""
        return not self.keep and event in EVENTS


@dataclass(slots=True)
class Attributes:
    """Attributes on their way into a table: span row, name, text (null = missing, will be left out).

    Names and texts are dictionary columns, or become some.
    """

    rows: Matrix
    keys: Column
    values: Column


@dataclass(slots=True)
class Extras:
    """Attributes made from status messages, events and links; they follow the span's own ones."""

    rows: list[int]
    keys: list[str]
    values: list[str]

    def add(self, row: int, pairs: list[tuple[str, str]]) -> None:
        """Append what one span has."""
        for key, value in pairs:
            self.rows.append(row)
            self.keys.append(key)
            self.values.append(value)


@dataclass(slots=True)
class Notes:
    """What is not a row: resources, losses, dropped content."""

    gate: Gate
    resources: list[dict[str, str]]
    losses: Counter[str]


def span_table(
    traces: tuple[Matrix, int],
    spans: tuple[Matrix, int],
    parents: tuple[Matrix, int],
    rest: list[Any],
    noted: Notes,
) -> pa.Table:
    """The span table from parsed ids (and how many were malformed) and its other columns, arrays or lists."""
    noted.losses[BAD_IDS] += traces[1] + spans[1] + parents[1]
    columns: list[Column] = [ids.hex_dictionary(traces[0]), ids.numbers(spans[0]), ids.numbers(parents[0])]
    for column, field in zip(rest, list(SPANS)[3:], strict=True):
        if pa.types.is_dictionary(field.type):
            columns.append(_dictionary(pa.array(column, pa.string()) if isinstance(column, list) else column))
        else:
            columns.append(pa.array(column, field.type) if isinstance(column, list) else column)
    return pa.Table.from_arrays(columns, schema=SPANS)


def notes(*, keep_content: bool) -> Notes:
    """Empty notes."""
    return Notes(Gate(keep_content, Counter()), [], Counter())


def assemble(spans: pa.Table, own: Attributes, extras: Extras, noted: Notes) -> SpanBatch:
    """Bring own attributes and extras into one table, in span order, without content and missing values."""
    rows, keys, values = own.rows, _dictionary(own.keys), _dictionary(own.values)
    if values.null_count:
        present = values.is_valid()
        rows = rows[present.to_numpy(zero_copy_only=False)]
        keys, values = keys.filter(present), values.filter(present)
    if not noted.gate.keep:
        rows, keys, values = _without_content(rows, keys, values, noted.gate.dropped)
    if extras.rows:
        rows = np.concatenate([rows, np.array(extras.rows, dtype=np.int32)])
        keys, values = _joined(keys, extras.keys), _joined(values, extras.values)
        order = np.argsort(rows, kind="stable")  # stable: a span's own attributes stay before its extras
        rows, keys, values = rows[order], keys.take(order), values.take(order)
    attributes = pa.Table.from_arrays([pa.array(rows, pa.int32()), keys, values], schema=ATTRIBUTES)
    undecodable = tuple(Undecodable(detail, count) for detail, count in noted.losses.items() if count)
    return SpanBatch(spans, attributes, tuple(noted.resources), undecodable, dict(noted.gate.dropped))


def for_each(encoded: Column, texts: Column) -> Column:
    """A dictionary column of the texts of different things, for every thing."""
    return pa.DictionaryArray.from_arrays(texts.indices.take(encoded.indices), texts.dictionary)


def _dictionary(texts: Column) -> Column:
    return texts if pa.types.is_dictionary(texts.type) else texts.dictionary_encode()


def _joined(texts: Column, more: list[str]) -> Column:
    """A dictionary column and the texts that follow it."""
    both = [texts, pa.array(more, pa.string()).dictionary_encode()]
    return pa.chunked_array(both).unify_dictionaries().combine_chunks()


def _without_content(
    rows: Matrix, keys: Column, values: Column, dropped: Counter[str]
) -> tuple[Matrix, Column, Column]:
    """Filter by name; names are looked at once each, not once a row. No dictionary keeps what was dropped."""
    names = keys.dictionary.to_pylist()
    content = np.array([is_content(name) for name in names], dtype=bool)
    indices = keys.indices.to_numpy()
    counts = np.bincount(indices, minlength=len(names))
    if not counts[content].any():
        return rows, keys, values
    dropped.update({names[i]: int(counts[i]) for i in np.flatnonzero(content) if counts[i]})
    stays = ~content[indices]
    mask = pa.array(stays)
    texts = values.filter(mask).cast(pa.string()).dictionary_encode()
    return rows[stays], keys.filter(mask), texts
