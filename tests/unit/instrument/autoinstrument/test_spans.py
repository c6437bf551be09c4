"""Rows and scopes as spans of a program's own SDK, in this process."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import kvtrace
import pytest
from kvtrace import recorder
from kvtrace.instrument import scope
from kvtrace.instrument.autoinstrument import door
from kvtrace.instrument.autoinstrument.instrumentors import KvtraceInstrumentor
from kvtrace.recorder import shape
from kvtrace.schema.traces import own_trace, request_span
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import StatusCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

MS = 1_000_000


class Sent:
    """What a program's provider exported."""

    def __init__(self, provider: TracerProvider) -> None:
        self.provider = provider
        self.exporter = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def one(self) -> tuple[ReadableSpan, dict[str, Any]]:
        (span,) = self.spans()
        return span, dict(span.attributes or {})


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of other tests: no recording, no door that is open or refused."""
    monkeypatch.delenv("KVTRACE_OUT", raising=False)
    monkeypatch.setattr(door, "_refused", False)
    monkeypatch.setattr(recorder, "_recordings", {})
    monkeypatch.setattr(recorder, "_local", recorder.Local())
    yield
    door.refuse()


@pytest.fixture
def sent(own: None) -> Iterator[Sent]:  # noqa: ARG001
    made = Sent(TracerProvider(shutdown_on_exit=False))
    instrumentor = KvtraceInstrumentor()
    instrumentor.instrument(tracer_provider=made.provider)
    yield made
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


@kvtrace.transfer(op="load", tier_from="disk", tier_to="host")
def fetch(tokens: int) -> dict[str, int]:
    return {"bytes": tokens * 64}


def test_a_row_of_the_recorder_is_a_span_with_every_column_under_its_name(sent: Sent) -> None:
    columns = ("start_ns", "end_ns", "submit_ns", "request_id", "tokens", "bytes", "found_by_tier.host",
               "attributes.engine_id")  # fmt: skip
    row = shape("span", columns, op="lookup", observer="server", component="lmcache.l1", evidence="native")
    now = recorder.now()
    before_ns = time.time_ns() - recorder.now()
    recorder.record((row, now, now + 5 * MS, now - MS, "r1", 64, None, 32, "7"))
    span, said = sent.one()
    assert span.name == "kv.lookup"
    assert span.start_time is not None
    assert span.end_time == span.start_time + 5 * MS
    assert abs(span.start_time - now - before_ns) < 1_000 * MS
    assert said == {
        "kvtrace.op": "lookup", "kvtrace.observer": "server", "kvtrace.component": "lmcache.l1",
        "kvtrace.evidence": "native", "kvtrace.submit_ns": span.start_time - MS, "kvtrace.request.id": "r1",
        "kvtrace.tokens": 64, "kvtrace.found_tokens.host": 32, "engine_id": "7",
    }  # fmt: skip


def test_a_row_of_a_request_without_a_span_around_it_is_in_the_requests_trace(sent: Sent) -> None:
    row = shape("span", ("start_ns", "end_ns", "request_id"), op="load")
    recorder.record((row, 1, 2, "r1"))
    span, _ = sent.one()
    assert span.context is not None
    assert span.parent is not None
    assert (span.context.trace_id, span.parent.span_id) == (own_trace("r1"), request_span("r1", "scheduler"))


def test_such_a_trace_is_sampled_as_the_programs_sampler_says(own: None) -> None:  # noqa: ARG001
    sent = Sent(TracerProvider(sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False))
    instrumentor = KvtraceInstrumentor()
    instrumentor.instrument(tracer_provider=sent.provider)
    recorder.record((shape("span", ("start_ns", "end_ns", "request_id"), op="load"), 1, 2, "r1"))
    fetch(1)
    instrumentor.uninstrument()
    assert sent.spans() == []


def test_members_are_arrays(sent: Sent) -> None:
    row = shape("span", ("start_ns", "end_ns", "members"), op="step")
    nothing = (None, None)
    recorder.record((row, 1, 2, (("a", "b"), nothing, (3, None), nothing, nothing)))
    _, said = sent.one()
    assert said["kvtrace.step.request_ids"] == ("a", "b")
    assert said["kvtrace.step.tokens"] == (3, None)
    assert "kvtrace.step.phases" not in said


def test_parts_of_an_operation_are_one_span_when_it_has_ended(sent: Sent) -> None:
    begun = shape("span", ("span_id", "start_ns", "bytes"), part="open", op="load")
    ended = shape("span", ("span_id", "end_ns", "bytes", "outcome"), part="close")
    recorder.record((begun, 7, 10, 1))
    recorder.record((begun, 8, 20, 2))
    assert sent.spans() == []
    recorder.record((ended, 7, 90, 4096, "ok"))
    span, said = sent.one()
    assert (said["kvtrace.bytes"], said["kvtrace.outcome"]) == (4096, "ok")
    assert (span.end_time or 0) - (span.start_time or 0) == 80


def test_what_is_no_operation_or_has_not_ended_is_no_span(sent: Sent) -> None:
    recorder.record((shape("block", ("time_ns", "key"), event="stored"), 1, "k"))
    recorder.record((shape("span", ("start_ns", "end_ns"), name="mp.request"), 1, 2))
    recorder.record((shape("span", ("start_ns",), op="load", outcome="open"), 1))
    assert sent.spans() == []
    recorder.record((shape("span", ("start_ns", "reason"), op="drop"), 1, "duplicate"))
    span, _ = sent.one()
    assert span.end_time == span.start_time


def test_a_scope_is_a_child_of_the_programs_span_and_calls_are_children_of_it(sent: Sent) -> None:
    tracer = sent.provider.get_tracer("program")
    with tracer.start_as_current_span("handle"), kvtrace.request("r1"):
        fetch(2)
    call, around, program = sent.spans()
    assert (call.name, around.name, program.name) == ("kv.load", "kvtrace.request", "handle")
    assert [span.parent and span.parent.span_id for span in (call, around)] == [
        around.context and around.context.span_id, program.context and program.context.span_id,
    ]  # fmt: skip
    assert (call.attributes or {})["kvtrace.request.id"] == "r1"


def test_what_others_instrument_inside_a_call_is_its_child(sent: Sent) -> None:
    @kvtrace.transfer(op="load", tier_from="object", tier_to="host")
    async def get(name: str) -> None:
        await asyncio.sleep(0)
        with sent.provider.get_tracer("http").start_as_current_span(name):
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(get("a"), get("b"))

    asyncio.run(both())
    calls = {span.context.span_id for span in sent.spans() if span.name == "kv.load" and span.context}
    parents = {span.parent.span_id for span in sent.spans() if span.name in ("a", "b") and span.parent}
    assert len(calls) == 2
    assert parents == calls
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_a_row_written_by_another_thread_is_a_child_of_its_scopes_span(sent: Sent) -> None:
    """As the reaper of torch_cuda writes copies: `scope.within` is where they were made."""
    made: list[scope.Scope | None] = []

    @kvtrace.transfer(op="load", tier_from="disk", tier_to="host")
    def push() -> None:
        made.append(scope.current())

    push()
    scope.within(
        made[0], recorder.record, (shape("span", ("start_ns", "end_ns"), op="load", clock="gpu"), 1, 2)
    )
    call, copy = sent.spans()
    assert copy.parent is not None
    assert call.context is not None
    assert copy.parent.span_id == call.context.span_id


def test_a_scope_that_raises_is_an_error_without_its_text(sent: Sent) -> None:
    with pytest.raises(ValueError, match="prompt"), kvtrace.request("r1"):
        raise ValueError("prompt")
    span, _ = sent.one()
    assert (span.status.status_code, span.status.description, span.events) == (StatusCode.ERROR, None, ())


def test_an_sdk_that_raises_is_no_trouble_of_the_programs(
    sent: Sent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError

    assert door._spans is not None
    monkeypatch.setattr(door._spans.tracer, "start_span", fail)
    with kvtrace.request("r1"):
        assert fetch(2) == {"bytes": 128}
    assert sent.spans() == []
    assert door._spans.lost > 0
    assert len(caplog.records) == 1


def test_uninstrumented_a_program_makes_no_spans(sent: Sent) -> None:
    KvtraceInstrumentor().uninstrument()
    assert not recorder.enabled()
    with kvtrace.request("r1"):
        fetch(2)
    assert sent.spans() == []


def test_with_a_recording_no_span_is_made(
    own: None,  # noqa: ARG001
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Any,
) -> None:
    monkeypatch.setenv("KVTRACE_OUT", str(tmp_path))
    made = Sent(TracerProvider(shutdown_on_exit=False))
    instrumentor = KvtraceInstrumentor()
    instrumentor.instrument(tracer_provider=made.provider)
    with kvtrace.request("r1"):
        fetch(2)
    recorder.close()
    instrumentor.uninstrument()
    assert made.spans() == []
    assert len(list((tmp_path / "spool").iterdir())) == 1
