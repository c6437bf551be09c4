"""OTEL_TRACES_SAMPLER for spans that are long over: asked by trace, so that one comes whole or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_ON, Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan

    from kvtrace.sinks.otlp.traces import Traces


class Sampling:
    """The sampler of the environment. A caller that sends a traceparent is taken to have sampled it."""

    def __init__(self, traces: Traces) -> None:
        self._sampler = TracerProvider(shutdown_on_exit=False).sampler  # private to us: never made global
        self._traces = traces

    def takes(self, span: ReadableSpan) -> bool:
        """Whether the span is exported."""
        if self._sampler is DEFAULT_ON:
            return True
        context = span.get_span_context()
        trace = context.trace_id if context is not None else 0
        asked = self._sampler.should_sample(self._caller(trace), trace, span.name)
        return asked.decision is Decision.RECORD_AND_SAMPLE

    def _caller(self, trace: int) -> Context | None:
        if not self._traces.from_caller(trace):
            return None
        remote = SpanContext(trace, 1, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        return set_span_in_context(NonRecordingSpan(remote))
