"""A row -> a finished span of the process's own TracerProvider, named `kv.<op>`.

    a call's own span, if it has one ─► else the scope's it was made in ─► else the current one
    ─► else its request's trace, which is the same in every process: a hash of the request's id

Times of a row are monotonic; one anchor a process makes unix times of them. Every column goes to its
canonical attribute (schema/attributes.py), so that `kvtrace import` makes the same row of the span.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from kvtrace import __version__
from kvtrace.instrument import scope
from kvtrace.instrument.autoinstrument.parts import Parts
from kvtrace.recorder.place import clock_pair, host
from kvtrace.recorder.shapes import DEFINITIONS
from kvtrace.schema.attributes import CANONICAL, FOUND_BY_TIER_PREFIX, MEMBERS
from kvtrace.schema.tables import TABLES
from kvtrace.schema.traces import own_trace, request_span

if TYPE_CHECKING:
    from typing import Any

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

_ATTRIBUTES = {column: name for name, column in CANONICAL.items()}
_TIMES = frozenset(column.name for column in TABLES["span"] if "unix ns" in column.doc)
_OWN, _TIER = "attributes.", "found_by_tier."
_POINTS = frozenset({"publish", "evict", "drop"})
_BAD_OUTCOMES = frozenset({"failed", "timeout"})
_SCHEDULER = "scheduler"
"""Who is taken to have sent the request's own span."""
_LOG = logging.getLogger("kvtrace")


class Spans:
    """Spans of this process; `lost` counts rows that became none."""

    def __init__(self, provider: Any = None) -> None:
        self._provider = provider
        self.tracer: Tracer = trace.get_tracer("kvtrace", __version__, tracer_provider=provider)
        self.lost = 0
        monotonic_ns, unix_ns = clock_pair()
        self._offset_ns = unix_ns - monotonic_ns
        self._parts = Parts()

    def unix(self, monotonic_ns: int) -> int:
        """Unix nanoseconds of a time of a row."""
        return monotonic_ns + self._offset_ns

    def take(self, row: tuple[Any, ...]) -> None:
        """Send one row of the recorder's, if it is an operation. Never raises."""
        try:
            definition = DEFINITIONS[row[0]]
            if definition.table != "span":
                return
            said: dict[str, Any] | None = _said(row)
            if definition.part != "whole":
                said = self._parts.add(definition.part, said or {})
            if said and said.get("op") and said.get("start_ns"):
                self._send(said)
        except Exception as error:  # noqa: BLE001 - never into the program
            self.lose(error)

    def fill(self, span: Span, row: tuple[Any, ...]) -> int | None:
        """Give a span that lasts what its row says; the row's end, monotonic ns."""
        said = _said(row)
        span.set_attributes(self._attributes(said))
        if said.get("outcome") in _BAD_OUTCOMES:
            self.mark_failed(span)
        end_ns: int | None = said.get("end_ns")
        return end_ns

    def mark_failed(self, span: Span) -> None:
        """What failed is an error, without its text."""
        span.set_status(Status(StatusCode.ERROR))

    def around(self, request_id: str | None = None) -> Context | None:
        """The context of a new span; None is the current one of this thread."""
        if trace.get_current_span().get_span_context().is_valid:
            return None
        here = scope.current()
        parent = getattr(here, "span", None)
        if parent is None and request_id is not None:
            parent = self._of_request(request_id)
        return None if parent is None else trace.set_span_in_context(NonRecordingSpan(parent))

    def lose(self, error: Exception) -> None:
        """Count a row that became no span; the first one is said."""
        self.lost += 1
        if self.lost == 1:
            _LOG.warning(
                "kvtrace: a row became no span (%s), further ones are not said.", type(error).__name__
            )

    def _send(self, said: dict[str, Any]) -> None:
        end_ns = said.get("end_ns", said["start_ns"] if said["op"] in _POINTS else None)
        if end_ns is None:
            return  # a span of OpenTelemetry's SDK that has no end is never sent
        span = self.tracer.start_span(
            f"kv.{said['op']}",
            context=self.around(said.get("request_id")),
            start_time=self.unix(said["start_ns"]),
            attributes=self._attributes(said),
        )
        if said.get("outcome") in _BAD_OUTCOMES or said.get("status") == "error":
            self.mark_failed(span)
        span.end(self.unix(end_ns))

    def _of_request(self, request_id: str) -> SpanContext:
        """The request's own span, whichever process sends it; sampled as its trace is."""
        number = own_trace(request_id)
        sampler = getattr(self._provider or trace.get_tracer_provider(), "sampler", None)
        taken = sampler is None or sampler.should_sample(None, number, "kvtrace").decision.is_sampled()
        flags = TraceFlags(TraceFlags.SAMPLED if taken else TraceFlags.DEFAULT)
        return SpanContext(number, request_span(request_id, _SCHEDULER), is_remote=True, trace_flags=flags)

    def _attributes(self, said: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = self._who()
        for column, value in said.items():
            if column in _ATTRIBUTES:
                found[_ATTRIBUTES[column]] = self.unix(value) if column in _TIMES else value
            elif column.startswith(_TIER):
                found[FOUND_BY_TIER_PREFIX + column.removeprefix(_TIER)] = value
            elif column.startswith(_OWN):
                found[column.removeprefix(_OWN)] = value
        for name, values in zip(MEMBERS, said.get("members") or (), strict=False):
            if any(value is not None for value in values):
                found[name] = list(values)
        return found

    def _who(self) -> dict[str, Any]:
        """The process, where its resource does not say which it is."""
        resource = getattr(self._provider or trace.get_tracer_provider(), "resource", None)
        known = getattr(resource, "attributes", {})
        if "service.instance.id" in known or {"host.name", "process.pid"} <= set(known):
            return {}
        return {"kvtrace.process": f"{host()}/{os.getpid()}"}


def _said(row: tuple[Any, ...]) -> dict[str, Any]:
    """Column -> value of all that is known."""
    definition = DEFINITIONS[row[0]]
    columns = zip(definition.columns, row[1:], strict=True)
    return {**definition.constants, **{name: value for name, value in columns if value is not None}}
