"""OTLP protobuf: text of values, ids, and what is not read by the fast path."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.sources.otlp import protobuf
from kvtrace.sources.stream import Undecodable
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link, Status, StatusCode

if TYPE_CHECKING:
    from kvtrace.sources.otlp.batch import SpanBatch

TWO = ArrayValue(values=[AnyValue(string_value="a"), AnyValue(int_value=1)])


def payload(*spans: Span) -> bytes:
    message = TracesData()
    message.resource_spans.add().scope_spans.add().spans.extend(spans)
    return message.SerializeToString()


def texts(found: SpanBatch) -> list[tuple[str, str]]:
    return list(zip(found.attributes["key"].to_pylist(), found.attributes["value"].to_pylist(), strict=True))


def refuse(*_args: Any, **_kwargs: Any) -> SpanBatch:
    raise AssertionError("the loop was taken")


@pytest.fixture(params=["vectorised", "loop"])
def decode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Both decoders; the vectorised one may not hide behind the loop."""
    if request.param == "loop":
        return protobuf.decode_with_loop
    monkeypatch.setattr(protobuf, "decode_with_loop", refuse)
    return protobuf.decode


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (AnyValue(string_value=""), ""),
        (AnyValue(int_value=0), "0"),
        (AnyValue(int_value=-(2**63)), "-9223372036854775808"),
        (AnyValue(bool_value=False), "false"),
        (AnyValue(double_value=0.0), "0.0"),
        (AnyValue(double_value=-0.0), "-0.0"),
        (AnyValue(double_value=0.1), "0.1"),
        (AnyValue(double_value=1e10), "10000000000.0"),
        (AnyValue(double_value=5e-5), "5e-05"),
        (AnyValue(double_value=float("inf")), "inf"),
        (AnyValue(double_value=float("nan")), "nan"),
        (AnyValue(bytes_value=b"\xfb\xff"), "+/8="),
        (AnyValue(array_value=ArrayValue()), "[]"),
        (AnyValue(array_value=TWO), '["a",1]'),
    ],
)  # fmt: skip
def test_a_value_becomes_its_text(decode: Any, value: AnyValue, expected: str) -> None:
    span = Span()
    span.attributes.add(key="before").value.int_value = 1
    span.attributes.add(key="k").value.CopyFrom(value)
    span.attributes.add(key="missing")
    span.attributes.add(key="empty").value.SetInParent()
    assert texts(decode([payload(span)])) == [("before", "1"), ("k", expected)]


def test_ids_are_hex_text_and_numbers_and_absent_ones_are_empty_or_null(decode: Any) -> None:
    found = decode(
        [
            payload(
                Span(trace_id=bytes(range(16)), span_id=b"\x80" + bytes(7), parent_span_id=b"\0" * 8),
                Span(trace_id=b"\0" * 16),
                Span(trace_id=b"\1" * 8, span_id=b"\1" * 8),
            )
        ]
    )
    assert found.spans["trace_id"].to_pylist() == [bytes(range(16)).hex(), "", "0" * 16 + "01" * 8]
    assert found.spans["span_id"].to_pylist() == [1 << 63, None, 0x0101010101010101]
    assert found.spans["parent_span_id"].to_pylist() == [None, None, None]
    assert found.undecodable == ()


def test_ids_of_impossible_length_are_counted(decode: Any) -> None:
    found = decode([payload(Span(trace_id=b"abc", span_id=b"12345678"))])
    assert found.spans["trace_id"].to_pylist() == [""]
    assert found.undecodable == (Undecodable("ids of impossible length, read as absent", 1),)


def test_rows_point_to_their_own_resource_and_scope(decode: Any) -> None:
    message = TracesData()
    for number in range(3):
        group = message.resource_spans.add()
        group.resource.attributes.add(key="n").value.int_value = number
        for scope_number in range(number):
            scope = group.scope_spans.add(spans=[Span(name="s")] * scope_number)
            scope.scope.name = f"{number}.{scope_number}"
    found = decode([message.SerializeToString(), message.SerializeToString()])
    assert found.resources == ({"n": "0"}, {"n": "1"}, {"n": "2"}) * 2
    assert found.spans["resource"].to_pylist() == [2, 5]
    assert found.spans["scope"].to_pylist() == ["2.1", "2.1"]


@pytest.mark.parametrize(
    "corrupt", [b"\xff", payload(Span(name="abc"))[:-1], b"\x0a\xf0\xff\xff\xff\xff\xff\xff\xff\xff\x01"]
)
def test_a_corrupt_payload_is_counted_and_its_neighbours_decode(decode: Any, corrupt: bytes) -> None:
    found = decode([payload(Span(name="a")), corrupt, payload(Span(name="b"))])
    assert found.spans["name"].to_pylist() == ["a", "b"]
    assert found.undecodable == (Undecodable("no OTLP protobuf: corrupt or cut", 1),)


def test_nothing_decodes_to_empty_tables(decode: Any) -> None:
    for payloads in ([], [b""], [payload()]):
        found = decode(payloads)
        assert (found.spans.num_rows, found.attributes.num_rows, found.undecodable) == (0, 0, ())


def test_content_is_dropped_and_counted_unless_kept(decode: Any) -> None:
    span = Span(events=[Span.Event(name="gen_ai.choice"), Span.Event(name="e", time_unix_nano=3)])
    span.attributes.add(key="prompt").value.string_value = "secret"
    span.attributes.add(key="ok").value.string_value = "fine"
    found = decode([payload(span)])
    assert texts(found) == [("ok", "fine"), ("event.e.time_unix_nano", "3")]
    assert found.content == {"prompt": 1, "gen_ai.choice": 1}
    kept = decode([payload(span)], keep_content=True)
    assert ("prompt", "secret") in texts(kept)
    assert kept.content == {}


def test_what_the_python_sdk_exports_is_read_completely(decode: Any) -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "vllm", "host.cpus": [1, 2]}))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("lib")
    with tracer.start_as_current_span(
        "outer", attributes={"i": 1, "f": 0.5, "b": True, "l": ["a", "b"]}
    ) as outer:
        outer.add_event("first", {"n": 1}, timestamp=7)
        with tracer.start_as_current_span("inner", links=[Link(outer.get_span_context())]) as inner:
            inner.set_status(Status(StatusCode.ERROR, "broke"))
    found = decode([encode_spans(memory.get_finished_spans()).SerializeToString()])
    rows = {row["name"]: row for row in found.spans.to_pylist()}
    assert rows["inner"]["parent_span_id"] == rows["outer"]["span_id"] == outer.get_span_context().span_id
    assert rows["inner"]["trace_id"] == f"{outer.get_span_context().trace_id:032x}"
    assert (rows["inner"]["status_code"], rows["outer"]["status_code"]) == (2, 0)
    assert rows["outer"]["scope"] == "lib"
    assert rows["outer"]["start_ns"] == outer.start_time  # type: ignore[attr-defined]
    link = f'["{outer.get_span_context().trace_id:032x}:{outer.get_span_context().span_id:016x}"]'
    assert dict(texts(found)) == {
        "i": "1", "f": "0.5", "b": "true", "l": '["a","b"]', "event.first.time_unix_nano": "7",
        "event.first.n": "1", "otel.status_message": "broke", "otel.links": link,
    }  # fmt: skip
    assert found.resources[0]["service.name"] == "vllm"
    assert found.resources[0]["host.cpus"] == "[1,2]"


def test_without_ptars_the_loop_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protobuf, "_handler", lambda: None)
    assert protobuf.decode([payload(Span(name="a"))]).spans["name"].to_pylist() == ["a"]


def test_a_panic_of_ptars_sends_the_payloads_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    class Panicking:
        def list_to_record_batch(self, _payloads: list[bytes]) -> None:
            raise PanicException

    monkeypatch.setattr(protobuf, "_handler", Panicking)
    assert protobuf.decode([payload(Span(name="a"))]).spans["name"].to_pylist() == ["a"]


def test_an_interrupt_is_not_taken_for_a_panic(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def list_to_record_batch(self, _payloads: list[bytes]) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(protobuf, "_handler", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        protobuf.decode([payload(Span(name="a"))])
