"""What is said of an export before it is taken: as the decoders will say, at a fraction of the price."""

from __future__ import annotations

import tracemalloc

import pytest
from google.protobuf.json_format import MessageToJson
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrace.sources.dialects import to_words
from kvtrace.sources.otlp import json_lines, protobuf
from kvtrace.sources.otlp.judging import judged
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TIMES = st.tuples(*[st.sampled_from([0, 1, 5, 2**63 - 1, 2**63, 2**64 - 1])] * 2)


@settings(max_examples=60, deadline=None)
@given(st.lists(TIMES, max_size=6), st.sampled_from(["text", "protobuf"]))
def test_as_many_spans_are_impossible_as_are_set_aside_later(
    times: list[tuple[int, int]], written: str
) -> None:
    is_text = written == "text"
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for start, end in times:
        spans.add(start_time_unix_nano=start, end_time_unix_nano=end)
    body = MessageToJson(request).encode() if is_text else request.SerializeToString()
    batch = json_lines.decode([body]) if is_text else protobuf.decode([body])
    lost = sum(loss.count for loss in to_words(batch, "x").losses) if batch.spans.num_rows else 0
    found = judged(body, text=is_text)
    assert (found.records, found.impossible, found.mistake) == (len(times), lost, None)


def nested(content: bytes, *fields: bytes) -> bytes:
    """Content inside of messages, the outermost field last."""
    for field in fields:
        content = field + protobuf._varint(len(content)) + content
    return content


@pytest.mark.parametrize(
    "content", [b"\x12\x00" * 4_000_000, nested(b"\x5a\x00" * 4_000_000, b"\x12")], ids=["spans", "events"]
)
def test_a_body_of_empty_messages_is_told_before_it_takes_its_memory(content: bytes) -> None:
    body = nested(content, b"\x12", b"\x0a")
    tracemalloc.start()
    try:
        found = judged(body, text=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.mistake == "a body of nothing but empty messages"
    assert peak < 1 << 20


def test_a_text_of_empty_messages_is_told_as_well() -> None:
    body = b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + b",".join([b"{}"] * 600_000) + b"]}]}]}"
    assert judged(body, text=True).mistake == "a body of nothing but empty messages"


def test_a_large_export_of_real_spans_is_no_bomb() -> None:
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for number in range(40_000):
        span = spans.add(span_id=number.to_bytes(8, "big"), start_time_unix_nano=1, end_time_unix_nano=2)
        span.attributes.add(key="kvtrace.op").value.string_value = "load"
    body = request.SerializeToString()
    assert len(body) > 1 << 20
    assert judged(body, text=False).records == 40_000
