"""The shape of OTLP JSON: what is read of it, and how its older spellings are brought into the usual one.

Typed decoding with msgspec reads numbers as strings or as numbers, names or numbers of enums, and nulls.
What it would silently read as empty (snake_case, and `instrumentationLibrarySpans` from before OTLP 0.19)
is detected by what is missing and decoded a second time with its names replaced.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

import msgspec

from kvtrace.sources.otlp import batch, ids, values

_NOTHING = msgspec.Raw(b"null")
_ABSENT = msgspec.Raw(b"")


class Body(msgspec.Struct, gc=False, rename="camel"):
    """ExportTraceServiceRequest, or TracesData: the same."""

    resource_spans: list[ResourceSpans] | None = None


class ResourceSpans(msgspec.Struct, gc=False, rename="camel"):
    """Spans of one resource; scope_spans is None when it has another name."""

    resource: Resource | None = None
    scope_spans: list[ScopeSpans] | None = None


class Resource(msgspec.Struct, gc=False):
    """Who produced the spans."""

    attributes: list[KeyValue] | None = None


class ScopeSpans(msgspec.Struct, gc=False):
    """Spans of one instrumentation scope."""

    scope: Scope | None = None
    spans: list[Span] | None = None


class Scope(msgspec.Struct, gc=False):
    """The library that made the spans."""

    name: str | None = None


class Span(msgspec.Struct, gc=False, rename="camel"):
    """A span; `kind`, `flags` and dropped counts are not read, attributes by `json_attributes` alone."""

    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None
    name: str | None = None
    start_time_unix_nano: int | None = None
    end_time_unix_nano: int | None = None
    attributes: msgspec.Raw = _ABSENT
    status: Status | None = None
    events: list[Event] | None = None
    links: list[Link] | None = None


class Status(msgspec.Struct, gc=False):
    """How the span ended; the code is a number or a name."""

    code: int | str | None = None
    message: str | None = None


class Event(msgspec.Struct, gc=False, rename="camel"):
    """A point inside a span."""

    time_unix_nano: int | None = None
    name: str | None = None
    attributes: list[KeyValue] | None = None


class Link(msgspec.Struct, gc=False, rename="camel"):
    """A reference to another span."""

    trace_id: str | None = None
    span_id: str | None = None


class KeyValue(msgspec.Struct, gc=False):
    """One attribute."""

    key: str | None = None
    value: AnyValue | None = None


class AnyValue(msgspec.Struct, gc=False, rename="camel"):
    """A value: one of its members. Arrays and maps are rare and recursive: decoded when asked for."""

    string_value: str | int | float | None = None
    int_value: int | None = None
    double_value: float | None = None
    bool_value: bool | None = None
    array_value: msgspec.Raw = _NOTHING
    kvlist_value: msgspec.Raw = _NOTHING
    bytes_value: str | None = None


ONE = msgspec.json.Decoder(Body, strict=False)
MANY = msgspec.json.Decoder(list[Body], strict=False)
LIST = msgspec.json.Decoder(list[KeyValue] | None, strict=False)
SEPARATED = msgspec.json.Decoder(list[KeyValue | int], strict=False)
_ANYTHING = msgspec.json.Decoder()

_CAMEL = """
    resourceSpans scopeSpans traceId spanId parentSpanId startTimeUnixNano endTimeUnixNano timeUnixNano
    stringValue intValue doubleValue boolValue bytesValue arrayValue kvlistValue
""".split()  # noqa: SIM905 - words
_NAMES = {re.sub("([A-Z])", lambda match: "_" + match[1].lower(), name): name for name in _CAMEL} | {
    "instrumentationLibrarySpans": "scopeSpans",
    "instrumentation_library_spans": "scopeSpans",
    "instrumentationLibrary": "scope",
    "instrumentation_library": "scope",
}
"""Other spelling -> the usual one. OTLP has no object whose keys a user chooses, so this touches no data."""

_OTHER_SIGNALS = {"resourceMetrics", "resource_metrics", "resourceLogs", "resource_logs", "resourceProfiles"}


class NotOtlpError(ValueError):
    """Valid JSON that is no OTLP trace data; its text says what it is instead."""


def bodies(line: bytes) -> list[Body]:
    """Every body of one line: one object, or an array of them."""
    found = MANY.decode(line) if line[:1] == b"[" else [ONE.decode(line)]
    return found if all(map(_usual, found)) else _respelled(line)


def _usual(body: Body) -> bool:
    """Whether a body has the usual names: every span has a trace id, every level its list."""
    return body.resource_spans is not None and all(
        group.scope_spans is not None
        and all([span.trace_id for scope in group.scope_spans for span in scope.spans or ()])  # noqa: C419 - twice as fast
        for group in body.resource_spans
    )


def _respelled(line: bytes) -> list[Body]:
    """Decode with every known other spelling replaced."""
    raw = _rename(_ANYTHING.decode(line))
    for body in raw if isinstance(raw, list) else [raw]:
        if not isinstance(body, dict) or (body and "resourceSpans" not in body):
            other = isinstance(body, dict) and _OTHER_SIGNALS.intersection(body)
            raise NotOtlpError("OTLP, but no traces" if other else "valid JSON, but no resourceSpans in it")
    line = msgspec.json.encode(raw)
    return MANY.decode(line) if isinstance(raw, list) else [ONE.decode(line)]


def _rename(value: Any) -> Any:
    if isinstance(value, dict):
        return {_NAMES.get(key, key): _rename(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rename(item) for item in value]
    return value


def plain(value: AnyValue | None, gate: batch.Gate) -> values.Plain:
    """A value as Python has it; None when no member is set."""
    if value is None:
        return None
    if value.string_value is not None:
        return str(value.string_value)
    for member in (value.int_value, value.double_value, value.bool_value):
        if member is not None:
            return member
    if value.bytes_value is not None:
        return _bytes(value.bytes_value)
    for name, raw in (("arrayValue", value.array_value), ("kvlistValue", value.kvlist_value)):
        if (content := _ANYTHING.decode(raw)) is not None:
            return _nested({name: content}, gate)
    return None


def _nested(value: Any, gate: batch.Gate) -> values.Plain:
    """A value inside an array or a map, which msgspec has not typed."""
    for member, content in (value or {}).items():
        if content is None:
            continue
        if member == "arrayValue":
            return [_nested(item, gate) for item in content.get("values") or ()]
        if member == "kvlistValue":
            entries = content.get("values") or ()
            named = ((entry.get("key") or "", _nested(entry.get("value"), gate)) for entry in entries)
            return values.members(named, gate)
        if member == "bytesValue":
            return _bytes(content)
        kind = {"stringValue": str, "intValue": int, "doubleValue": float, "boolValue": bool}.get(member)
        if kind is not None:
            return str(content) if kind is str else msgspec.convert(content, kind, strict=False)
    return None


def _bytes(text: str) -> bytes:
    """Base64 in either alphabet, padded or not."""
    padded = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(padded + "=" * (-len(padded) % 4), validate=True)
    except binascii.Error as error:
        raise NotOtlpError("bytesValue is no base64") from error


def pairs(attributes: list[KeyValue] | None, gate: batch.Gate) -> list[tuple[str, values.Plain]]:
    """Names and values of attributes."""
    return [(item.key or "", plain(item.value, gate)) for item in attributes or ()]


def event(item: Event, gate: batch.Gate) -> values.Event:
    """A span event; one that is content as a whole is not looked into."""
    name = item.name or ""
    attributes = [] if gate.hides(name) else pairs(item.attributes, gate)
    return values.Event(name, item.time_unix_nano or 0, attributes)


def link(item: Link) -> tuple[str, str]:
    """Trace and span id of a link, in hex."""
    trace, span = ids.parse(item.trace_id or ""), ids.parse(item.span_id or "")
    return (trace or b"").hex(), (span or b"").hex()


def status(found: Status | None) -> int:
    """0, 1 or 2, from a number or a name; what is neither says nothing."""
    code = found.code if found is not None else None
    if isinstance(code, str):
        return {"STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2, "1": 1, "2": 2}.get(code, 0)
    return code if code in (1, 2) else 0
