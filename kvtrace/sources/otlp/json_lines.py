"""OTLP JSON, one body a line: msgspec decodes, comprehensions collect, Arrow makes the columns.

A line is decoded whole or not at all: what it had added before an error is taken back, the error is
counted, its neighbours stay. Nothing of a line's text gets into the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from kvtrace.sources.otlp import batch, ids, json_attributes, json_bodies, values
from kvtrace.sources.otlp.protobuf_loop import collector_paused

if TYPE_CHECKING:
    from collections.abc import Sequence

BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class _Rows:
    """Columns under construction, as Python lists; attributes stay what the line says where `later`."""

    later: bool
    spans: list[list[Any]] = field(default_factory=lambda: [[] for _ in batch.SPANS])
    attributes: list[msgspec.Raw] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    texts: list[str | None] = field(default_factory=list)
    extras: batch.Extras = field(default_factory=lambda: batch.Extras([], [], []))

    def lists(self) -> list[list[Any]]:
        """Every list that grows."""
        own: list[list[Any]] = [self.attributes, self.counts, self.keys, self.texts]
        return [*self.spans, *own, self.extras.rows, self.extras.keys, self.extras.values]

    def own(self, gate: batch.Gate) -> batch.Attributes:
        """The spans' attributes; OddError where they have to be read one by one."""
        if self.later:
            return json_attributes.all_at_once(self.attributes, gate)
        rows = np.repeat(np.arange(len(self.counts), dtype=np.int32), self.counts)
        return batch.Attributes(rows, pa.array(self.keys, pa.string()), pa.array(self.texts, pa.string()))


def decode(lines: Sequence[bytes], *, keep_content: bool = False) -> batch.SpanBatch:
    """Decode lines, each one ExportTraceServiceRequest or TracesData in JSON, or an array of them.

    A line that cannot be read is counted in `undecodable`; the others decode. Blank lines, `{}` and empty
    lists lose nothing.
    """
    with collector_paused():
        try:
            return _decoded(lines, _Rows(later=True), batch.notes(keep_content=keep_content))
        except json_attributes.OddError:
            return decode_one_by_one(lines, keep_content=keep_content)


def decode_one_by_one(lines: Sequence[bytes], *, keep_content: bool = False) -> batch.SpanBatch:
    """The same, attribute by attribute: slow, and the definition of right."""
    return _decoded(lines, _Rows(later=False), batch.notes(keep_content=keep_content))


def _decoded(lines: Sequence[bytes], rows: _Rows, noted: batch.Notes) -> batch.SpanBatch:
    growing = [*rows.lists(), noted.resources]
    for line in lines:
        stripped = line.removeprefix(BOM).strip()
        if not stripped:
            continue
        lengths, dropped = list(map(len, growing)), dict(noted.gate.dropped)
        try:
            for body in json_bodies.bodies(stripped):
                _add(body, rows, noted)
        except json_attributes.MISTAKES as error:
            noted.losses[reason(error)] += 1
            noted.gate.dropped = Counter(dropped)
            for column, length in zip(growing, lengths, strict=True):
                del column[length:]
    own = rows.own(noted.gate)
    return batch.assemble(_table(rows.spans, noted), own, rows.extras, noted)


def reason(error: Exception) -> str:
    """Why a line cannot be read: what kind of mistake, never what the line says."""
    if isinstance(error, json_bodies.NotOtlpError):
        return str(error)
    if isinstance(error, RecursionError):
        return "JSON nested too deep"
    if isinstance(error, msgspec.ValidationError):
        return f"OTLP JSON of a wrong type: {error}"
    if isinstance(error, msgspec.DecodeError):
        return re.sub(r" \(byte \d+\)$", "", f"no JSON: {error}")
    if isinstance(error, UnicodeDecodeError):
        return "no JSON: invalid UTF-8"
    return "OTLP JSON with an impossible value"


def _add(body: json_bodies.Body, rows: _Rows, noted: batch.Notes) -> None:
    gate = noted.gate
    for group in body.resource_spans or ():
        attributes = group.resource.attributes if group.resource is not None else None
        index = len(noted.resources)
        noted.resources.append(values.resource(json_bodies.pairs(attributes, gate), gate))
        for scope_spans in group.scope_spans or ():
            spans = scope_spans.spans
            if spans:
                scope = (scope_spans.scope.name if scope_spans.scope is not None else None) or ""
                _add_spans(spans, scope, index, rows, gate)


def _add_spans(spans: list[json_bodies.Span], scope: str, index: int, rows: _Rows, gate: batch.Gate) -> None:
    """Collect the spans of one scope, column by column: the loop that everything waits for."""
    traces, ids_, parents, names, starts, ends, codes, scopes, resources = rows.spans
    first = len(traces)
    traces += [span.trace_id for span in spans]
    ids_ += [span.span_id for span in spans]
    parents += [span.parent_span_id for span in spans]
    names += [span.name or "" for span in spans]
    starts += _times([span.start_time_unix_nano or 0 for span in spans])
    ends += _times([span.end_time_unix_nano or 0 for span in spans])
    codes += [json_bodies.status(span.status) if span.status is not None else 0 for span in spans]
    scopes += [scope] * len(spans)
    resources += [index] * len(spans)
    attributes = [span.attributes for span in spans]
    if rows.later:
        rows.attributes += attributes
    else:
        counts, keys, texts = json_attributes.one_by_one(attributes, gate)
        rows.counts += counts
        rows.keys += keys
        rows.texts += texts
    for row, span in enumerate(spans, first):
        if span.events or span.links or (span.status is not None and span.status.message):
            said = (span.status.message if span.status is not None else None) or ""
            events = (json_bodies.event(item, gate) for item in span.events or ())
            links = map(json_bodies.link, span.links or ())
            rows.extras.add(row, values.extras(said, events, links, gate))


def _times(times: list[int]) -> list[int]:
    """Times that fit their column; others make the line undecodable."""
    if min(times) < 0 or max(times) >= 2**64:
        raise OverflowError
    return times


def _table(columns: list[list[Any]], noted: batch.Notes) -> pa.Table:
    traces = ids.from_text(columns[0], ids.TRACE_BYTES)
    spans, parents = (ids.from_text(column, ids.SPAN_BYTES) for column in columns[1:3])
    return batch.span_table(traces, spans, parents, columns[3:], noted)
