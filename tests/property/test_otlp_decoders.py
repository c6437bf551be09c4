"""Laws of the OTLP decoders: fast = loop, JSON = protobuf, and hostile bytes cost only themselves."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kvtrace.sources.otlp import json_lines, protobuf, protobuf_loop
from kvtrace.sources.otlp.protobuf import decode_with_loop
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status, TracesData

if TYPE_CHECKING:
    import pytest
    from kvtrace.sources.otlp.batch import SpanBatch

NAMES = st.sampled_from(
    ["kvtrace.op", "gen_ai.prompt", "token_ids", "a", "", "ключ", "event.x", "gen_ai.prompt.0.content"]
)
EVENTS = st.sampled_from(["SPAN_FIRST_ENTRY", "gen_ai.choice", "exception", ""])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
UINT64 = st.integers(0, 2**64 - 1)
SCALARS = st.one_of(
    st.builds(AnyValue, string_value=TEXTS),
    st.builds(AnyValue, int_value=st.integers(-(2**63), 2**63 - 1)),
    st.builds(AnyValue, double_value=st.floats() | st.integers(-(10**17), 10**17).map(float)),
    st.builds(AnyValue, bool_value=st.booleans()),
    st.builds(AnyValue, bytes_value=st.binary(max_size=5)),
    st.just(AnyValue()),
)


def _array(values: list[AnyValue]) -> AnyValue:
    found = AnyValue()
    found.array_value.SetInParent()
    found.array_value.values.extend(values)
    return found


def _map(pairs: list[KeyValue]) -> AnyValue:
    found = AnyValue()
    found.kvlist_value.SetInParent()
    found.kvlist_value.values.extend(pairs)
    return found


def _pair(key: str, value: AnyValue | None) -> KeyValue:
    return KeyValue(key=key, value=value)


VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(_array)
        | st.lists(st.builds(_pair, NAMES, inner), max_size=3).map(_map)
    ),
    max_leaves=5,
)
PAIRS = st.lists(st.builds(_pair, NAMES, VALUES | st.none()), max_size=4)


def spans(trace_ids: st.SearchStrategy[bytes], span_ids: st.SearchStrategy[bytes]) -> st.SearchStrategy[Span]:
    return st.builds(
        Span,
        trace_id=trace_ids,
        span_id=span_ids,
        parent_span_id=span_ids | st.just(b""),
        name=TEXTS,
        kind=st.integers(0, 5),
        start_time_unix_nano=UINT64,
        end_time_unix_nano=UINT64,
        attributes=PAIRS,
        events=st.lists(
            st.builds(Span.Event, name=EVENTS, time_unix_nano=UINT64, attributes=PAIRS), max_size=3
        ),
        links=st.lists(st.builds(Span.Link, trace_id=trace_ids, span_id=span_ids), max_size=2),
        status=st.none() | st.builds(Status, code=st.integers(0, 2), message=TEXTS),
    )


def traces(span: st.SearchStrategy[Span]) -> st.SearchStrategy[TracesData]:
    def group(pairs: list[KeyValue] | None, scopes: list[ScopeSpans]) -> ResourceSpans:
        found = ResourceSpans(scope_spans=scopes)
        if pairs is not None:
            found.resource.attributes.extend(pairs)
        return found

    def scope(name: str | None, held: list[Span]) -> ScopeSpans:
        found = ScopeSpans(spans=held)
        if name is not None:
            found.scope.name = name
        return found

    scopes = st.builds(scope, st.none() | TEXTS, st.lists(span, max_size=3))
    groups = st.builds(group, st.none() | PAIRS, st.lists(scopes, max_size=3))
    return st.builds(TracesData, resource_spans=st.lists(groups, max_size=3))


GOOD_SPANS = spans(st.binary(min_size=16, max_size=16), st.binary(min_size=8, max_size=8))
ODD_SPANS = spans(st.binary(max_size=17), st.binary(max_size=9))


def everything(found: SpanBatch) -> dict[str, Any]:
    """All of a batch, comparable; the schemas have to be the same as well."""
    return {
        "schemas": (found.spans.schema, found.attributes.schema),
        "spans": found.spans.to_pylist(),
        "attributes": found.attributes.to_pylist(),
        "resources": found.resources,
        "undecodable": found.undecodable,
        "content": dict(found.content),
    }


@given(st.lists(traces(GOOD_SPANS | ODD_SPANS), max_size=3), st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_vectorised_decoder_equals_the_loop(messages: list[TracesData], keep: bool) -> None:  # noqa: FBT001
    payloads = [message.SerializeToString() for message in messages]
    fast = protobuf.decode(payloads, keep_content=keep)
    assert everything(fast) == everything(decode_with_loop(payloads, keep_content=keep))


@given(st.lists(traces(GOOD_SPANS | ODD_SPANS), max_size=3))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_sound_payloads_never_need_the_loop(
    monkeypatch: pytest.MonkeyPatch, messages: list[TracesData]
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> SpanBatch:
        raise AssertionError("the vectorised path gave up")

    monkeypatch.setattr(protobuf, "decode_with_loop", refuse)
    found = protobuf.decode([message.SerializeToString() for message in messages])
    expected = sum(len(s.spans) for m in messages for g in m.resource_spans for s in g.scope_spans)
    assert found.spans.num_rows == expected


@given(st.lists(st.floats() | st.floats(1e-6, 1e18), max_size=20))
@settings(deadline=None)
def test_doubles_are_written_as_python_writes_them(numbers: list[float]) -> None:
    message = TracesData()
    span = message.resource_spans.add().scope_spans.add().spans.add()
    for number in numbers:
        span.attributes.add(key="x").value.double_value = number
    found = protobuf.decode([message.SerializeToString()])
    assert found.attributes["value"].to_pylist() == [repr(number) for number in numbers]


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """A real payload, then cut, overwritten, doubled or spliced."""
    payload = bytearray(draw(traces(GOOD_SPANS)).SerializeToString())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(payload)))
        how = draw(st.sampled_from(["cut", "byte", "insert", "double", "length"]))
        if how == "cut":
            del payload[at:]
        elif how == "byte" and at < len(payload):
            payload[at] = draw(st.integers(0, 255))
        elif how == "insert":
            payload[at:at] = draw(st.binary(max_size=8))
        elif how == "length":  # near 2^64: ptars alone panics on it
            payload[at:at] = b"\xf0\xff\xff\xff\xff\xff\xff\xff\xff\x01"
        else:
            payload[at:at] = payload[at : at + draw(st.integers(0, 60))]
    return bytes(payload)


GOOD = TracesData()
_span = (
    GOOD.resource_spans.add().scope_spans.add().spans.add(name="good", trace_id=b"t" * 16, span_id=b"s" * 8)
)
_span.attributes.add(key="k").value.int_value = 7
GOOD_PAYLOAD = GOOD.SerializeToString()


def _twice(field: bytes, inner: bytes) -> bytes:
    """A span whose field arrives twice."""
    span = (field + bytes([len(inner)]) + inner) * 2
    scope = b"\x12" + bytes([len(span)]) + span
    group = b"\x12" + bytes([len(scope)]) + scope
    return b"\x0a" + bytes([len(group)]) + group


@given(hostile() | st.binary(max_size=60))
@example(_twice(b"\x7a", b"\x12\x01m\x18\x02"))  # status twice: merged
@example(_twice(b"\x4a", b"\x0a\x01k\x12\x02\x18\x01\x12\x03\x0a\x01v"))  # value twice: int, then string
@example(_twice(b"\x4a", b"\x0a\x01k\x12\x05\x18\x01\x0a\x01v"))  # two members of a oneof: the last wins
@example(_twice(b"\x4a", b"\x0a\x01k\x12\x04\x2a\x00\x2a\x00"))  # an array twice: concatenated
@example(_twice(b"\x2a", b"\x6e"))  # a scalar twice: the last wins
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_hostile_protobuf_equals_the_loop_and_loses_no_neighbour(payload: bytes) -> None:
    payloads = [GOOD_PAYLOAD, payload, GOOD_PAYLOAD]
    fast, slow = protobuf.decode(payloads), decode_with_loop(payloads)
    assert everything(fast) == everything(slow)
    names = fast.spans["name"].to_pylist()
    assert names[0] == names[-1] == "good"
    corrupt = sum(lost.count for lost in fast.undecodable if lost.detail == protobuf_loop.CORRUPT)
    assert corrupt == 0 or names == ["good", "good"]


@dataclass(frozen=True)
class Dialect:
    """How an exporter spells OTLP JSON."""

    base64_ids: bool
    upper_ids: bool
    snake: bool
    numbers_as_text: bool
    enum_names: bool
    library: bool  # instrumentationLibrarySpans, before OTLP 0.19
    nulls: bool
    array: bool
    indent: int | None

    def name(self, camel: str) -> str:
        if self.library:
            camel = {"scopeSpans": "instrumentationLibrarySpans", "scope": "instrumentationLibrary"}.get(
                camel, camel
            )
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in camel) if self.snake else camel

    def object(self, **fields: Any) -> dict[str, Any]:
        return {self.name(key): value for key, value in fields.items() if self.nulls or value is not None}

    def identifier(self, value: bytes) -> str | None:
        if not value:
            return None
        text = base64.b64encode(value).decode() if self.base64_ids else value.hex()
        return text.upper() if self.upper_ids and not self.base64_ids else text

    def number(self, value: int) -> int | str:
        return str(value) if self.numbers_as_text else value

    def value(self, value: AnyValue) -> dict[str, Any] | None:
        kind = value.WhichOneof("value")
        if kind is None:
            return None if self.nulls else {}
        held = getattr(value, kind)
        camel = {"kvlist_value": "kvlistValue"}.get(kind, kind.split("_")[0] + "Value")
        if kind == "int_value":
            held = self.number(held)
        elif kind == "double_value" and not math.isfinite(held):
            held = "NaN" if math.isnan(held) else "Infinity" if held > 0 else "-Infinity"
        elif kind == "double_value" and self.numbers_as_text:
            held = repr(held)
        elif kind == "bytes_value":
            held = base64.b64encode(held).decode()
        elif kind == "array_value":
            held = {"values": [self.value(item) for item in held.values]}
        elif kind == "kvlist_value":
            held = {"values": self.pairs(held.values)}
        return self.object(**{camel: held})

    def pairs(self, pairs: Any) -> list[dict[str, Any]]:
        return [
            self.object(key=p.key, value=self.value(p.value) if p.HasField("value") else None) for p in pairs
        ]

    def span(self, span: Span) -> dict[str, Any]:
        code: Any = ["STATUS_CODE_UNSET", "STATUS_CODE_OK", "STATUS_CODE_ERROR"][span.status.code]
        status = self.object(
            code=code if self.enum_names else span.status.code, message=span.status.message or None
        )
        return self.object(
            traceId=self.identifier(span.trace_id),
            spanId=self.identifier(span.span_id),
            parentSpanId=self.identifier(span.parent_span_id),
            name=span.name or None,
            kind="SPAN_KIND_SERVER" if self.enum_names else span.kind,
            startTimeUnixNano=self.number(span.start_time_unix_nano),
            endTimeUnixNano=self.number(span.end_time_unix_nano),
            attributes=self.pairs(span.attributes) or None,
            events=[
                self.object(
                    name=e.name,
                    timeUnixNano=self.number(e.time_unix_nano),
                    attributes=self.pairs(e.attributes),
                )
                for e in span.events
            ],
            links=[
                self.object(traceId=self.identifier(k.trace_id), spanId=self.identifier(k.span_id))
                for k in span.links
            ],
            status=status if span.HasField("status") else None,
        )

    def encode(self, message: TracesData) -> bytes:
        groups = [
            self.object(
                resource={"attributes": self.pairs(g.resource.attributes)}
                if g.HasField("resource")
                else None,
                scopeSpans=[
                    self.object(
                        scope={"name": s.scope.name} if s.HasField("scope") else None,
                        spans=[self.span(span) for span in s.spans],
                    )
                    for s in g.scope_spans
                ],
            )
            for g in message.resource_spans
        ]
        body = self.object(resourceSpans=groups)
        return json.dumps([body] if self.array else body, indent=self.indent, ensure_ascii=False).encode()


FLAG = st.booleans()
DIALECTS = st.builds(Dialect, FLAG, FLAG, FLAG, FLAG, FLAG, FLAG, FLAG, FLAG, st.sampled_from([None, 2]))


@given(traces(GOOD_SPANS), DIALECTS, FLAG)
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_json_of_any_dialect_equals_protobuf(message: TracesData, dialect: Dialect, keep: bool) -> None:  # noqa: FBT001
    binary = protobuf.decode([message.SerializeToString()], keep_content=keep)
    text = json_lines.decode([dialect.encode(message)], keep_content=keep)
    assert everything(text) == everything(binary)


GOOD_LINE = (
    b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"74747474747474747474747474747474",'
    b'"spanId":"7373737373737373","name":"good"}]}]}]}'
)


@st.composite
def broken_lines(draw: st.DrawFn) -> bytes:
    line = bytearray(draw(DIALECTS).encode(draw(traces(GOOD_SPANS))).replace(b"\n", b" "))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(line)))
        how = draw(st.sampled_from(["cut", "byte", "insert", "token"]))
        if how == "cut":
            del line[at:]
        elif how == "byte" and at < len(line):
            line[at] = draw(st.integers(0, 255))
        elif how == "insert":
            line[at:at] = draw(st.binary(max_size=5))
        else:
            line[at:at] = draw(
                st.sampled_from([b"null", b"[", b"]", b"{", b"}", b",", b'"', b"1e999", b"-1", b"[[]]"])
            )
    return bytes(line)


@given(
    broken_lines()
    | st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | TEXTS,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "resourceSpans",
                        "scopeSpans",
                        "spans",
                        "traceId",
                        "attributes",
                        "value",
                        "arrayValue",
                        "values",
                        "resource_spans",
                        "status",
                        "events",
                    ]
                ),
                inner,
                max_size=3,
            )
        ),
    ).map(lambda found: json.dumps(found).encode())
)
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_broken_json_never_raises_and_loses_no_neighbour(line: bytes) -> None:
    found = json_lines.decode([GOOD_LINE, line, GOOD_LINE])
    names = found.spans["name"].to_pylist()
    assert names[0] == names[-1] == "good"
    alone = json_lines.decode([line])
    assert names[1:-1] == alone.spans["name"].to_pylist()
    assert found.spans["resource"].to_pylist()[-1] == len(found.resources) - 1
