"""OTLP protobuf, vectorised: upb says whether a payload is sound, ptars turns it into Arrow, numpy pivots.

    payloads ──► spans, their attributes still bytes ──► spans
                                      └──► each different attribute once, as if of one span ──► attributes

Spans repeat most of their attributes, name and value, so both look at the bytes of an attribute only once.

ptars alone is not safe on hostile bytes (it panics on lengths near 2^64 and accepts what upb calls
corrupt), so upb sees everything first. ptars gets a trimmed descriptor:

* what upb would write in another length than it came (a field that OTLP has once and that arrives twice,
  a default written out) is read right by the loop alone, and goes there;
* what is recursive or rare (arrays, maps, events, links, resources) is declared as bytes and decoded by
  the official classes, row by row, only where it occurs.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pa_compute
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2
from opentelemetry.proto.trace.v1.trace_pb2 import Span, TracesData

from kvtrace.sources.otlp import batch, ids, protobuf_texts, values
from kvtrace.sources.otlp import protobuf_loop as loop
from kvtrace.sources.otlp.protobuf_loop import decode_with_loop
from kvtrace.sources.otlp.protobuf_texts import OddError

if TYPE_CHECKING:
    from collections.abc import Sequence

ptars: Any
try:
    ptars = importlib.import_module("ptars")
except ImportError:  # no wheel for this platform: the loop does the same, slower
    ptars = None

__all__ = ["decode", "decode_with_loop", "opaque"]

pc: Any = pa_compute  # the stubs type every combination of scalar and array, but not these

_TRIMMED = """
AnyValue string_value 1 string | bool_value 2 bool | int_value 3 int64 | double_value 4 double \
| array_value 5 bytes | kvlist_value 6 bytes | bytes_value 7 bytes
KeyValue key 1 string | value 2 AnyValue
Status message 2 string | code 3 int32
Span trace_id 1 bytes | span_id 2 bytes | parent_span_id 4 bytes | name 5 string | start 7 fixed64 \
| end 8 fixed64 | attributes 9 bytes* | events 11 bytes* | links 13 bytes* | status 15 Status
Scope name 1 string
ScopeSpans scope 1 Scope | spans 2 Span*
ResourceSpans resource 1 bytes | scope_spans 2 ScopeSpans*
Traces resource_spans 1 ResourceSpans*
AttributedSpan attributes 9 KeyValue*
AttributedScope spans 2 AttributedSpan*
AttributedGroup scope_spans 2 AttributedScope*
Attributed resource_spans 1 AttributedGroup*
"""
"""The part of OTLP that is read: message, then name, number and type of its fields; * is repeated."""

_PACKAGE = "kvtrace.otlp.trimmed"


def decode(payloads: Sequence[bytes], *, keep_content: bool = False) -> batch.SpanBatch:
    """Decode payloads, each one ExportTraceServiceRequest (or TracesData, the same on the wire).

    A corrupt payload is counted in `undecodable`; the others decode.
    """
    handler = _handler()
    if handler is None:
        return decode_with_loop(payloads, keep_content=keep_content)
    sizes = [_written_size(opaque(), payload) for payload in payloads]
    sound = [payload for payload, size in zip(payloads, sizes, strict=True) if size is not None]
    if any(size not in (None, len(payload)) for payload, size in zip(payloads, sizes, strict=True)):
        return decode_with_loop(payloads, keep_content=keep_content)
    noted = batch.notes(keep_content=keep_content)
    noted.losses[loop.CORRUPT] += len(payloads) - len(sound)
    try:
        return _pivot(_arrow(handler, sound), noted)
    except (OddError, pa.ArrowException, ValueError):
        return decode_with_loop(payloads, keep_content=keep_content)


def _written_size(kind: Any, payload: bytes) -> int | None:
    """How long the payload is when upb writes it again; None when upb cannot read it."""
    try:
        size: int = kind.FromString(payload).ByteSize()
    except DecodeError:
        return None
    return size


@cache
def opaque() -> Any:
    """The official TracesData, but with a span's attributes as bytes that upb does not look into."""
    pool = descriptor_pool.DescriptorPool()
    for module in (common_pb2, resource_pb2, trace_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            for field in message.field:
                if (message.name, field.name) == ("Span", "attributes"):
                    field.type = field.TYPE_BYTES
                    field.ClearField("type_name")
        pool.Add(file)
    found = pool.FindMessageTypeByName(TracesData.DESCRIPTOR.full_name)
    return message_factory.GetMessageClass(found)


def _arrow(handler: Any, payloads: list[bytes]) -> batch.Column:
    """Run ptars; a Rust panic becomes a reason to take the loop.

    The panic is a BaseException and Rust has already printed it: redirecting the file descriptor would
    swallow what other threads print, and upb's check before keeps hostile bytes from getting here.
    """
    try:
        return handler.list_to_record_batch(payloads)
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise OddError from error
        raise


@cache
def _handler(message: str = "Traces") -> Any:
    """The ptars reader of a message of the trimmed descriptor, made once; None without ptars."""
    if ptars is None:
        return None
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="kvtrace/trimmed.proto", package=_PACKAGE, syntax="proto3")
    for line in _TRIMMED.strip().splitlines():
        name, fields = line.split(" ", 1)
        written = file.message_type.add(name=name)
        if name == "AnyValue":
            written.oneof_decl.add(name="member")  # a member of a oneof keeps its presence: 0 is not null
        for field in fields.split("|"):
            label, number, kind = field.split()
            entry = written.field.add(name=label, number=int(number))
            entry.label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            if kind[0].isupper():
                entry.type, entry.type_name = kinds.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                entry.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
            if name == "AnyValue":
                entry.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName(file.name)
    return ptars.HandlerPool([found]).get_for_message(found.message_types_by_name[message])


def _pivot(record: batch.Column, noted: batch.Notes) -> batch.SpanBatch:
    """From nested lists to flat columns: each level's lengths say which parent a row belongs to."""
    groups = record.column("resource_spans").flatten()
    scopes = groups.field("scope_spans").flatten()
    spans = scopes.field("spans").flatten()
    _resources(groups.field("resource"), noted)
    scope_of_span = np.repeat(np.arange(len(scopes)), _lengths(scopes.field("spans")))
    group_of_scope = np.repeat(np.arange(len(groups), dtype=np.int32), _lengths(groups.field("scope_spans")))
    scope = _once(scopes.field("scope"), "name", "").dictionary_encode().take(pa.array(scope_of_span))
    code = _once(spans.field("status"), "code", 0)
    code = pc.if_else(pc.is_in(code, pa.array([0, 1, 2], pa.int32())), code, pa.scalar(0, pa.int32()))
    traces = ids.from_binary(spans.field("trace_id"), ids.TRACE_BYTES)
    numbers, parents = (
        ids.from_binary(spans.field(f), ids.SPAN_BYTES) for f in ("span_id", "parent_span_id")
    )
    group = pa.array(group_of_scope[scope_of_span])
    rest = [spans.field("name"), spans.field("start"), spans.field("end"), code, scope, group]
    table = batch.span_table(traces, numbers, parents, rest, noted)
    own = _attributes(spans.field("attributes"), noted.gate)
    return batch.assemble(table, own, _extras(spans, noted.gate), noted)


def _lengths(lists: batch.Column) -> ids.Matrix:
    """Length of each list."""
    lengths: ids.Matrix = lists.value_lengths().to_numpy()
    return lengths


def _once(messages: batch.Column, field: str, default: object) -> batch.Column:
    """A field of a message that a row may have; its default where it has none."""
    return pc.struct_field(messages, field).fill_null(default)


def _resources(found: batch.Column, noted: batch.Notes) -> None:
    """Decode resources: few, so the official class does it."""
    for raw in found.to_pylist():
        attributes = loop.pairs(Resource.FromString(raw or b"").attributes, noted.gate)
        noted.resources.append(values.resource(attributes, noted.gate))


def _attributes(lists: batch.Column, gate: batch.Gate) -> batch.Attributes:
    """Span row, name and text of every attribute."""
    rows = np.repeat(np.arange(len(lists), dtype=np.int32), _lengths(lists))
    encoded = lists.flatten().dictionary_encode()
    payload = _as_one_span(encoded.dictionary)
    if _written_size(TracesData, payload) != len(payload):
        raise OddError
    groups = _arrow(_handler("Attributed"), [payload]).column("resource_spans").flatten()
    entries = groups.field("scope_spans").flatten().field("spans").flatten().field("attributes").flatten()
    keys = entries.field("key").dictionary_encode()
    times = np.bincount(encoded.indices.to_numpy(), minlength=len(entries))
    texts = protobuf_texts.texts(entries.field("value"), times, gate).dictionary_encode()
    return batch.Attributes(rows, batch.for_each(encoded, keys), batch.for_each(encoded, texts))


def _as_one_span(attributes: batch.Column) -> bytes:
    """A payload of one span that has all these attributes."""
    lengths = pc.binary_length(attributes).dictionary_encode()
    heads = [b"\x4a" + _varint(length) for length in lengths.dictionary.to_pylist()]
    head = pa.array(heads, pa.binary()).take(lengths.indices)
    framed = pc.binary_join_element_wise(head, attributes, pa.scalar(b"", pa.binary()))
    _, offsets, data = framed.buffers()
    ends = np.frombuffer(offsets, np.int32)[[0, len(framed)]] if len(framed) else (0, 0)
    payload = data[ends[0] : ends[1]].to_pybytes() if data is not None else b""
    for field in (b"\x12", b"\x12", b"\x0a"):  # spans, scope_spans, resource_spans
        payload = field + _varint(len(payload)) + payload
    return payload


def _varint(number: int) -> bytes:
    """A length as protobuf writes it: seven bits a byte, the lowest first."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _extras(spans: batch.Column, gate: batch.Gate) -> batch.Extras:
    """Status messages, events and links of the spans that have any."""
    found = batch.Extras([], [], [])
    message = _once(spans.field("status"), "message", "")
    events, links = spans.field("events"), spans.field("links")
    has = (_lengths(events) > 0) | (_lengths(links) > 0)
    has |= pc.not_equal(message, "").to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(has)
    where = pa.array(rows)
    columns = (message.take(where).to_pylist(), events.take(where).to_pylist(), links.take(where).to_pylist())
    with loop.collector_paused():
        for row, said, raw_events, raw_links in zip(rows.tolist(), *columns, strict=True):
            parsed = (loop.event(Span.Event.FromString(raw), gate) for raw in raw_events)
            linked = (loop.link(Span.Link.FromString(raw)) for raw in raw_links)
            found.add(row, values.extras(said, parsed, linked, gate))
    return found
