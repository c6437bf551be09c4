"""A row -> a finished OpenTelemetry span: explicit times, every column under its canonical attribute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from kvtrace import __version__
from kvtrace.schema.attributes import CANONICAL, FOUND_BY_TIER_PREFIX, MEMBERS
from kvtrace.schema.traces import operation_trace, request_span
from kvtrace.sinks.otlp.traces import API, SCHEDULER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    import pyarrow as pa

    from kvtrace.sinks.otlp.traces import Traces

SCOPE = InstrumentationScope("kvtrace", __version__)
CHUNK_ROWS = 1024
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_OF_PROCESS = {"engine": "kvtrace.engine", "process": "kvtrace.process"}
_ATTRIBUTES = {column: name for name, column in CANONICAL.items() if column not in _OF_PROCESS}
_BAD_OUTCOMES = frozenset({"failed", "timeout"})
_OK, _BAD = Status(StatusCode.UNSET), Status(StatusCode.ERROR)


class Spans:
    """Makes spans of rows; keeps one resource a process."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces
        self._resources: dict[tuple[str | None, str | None], Resource] = {}
        self._base = Resource.create()  # OTEL_RESOURCE_ATTRIBUTES, OTEL_SERVICE_NAME

    def of(self, rows: pa.Table) -> Iterator[ReadableSpan]:
        """A span for every row that has an operation."""
        known = [name for name in rows.column_names if rows[name].null_count < rows.num_rows]
        named = {column: _ATTRIBUTES[column] for column in known if column in _ATTRIBUTES}
        for batch in rows.select(known).to_batches(max_chunksize=CHUNK_ROWS):
            for row in batch.to_pylist():
                if row.get("op") and row.get("start_ns"):
                    yield self._span(row, named)

    def _span(self, row: dict[str, Any], named: Mapping[str, str]) -> ReadableSpan:
        request_id, members = row.get("request_id"), row.get("members")
        if request_id:
            trace, parent = self._traces.trace(request_id), self._traces.parent(row)
        else:
            parent = row.get("parent_span_id")
            trace = operation_trace(row.get("run_id") or "", parent or row.get("span_id") or row["start_ns"])
        failed = row.get("outcome") in _BAD_OUTCOMES or row.get("status") == "error"
        return ReadableSpan(
            name=f"kv.{row['op']}",
            context=_context(trace, self._span_id(row)),
            parent=_context(trace, parent, remote=request_id is not None) if parent else None,
            resource=self._resource(row.get("process"), row.get("engine")),
            attributes=_attributes(row, named),
            links=[self._link(member["request_id"]) for member in members or () if member["request_id"]],
            kind=SpanKind.SERVER if _arrives(row) else SpanKind.INTERNAL,
            status=_BAD if failed else _OK,
            start_time=row["start_ns"],
            end_time=row.get("end_ns"),  # none: the span is open, and says so (kvtrace.outcome)
            instrumentation_scope=SCOPE,
        )

    def _span_id(self, row: Mapping[str, Any]) -> int:
        """A request's spans are found by hash, all others keep the id that they have in the run."""
        if row["op"] == "request" and row.get("request_id"):
            return request_span(row["request_id"], row.get("observer") or SCHEDULER)
        return row.get("span_id") or request_span(f"{row['start_ns']}", row["op"])

    def _link(self, request_id: str) -> Link:
        return Link(_context(self._traces.trace(request_id), request_span(request_id, SCHEDULER)))

    def _resource(self, process: str | None, engine: str | None) -> Resource:
        known = self._resources.get((process, engine))
        if known is None:
            said: dict[str, str] = {}
            if process:
                said |= {"service.instance.id": process, _OF_PROCESS["process"]: process}
            if engine:
                said[_OF_PROCESS["engine"]] = engine
            if str(self._base.attributes.get("service.name", "")).startswith("unknown_service"):
                said["service.name"] = engine or "kvtrace"
            known = self._resources[process, engine] = self._base.merge(Resource(said))
        return known


def _arrives(row: Mapping[str, Any]) -> bool:
    return row["op"] == "request" and row.get("observer") == API


def _context(trace: int, span: int, *, remote: bool = False) -> SpanContext:
    return SpanContext(trace, span, is_remote=remote, trace_flags=_SAMPLED)


def _attributes(row: Mapping[str, Any], named: Mapping[str, str]) -> dict[str, Any]:
    """Every column that is known (`named`: column -> attribute), and what has no column as it is."""
    found: dict[str, Any] = dict(row.get("attributes") or ())
    for column, name in named.items():
        value = row[column]
        if value is not None:
            found[name] = value
    for tier, tokens in row.get("found_by_tier") or ():
        if tokens is not None:
            found[FOUND_BY_TIER_PREFIX + tier] = tokens
    members = row.get("members")
    if members:
        for name, field in MEMBERS.items():
            values = [member[field] for member in members]
            if any(value is not None for value in values):
                found[name] = values
    return found
