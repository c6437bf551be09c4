"""A chrome trace of any size, a piece of its events at a time.

    { "baseTimeNanoseconds": 17..., "traceEvents": [ {..}, {..}, {..}, ... ], "traceName": "..." }
      header                                         piece       piece        footer

A piece ends between two events: at a comma between `}` and `{"name`, which inside of a text would need a
backslash. It may still lie inside an event that nests objects; then the piece is no JSON, and its events are
found bracket by bracket. A file that ends inside its events gives those that are whole.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from kvtrace.sources.kineto.event import Event
from kvtrace.sources.stream import MIB, Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.records import Rows
    from kvtrace.sources.stream import Stream

PIECE_BYTES = MIB
LONGEST_EVENT = 16 * MIB
"""More text without the end of an event is none; reading stops."""
CUT = "the trace ends inside its events"
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\s*[,}]')
_BEFORE = re.compile(rb"\}\s{0,64},\s{0,64}\Z")
_AFTER = re.compile(rb'\{\s{0,64}"[A-Za-z_]')
_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|["{}\[\]]', re.DOTALL)
_TRIES = 2000
_PIECE = msgspec.json.Decoder(list[Event])
_ONE = msgspec.json.Decoder(Event)
_BROKEN = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)


class _Around(msgspec.Struct):
    """What is read beside the events; other members are skipped, whatever is in them."""

    baseTimeNanoseconds: Any = None  # noqa: N815 - the trace's own names
    host_name: Any = None
    distributedInfo: Any = None  # noqa: N815


class _Rest(_Around):
    """What is left when the stream has ended: the last events, and the footer."""

    traceEvents: list[Event] = []  # noqa: N815 - msgspec copies it


class Document:
    """One trace: its events in pieces, then what was said around them."""

    def __init__(self, stream: Stream, rows: Rows, *, piece_bytes: int = PIECE_BYTES) -> None:
        self._stream = stream
        self._rows = rows
        self._piece_bytes = piece_bytes
        self.about: dict[str, Any] = {}
        """What the document says beside its events; complete when `pieces` has ended."""

    def pieces(self) -> Iterator[list[Event]]:
        """The events, in the order of the file."""
        buffer = self._header()
        if buffer is None:
            self._rows.refuse("documents without traceEvents")
            return
        while more := self._more():
            buffer += more
            cut = _boundary(buffer)
            if cut is not None:
                events = _decoded(buffer[:cut])
                if events is not None:
                    yield events
                    buffer = buffer[cut + 1 :]
                    continue
            elif len(buffer) < LONGEST_EVENT:
                continue
            events, end, closed = self._by_brackets(buffer)
            yield events
            buffer = buffer[end:]
            if closed:
                self._footer(buffer)
                return
            if len(buffer) >= LONGEST_EVENT:
                self._rows.refuse(f"events longer than {LONGEST_EVENT:,} bytes: reading stopped")
                return
        yield from self._last(buffer)

    def _more(self) -> bytes:
        """About a piece more."""
        parts, size = [], 0
        while size < self._piece_bytes and (more := self._stream.read()):
            parts.append(more)
            size += len(more)
        return b"".join(parts)

    def _header(self) -> bytes | None:
        """Read up to the first event; what comes behind it, or None when there are no events."""
        buffer = b""
        while len(buffer) < Limits().max_message_bytes and (more := self._more()):
            buffer += more
            found = _EVENTS.search(buffer)
            if found:
                self._learn(buffer[: found.end()] + b"]}")
                return buffer[found.end() :]
        return None

    def _footer(self, rest: bytes) -> None:
        """What follows the events."""
        while len(rest) < Limits().max_message_bytes and (more := self._more()):
            rest += more
        self._learn(b'{"traceEvents":[]' + rest)

    def _learn(self, document: bytes) -> None:
        try:
            self._note(msgspec.json.decode(document.removeprefix(b"\xef\xbb\xbf"), type=_Around))
        except _BROKEN:
            self._rows.refuse("parts of a trace around its events")
            base = _BASE.search(document)
            if base:  # without it no event has a time
                self._note(_Around(int(base[1])))

    def _note(self, found: _Around) -> None:
        said = {name: getattr(found, name) for name in _Around.__struct_fields__}
        self.about |= {name: value for name, value in said.items() if value is not None}

    def _last(self, buffer: bytes) -> Iterator[list[Event]]:
        """The last events and the footer; each event alone when they are not all whole."""
        document = b'{"traceEvents":[' + buffer
        try:
            rest = msgspec.json.decode(document, type=_Rest)
        except _BROKEN:
            events, end, closed = self._by_brackets(buffer)
            yield events
            if closed:
                self._footer(buffer[end:])
            else:
                self._rows.refuse(CUT, cause="unclean_end")
        else:
            self._note(rest)
            yield rest.traceEvents

    def _by_brackets(self, buffer: bytes) -> tuple[list[Event], int, bool]:
        """Events that are whole, where the last of them ends, and whether the list of events ends there."""
        events: list[Event] = []
        depth = start = end = 0
        for token in _TOKENS.finditer(buffer):
            mark = token[0]
            if mark == b'"':  # a text that is not over
                break
            if mark in (b"{", b"["):
                if depth == 0:
                    start = token.start()
                depth += 1
            elif mark in (b"}", b"]"):
                depth -= 1
                if depth < 0:
                    return events, token.end(), True
                if depth == 0:
                    end = token.end()
                    self._one(buffer[start:end], events)
        return events, end + len(buffer[end:]) - len(buffer[end:].lstrip(b", \t\r\n")), False

    def _one(self, text: bytes, events: list[Event]) -> None:
        try:
            events.append(_ONE.decode(text))
        except _BROKEN:
            self._rows.refuse("events that are none")


def _decoded(piece: bytes) -> list[Event] | None:
    try:
        return _PIECE.decode(b"[" + piece + b"]")
    except _BROKEN:
        return None


def _boundary(buffer: bytes) -> int | None:
    """The last comma that looks like one between two events."""
    end = len(buffer)
    for _ in range(_TRIES):
        at = buffer.rfind(b"{", 0, end)
        if at <= 0:
            return None
        before = _BEFORE.search(buffer, max(0, at - 130), at)
        if before and _AFTER.match(buffer, at):
            return before.start() + before[0].index(b",")
        end = at
    return None
