"""OpenTelemetry's own way in: under `opentelemetry-instrument`, what a script moves becomes its spans.

    opentelemetry-instrument python script.py        pip install 'kvtrace[autoinstrument]', nothing else to do

    with kvtrace.request("cmpl-7"):                  a span kvtrace.request, a child of the span around it
        fetch(keys)                                  @kvtrace.transfer: a child kv.load, kvtrace.* attributes

    instrumentors.py  the entry points `kvtrace` (scripts) and `kvtrace_lmcache`; imports OpenTelemetry
    door.py           open, closed, or refused: once a process, whoever asks
    following.py      a scope or a call that lasts, as the current span of its thread or task
    spans.py          a row -> a finished span of the process's own TracerProvider
    parts.py          rows that come in parts, until they are whole
    refusing.py       vLLM: its own TracerProvider would come too late

A row goes one way: with KVTRACE_OUT (`kvtrace run`) it is recorded and no span is made, or an import of both
would count it twice. Rows that are no operations (events of blocks, samples) are no spans. A span costs its
thread what OpenTelemetry's SDK costs, some tens of microseconds; a busy server is better off with
`kvtrace run`. Nothing but instrumentors.py and what it opens imports OpenTelemetry.
"""

from __future__ import annotations
