"""Which trace a row belongs to, and which span is its parent.

    caller's span ─► request (api) ─► request (scheduler) ─► queue, lookup, load, store, hold ...
    step: a trace of its own, with links to the scheduler's request spans of its members

Rows finish before the request that they belong to, so the ids of a request's spans cannot be looked up: they
are hashes of its id. A request's trace is the caller's (W3C traceparent) where its front end saw one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from kvtrace.schema.traces import own_trace, request_span

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

API = "api"
SCHEDULER = "scheduler"
CALLERS = 200_000
"""Requests whose caller's trace is remembered; the oldest is forgotten first."""
_TRACE_DIGITS = 32


class Traces:
    """What was learned of callers and front ends from the rows so far."""

    def __init__(self) -> None:
        self._callers: dict[str, int] = {}
        self._named: dict[int, None] = {}
        self._fronted: set[str | None] = set()

    def learn(self, tables: Mapping[str, pa.Table]) -> None:
        """Take note of callers' traces and of engines that have a front end, before rows are converted."""
        for request_id, trace in _named_traces(tables):
            try:
                number = int(trace, 16) if len(trace) == _TRACE_DIGITS else 0
            except ValueError:
                continue
            if number:
                self._callers.pop(request_id, None)
                self._callers[request_id] = number
                self._named[number] = None
        while len(self._callers) > CALLERS:
            del self._callers[next(iter(self._callers))]
        while len(self._named) > CALLERS:
            del self._named[next(iter(self._named))]
        spans, processes = tables.get("span"), tables.get("process")
        for rows, column in ((spans, "observer"), (processes, "role")):
            if rows is not None and {column, "engine"} <= set(rows.column_names):
                own = rows.filter(pc.equal(rows[column], API))
                self._fronted.update(pc.unique(own["engine"]).to_pylist())

    def trace(self, request_id: str) -> int:
        """The trace of a request."""
        return self._callers.get(request_id) or own_trace(request_id)

    def from_caller(self, trace: int) -> bool:
        """Whether a caller named the trace."""
        return trace in self._named

    def parent(self, row: Mapping[str, Any]) -> int | None:
        """The span that a row of a request belongs below; None at the top of its trace."""
        request_id, observer = row["request_id"], row.get("observer")
        if row["op"] != "request":
            return request_span(request_id, API if observer == API else SCHEDULER)
        if observer != API and row.get("engine") in self._fronted:
            return request_span(request_id, API)
        parent: int | None = row.get("parent_span_id")
        return parent


def _named_traces(tables: Mapping[str, pa.Table]) -> list[tuple[str, str]]:
    """(request, trace) of aliases and of request rows."""
    found: list[tuple[str, str]] = []
    aliases, spans = tables.get("alias"), tables.get("span")
    if aliases is not None and aliases.num_rows:
        own = aliases.filter(pc.equal(aliases["kind"], "trace"))
        found += zip(own["request_id"].to_pylist(), own["alias"].to_pylist(), strict=True)
    if spans is not None and {"trace_id", "request_id", "op"} <= set(spans.column_names):
        own = spans.filter(pc.and_(pc.equal(spans["op"], "request"), pc.is_valid(spans["trace_id"])))
        found += zip(own["request_id"].to_pylist(), own["trace_id"].to_pylist(), strict=True)
    return [(request_id, trace) for request_id, trace in found if request_id and trace]
