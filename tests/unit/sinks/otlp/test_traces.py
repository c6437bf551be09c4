from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.schema.traces import own_trace, request_span
from kvtrace.sinks.otlp.spans import Spans
from kvtrace.sinks.otlp.traces import Traces
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from tests.unit.sinks.otlp.drawn import (
    API,
    CALLERS_SPAN,
    CALLERS_TRACE,
    SCHEDULER,
    SPANS,
    T0,
    A,
    B,
    drained,
    table,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

ALIAS = {"alias": CALLERS_TRACE, "kind": "trace", "request_id": A}
QUEUE = next(row for row in SPANS if row["op"] == "queue")


def spans_of(tables: dict[str, Any] | None = None) -> list[ReadableSpan]:
    found = tables or drained()
    traces = Traces()
    traces.learn(found)
    return list(Spans(traces).of(found["span"]))


def of(spans: list[ReadableSpan], name: str, **attributes: str) -> ReadableSpan:
    (found,) = [
        span
        for span in spans
        if span.name == name and all(span.attributes[key] == value for key, value in attributes.items())
    ]
    return found


def test_every_row_is_a_span_named_after_its_operation_with_the_times_of_the_row() -> None:
    spans = spans_of()
    assert [span.name for span in spans] == [f"kv.{row['op']}" for row in SPANS]
    assert [(span.start_time, span.end_time) for span in spans] == [
        (r["start_ns"], r["end_ns"]) for r in SPANS
    ]


def test_rows_of_a_request_are_in_the_trace_that_its_caller_named() -> None:
    spans = spans_of()
    own = [span for span, row in zip(spans, SPANS, strict=True) if row.get("request_id") == A]
    assert {span.context.trace_id for span in own} == {int(CALLERS_TRACE, 16)}


def test_without_a_caller_the_trace_is_the_hash_of_the_request_id() -> None:
    open_request = spans_of()[-1]
    assert open_request.context.trace_id == int(sha256(B.encode()).hexdigest()[:32], 16)


def test_an_alias_names_the_trace_before_the_request_row_is_there() -> None:
    (queue,) = spans_of({"span": table("span", [QUEUE]), "alias": table("alias", [ALIAS])})
    assert queue.context.trace_id == int(CALLERS_TRACE, 16)


@pytest.mark.parametrize("alias", ["", "00", "x" * 32, "0" * 32])
def test_an_alias_that_is_no_trace_id_is_ignored(alias: str) -> None:
    (queue,) = spans_of({"span": table("span", [QUEUE]), "alias": table("alias", [ALIAS | {"alias": alias}])})
    assert queue.context.trace_id == own_trace(A)


def test_the_caller_is_above_the_front_end_that_above_the_scheduler_and_that_above_the_rest() -> None:
    spans = spans_of()
    front = of(spans, "kv.request", **{"kvtrace.observer": "api"})
    scheduler = next(
        s for s in spans if s.name == "kv.request" and s.context.span_id == request_span(A, "scheduler")
    )
    assert front.parent.span_id == CALLERS_SPAN
    assert scheduler.parent.span_id == front.context.span_id
    for name in ("kv.queue", "kv.lookup", "kv.load"):
        assert of(spans, name).parent.span_id == scheduler.context.span_id


def test_without_a_front_end_the_schedulers_view_of_a_request_is_the_top() -> None:
    row = SCHEDULER | {"op": "request", "request_id": A, "span_id": 1, "start_ns": T0, "end_ns": T0 + 1}
    (span,) = spans_of({"span": table("span", [row])})
    assert span.parent is None


def test_a_step_is_a_trace_of_its_own_with_links_to_the_requests_of_its_members() -> None:
    spans = spans_of()
    step = of(spans, "kv.step")
    assert step.parent is None
    assert [(link.context.trace_id, link.context.span_id) for link in step.links] == [
        (int(CALLERS_TRACE, 16), request_span(A, "scheduler")),
        (own_trace(B), request_span(B, "scheduler")),
    ]
    assert step.context.trace_id not in {span.context.trace_id for span in spans if span is not step}


def test_a_wait_inside_a_step_is_in_the_steps_trace() -> None:
    rows = [
        SCHEDULER | {"op": "step", "span_id": 7, "start_ns": T0, "end_ns": T0 + 9},
        SCHEDULER | {"op": "wait", "span_id": 8, "parent_span_id": 7, "start_ns": T0, "end_ns": T0 + 5},
    ]
    step, wait = spans_of({"span": table("span", rows)})
    assert (wait.context.trace_id, wait.parent.span_id) == (step.context.trace_id, step.context.span_id)


def test_what_failed_is_an_error_and_what_arrives_is_a_server_span() -> None:
    spans = spans_of()
    assert of(spans, "kv.load").status.status_code is StatusCode.ERROR
    assert of(spans, "kv.queue").status.status_code is StatusCode.UNSET
    kinds = {span.kind for span in spans if span.name == "kv.request"}
    assert kinds == {SpanKind.SERVER, SpanKind.INTERNAL}


def test_the_resource_names_the_process_and_its_engine_beside_what_the_variables_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-engine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    row = API | {"op": "request", "request_id": A, "span_id": 1, "start_ns": T0, "end_ns": T0 + 1}
    (span,) = spans_of({"span": table("span", [row])})
    said = span.resource.attributes
    assert said["service.name"] == "my-engine"
    assert said["deployment.environment"] == "test"
    assert said["service.instance.id"] == said["kvtrace.process"] == "host-a/10"
    assert said["kvtrace.engine"] == "vllm-0"


def test_no_global_tracer_provider_is_set() -> None:
    spans_of()
    assert type(trace.get_tracer_provider()).__name__ == "ProxyTracerProvider"
