"""The columns of a batch while dialects fill them, each for its own rows."""

from __future__ import annotations

from functools import cache

import numpy as np
import polars as pl
import pyarrow as pa

from kvtrace.schema.tables import SPAN
from kvtrace.schema.vocabulary import CLOSED, REASONS
from kvtrace.sources.dialects.attributes import Attributes, Mask, floats, integers
from kvtrace.sources.otlp.batch import SpanBatch


ID_KIND = "id_kind"
"""A column of staged rows alone: whether request_id is the engine's internal one, an external one, or any."""


@cache
def _types() -> dict[str, str]:
    return {column.name: column.type for column in SPAN} | {ID_KIND: "string"}


class Columns:
    """One batch: its spans' own columns, and those that dialects add."""

    def __init__(self, batch: SpanBatch) -> None:
        self.rows = batch.spans.num_rows
        self.resource = batch.spans["resource"].to_numpy()
        self.name = pl.Series("name", batch.spans["name"])
        self.scope = pl.Series("scope", batch.spans["scope"])
        self.status_code = batch.spans["status_code"].to_numpy()
        self.attributes = Attributes(batch.attributes, self.rows)
        start = pl.Series("start_ns", batch.spans["start_ns"]).cast(pl.Int64)
        end = pl.Series("end_ns", batch.spans["end_ns"]).cast(pl.Int64)
        trace = pl.Series("trace_id", batch.spans["trace_id"])
        self._filled: dict[str, pl.Series] = {
            "name": self.name,
            "start_ns": start,
            "end_ns": end.set(end == 0, None),
            "trace_id": trace.set(trace == "", None) if (trace == "").any() else trace,
            "span_id": pl.Series("span_id", batch.spans["span_id"]),
            "parent_span_id": pl.Series("parent_span_id", batch.spans["parent_span_id"]),
        }
        self._arrow: dict[str, pa.Array] = {}

    def __getitem__(self, column: str) -> pl.Series:
        """A column as filled so far."""
        return self._filled.get(column, self._nulls(column))

    def _nulls(self, column: str) -> pl.Series:
        kind = {"int64": pl.Int64, "uint64": pl.UInt64}.get(_types()[column], pl.String)
        return pl.Series(column, [None], dtype=kind).new_from_index(0, self.rows)

    def put(self, column: str, values: pl.Series | str | int | None, mask: Mask) -> None:
        """Set a column for the rows of the mask."""
        current = self[column]
        if not isinstance(values, pl.Series):
            values = pl.Series(column, [values], dtype=current.dtype).new_from_index(0, self.rows)
        self._filled[column] = values if mask.all() else values.zip_with(pl.Series(mask), current)

    def put_arrow(self, column: str, values: pa.Array) -> None:
        """Set a nested column (members, found_by_tier) for all rows."""
        self._arrow[column] = values

    def take(self, attribute: str, column: str, mask: Mask) -> pl.Series:
        """Fill a column from an attribute; what does not fit its type or closed list stays an attribute."""
        text = self.attributes.text(attribute)
        if text.null_count() == self.rows:
            return text
        values = integers(text) if _types()[column] == "int64" else text
        if column in CLOSED:
            values = values.set(~values.is_in(CLOSED[column]), None)
        elif column == "reason":
            values = _reasons(self["op"], values)
        fits = mask & values.is_not_null().to_numpy()
        self.put(column, values, fits)
        self.attributes.understood(attribute, fits)
        return values

    def seconds(self, names: tuple[str, ...], mask: Mask) -> pl.Series:
        """The first of some attributes in seconds, as float64."""
        found = pl.Series([None], dtype=pl.Float64).new_from_index(0, self.rows)
        for name in names:
            found = found.fill_null(floats(self.attributes.text(name)))
            self.attributes.understood(name, mask)
        return found

    def table(self, schema: pa.Schema) -> pa.Table:
        """All columns in the order of a schema, the rest of the attributes among them."""
        self._arrow["attributes"] = self.attributes.rest()
        columns = []
        for field in schema:
            if field.name in self._arrow:
                columns.append(self._arrow[field.name])
            elif field.name in self._filled:
                columns.append(self._filled[field.name].to_arrow().cast(field.type))
            else:
                columns.append(pa.nulls(self.rows, field.type))
        return pa.table(columns, schema=schema)


@cache
def _allowed_reasons() -> list[str]:
    return [f"{op}|{reason}" for op, reasons in REASONS.items() for reason in reasons]


def _reasons(op: pl.Series, reason: pl.Series) -> pl.Series:
    """A reason counts only where its operation's closed list has it."""
    return reason.set(~(op + "|" + reason).is_in(_allowed_reasons()).fill_null(value=False), None)


def where(values: pl.Series, wanted: str | list[str]) -> Mask:
    """Rows whose text is one of the wanted."""
    found = values.is_in(wanted) if isinstance(wanted, list) else values == wanted
    return np.asarray(found.fill_null(value=False).to_numpy(), dtype=bool)
