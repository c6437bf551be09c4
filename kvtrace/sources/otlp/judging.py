"""One export as it arrives, looked at before it is taken: is it one, and which of its spans cannot be?

Its sender waits for the answer, so that attributes are not looked into. What is set aside is what
`dialects.to_words` sets aside: a span without a start, beyond 64-bit nanoseconds, or of negative duration.

An export made to hurt holds little but empty messages: 2 bytes that take 80 in memory. Many of them in a
large body are told from its bytes alone, before anything reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from kvtrace.sources.dialects import LATEST_NS
from kvtrace.sources.otlp import json_attributes, json_bodies, protobuf
from kvtrace.sources.otlp.json_lines import reason
from kvtrace.sources.otlp.protobuf_loop import CORRUPT
from kvtrace.sources.stream import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SUSPICIOUS_BYTES = MIB
"""A body up to this is read whatever it holds: 90 MiB at worst."""
MAX_EMPTY = 100_000
_EMPTY = tuple(bytes([number << 3 | 2, 0]) for number in (1, 2, 4, 5, 6, 7, 8, 9, 11, 13))
"""Groups, spans, metrics, points, records, attributes, events, links without anything in them."""
_EMPTY_TEXT = (b"{}", b"{ }", b"[]")
HURTS = "a body of nothing but empty messages"


@dataclass(frozen=True, slots=True)
class Judged:
    """How many records (spans, points, log records) an export has, how many cannot be; or why it is none."""

    records: int = 0
    impossible: int = 0
    mistake: str | None = None


def judged(body: bytes, *, text: bool) -> Judged:
    """Look at one body of traces: JSON text, or protobuf."""
    return guarded(body, _judged, text=text)


def guarded(body: bytes, look: Callable[[bytes, bool], Judged], *, text: bool) -> Judged:
    """What `look(body, text)` finds in a body that may be read; one that is none, or hurts, says why."""
    if hurts(body, text=text):
        return Judged(mistake=HURTS)
    if len(body) <= SUSPICIOUS_BYTES and not body.strip():
        return Judged(mistake="an empty body") if text else Judged()
    try:
        return look(body, text)
    except DecodeError:
        return Judged(mistake=CORRUPT)
    except json_attributes.MISTAKES as error:
        return Judged(mistake=reason(error))


def _judged(body: bytes, text: bool) -> Judged:  # noqa: FBT001 - called by guarded alone
    times = list(_text_times(body) if text else _times(body))
    bad = sum(
        not 0 < start <= LATEST_NS or end > LATEST_NS or (end < start and end != 0) for start, end in times
    )
    return Judged(len(times), bad)


def hurts(body: bytes, *, text: bool) -> bool:
    """Whether a body is made to take many times its size in memory."""
    if len(body) <= SUSPICIOUS_BYTES:
        return False
    if text:
        return sum(map(body.count, _EMPTY_TEXT)) > MAX_EMPTY
    # no field begins with 0: what a 0 follows is a number, such as one of many counts of 64 bits
    return sum(body.count(one) - body.count(one + b"\0") for one in _EMPTY) > MAX_EMPTY


def _times(body: bytes) -> Iterator[tuple[int, int]]:
    for group in protobuf.opaque().FromString(body).resource_spans:
        for scope in group.scope_spans:
            for span in scope.spans:
                yield span.start_time_unix_nano, span.end_time_unix_nano


def _text_times(body: bytes) -> Iterator[tuple[int, int]]:
    for found in json_bodies.bodies(body.strip()):
        for group in found.resource_spans or ():
            for scope in group.scope_spans or ():
                for span in scope.spans or ():
                    start, end = span.start_time_unix_nano or 0, span.end_time_unix_nano or 0
                    if min(start, end) < 0 or max(start, end) >= 2**64:
                        raise OverflowError
                    yield start, end
