"""Which kind of OTLP file it is, by looking at its first bytes, never at its name.

The names below are what `kind=` takes everywhere. Protobuf has no magic number, so the nested lengths
are walked down to the first span or metric: traces, metrics and logs have the same outer shape.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvtrace.sources.stream import ZSTD_MAGIC, Limits, expand

if TYPE_CHECKING:
    from collections.abc import Iterator

JSON = "otlp-json"
FRAMES = "otlp-proto-frames"
BODY = "otlp-proto-body"
HEAD_BYTES = 1 << 16
_LONGEST_FRAME = 1 << 28
_LEN = 2
_ITEMS = 2  # the number of scope_spans in ResourceSpans, and of spans in ScopeSpans; of metrics the same
_GROUP = (1, 2, 3)  # resource, the scopes, the schema's address
_DATA = (5, 7, 9, 10, 11)  # of a metric: gauge, sum, histogram, exponential histogram, summary
_TIMES = (2, 3)  # of every kind of point: from when, when
_LOG_TIMES = (1, 11)  # of a log record: when it was written, when it was observed
SPANS_OF = (b'"resourceSpans"', b'"resource_spans"')
METRICS_OF = (b'"resourceMetrics"', b'"resource_metrics"')
LOGS_OF = (b'"resourceLogs"', b'"resource_logs"')
SPANS, METRICS, LOGS = "spans", "metrics", "logs"
_FIRST_NAME = re.compile(rb'\s*(?:\[\s*)?\{\s*("\w{0,20}")')


def sniff(head: bytes) -> str | None:
    """`otlp-json`, `otlp-proto-frames`, `otlp-proto-body`, or None when it is none of them: of traces."""
    return _sniff(head, SPANS_OF)


def sniff_metrics(head: bytes) -> str | None:
    """The same of metrics; a file that holds both is one of traces."""
    return None if sniff(head) else _sniff(head, METRICS_OF)


def signal_of(payload: bytes, *, text: bool) -> str | None:
    """What one payload of a file holds: spans, metrics or logs; None when nothing says so."""
    kinds = ((SPANS, SPANS_OF), (METRICS, METRICS_OF), (LOGS, LOGS_OF))
    if text:
        found = _FIRST_NAME.match(payload)
        return next((kind for kind, names in kinds if found and found[1] in names), None)
    head = payload[:HEAD_BYTES]
    whole = len(head) == len(payload)
    return next((kind for kind, names in kinds if _is_body(head, names, whole=whole)), None)


def _sniff(head: bytes, names: tuple[bytes, ...]) -> str | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return JSON if any(name in text for name in names) else None
    if _is_body(head, names, whole=len(head) < HEAD_BYTES):
        return BODY
    return FRAMES if _is_framed(head, names) else None


def _is_framed(head: bytes, names: tuple[bytes, ...]) -> bool:
    """Whether it is a 4-byte big-endian length and a body, as the Collector's file exporter writes."""
    at = 0
    while at + 5 <= len(head):
        length = packed = int.from_bytes(head[at : at + 4], "big")
        frame = head[at + 4 : at + 4 + length]
        if length > _LONGEST_FRAME:
            return False
        if length:
            if frame.startswith(ZSTD_MAGIC):  # the exporter compresses each message by itself
                opened = expand(frame, Limits()) if len(frame) == length else None
                if not opened:
                    return names is SPANS_OF
                frame, length = opened, len(opened)
            is_text = frame.lstrip()[:1] == b"{"
            if (is_text and _sniff(frame, names) == JSON) or (
                not is_text and _is_body(frame, names, whole=len(frame) == length)
            ):
                return True
            if signal_of(frame, text=is_text) is None:
                return False  # else all signals may share the file: the next frame may be of this one
        at += 4 + packed
    return False


def _is_body(head: bytes, names: tuple[bytes, ...], *, whole: bool) -> bool:
    """Whether it is one request of this signal; what is cut before the first span gets the benefit."""
    groups = 0
    for number, kind, group in _fields(head):
        if (number, kind) != (1, _LEN):
            return False
        for inner, inner_kind, content in _fields(group):
            if inner not in _GROUP or inner_kind != _LEN:
                return False
            groups += 1
            for field in _fields(content) if inner == _ITEMS else ():
                if field[0] == _ITEMS and names is SPANS_OF:
                    return _is_span(field)
                if field[0] == _ITEMS and (_is_metric if names is METRICS_OF else _is_log)(field):
                    return True
    return names is SPANS_OF and groups > 0 and (not whole or _end(head) == len(head))


def _is_span(field: tuple[int, int, bytes]) -> bool:
    """Whether a field is a message that begins with a trace id; metrics begin with a name, logs a time."""
    first = next(_fields(field[2]), (1, _LEN, b""))
    is_id = first[:2] == (1, _LEN) and len(first[2]) in (0, 8, 16)
    return field[1] == _LEN and is_id and not _is_metric(field)


def _is_metric(field: tuple[int, int, bytes]) -> bool:
    """Whether a field is a message with points, one of which has a time."""
    return field[1] == _LEN and any(
        named in _TIMES and how == 1
        for number, kind, data in _fields(field[2])
        if number in _DATA and kind == _LEN
        for inner, inner_kind, point in _fields(data)
        if (inner, inner_kind) == (1, _LEN)
        for named, how, _ in _fields(point)
    )


def _is_log(field: tuple[int, int, bytes]) -> bool:
    """Whether a field is a message that says when it was written or observed, where a log record says it."""
    return field[1] == _LEN and any(
        number in _LOG_TIMES and kind == 1 for number, kind, _ in _fields(field[2])
    )


def _end(head: bytes) -> int:
    """Where the last field of a message ends, all being of the wire type that has a length."""
    at = 0
    while at < len(head):
        _tag, at = _varint(head, at)
        length, at = _varint(head, at)
        at += length
    return at


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Number, wire type and content of each field of a message that may be cut anywhere."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind, content = tag & 7, b""
        if kind == _LEN:
            length, at = _varint(message, at)
            content = message[at : at + length]
            at += length
        elif kind == 0:
            _value, at = _varint(message, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        yield tag >> 3, kind, content
        if kind not in (0, 1, _LEN, 5):
            return


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return value, at
