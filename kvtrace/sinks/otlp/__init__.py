"""Rows of a run as OpenTelemetry spans, through OpenTelemetry's own exporters.

destination.py    --otlp URL and the OTEL_* variables -> an exporter (light: asked before the command starts)
sampling.py       OTEL_TRACES_SAMPLER, by trace
traces.py         which trace a row belongs to, and which span is its parent
spans.py          a row -> a finished span with explicit times, named `kv.<op>`
delivery.py       a bounded queue and a thread: a slow collector delays nobody
complaints.py     why it failed, in the exporter's words

A span carries every column under its canonical attribute (schema/attributes.py), so that whatever stores it
can give it back: `kvtrace import` makes the same rows of it. No global tracer provider is set or used.
"""

from __future__ import annotations
