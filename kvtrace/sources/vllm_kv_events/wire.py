"""Recordings of the wire itself: [topic, sequence number, payload] in msgpack, one after the other.

Either nothing lies between them, or each has its length before it (4 bytes, big-endian). The outer array
is taken apart by hand: its parts say their lengths, so that a payload is passed on without being looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kvtrace.sources.stream import Limits, Stream, Undecodable

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH_BYTES = 4
MAX_TOPIC_BYTES = 4096
"""A longer topic is none."""
_ARRAY_OF_3 = 0x93
_SIZES = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""First byte of bin and str -> how many bytes their length has."""
_INTEGERS = {
    0xCC: (1, False), 0xCD: (2, False), 0xCE: (4, False), 0xCF: (8, False),
    0xD0: (1, True), 0xD1: (2, True), 0xD2: (4, True), 0xD3: (8, True),
}  # fmt: skip
_SEQUENCE_BYTES = 8


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the wire; `sequence` is -1 where a replay ends."""

    topic: str
    sequence: int
    payload: bytes


class Cut(Exception):  # noqa: N818 - says where, is no error to anyone outside
    """The message goes on beyond the bytes that are there."""


class NoMessageError(ValueError):
    """These bytes are no message."""


def message_at(data: bytes, at: int, longest: int) -> tuple[Message, int]:
    """The message that begins at `at`, and where the next begins.

    Raises:
        Cut: there are fewer bytes than it has.
        NoMessageError: it is none, or its payload is longer than `longest`.
    """
    topic, sequence, start, stop = opening_at(data, at, longest)
    if stop > len(data):
        raise Cut
    return Message(topic, sequence, data[start:stop]), stop


def opening_at(data: bytes, at: int, longest: int) -> tuple[str, int, int, int]:
    """Topic, sequence number, and where the payload begins and ends, which may be beyond the bytes.

    Raises:
        Cut: there are fewer bytes than all of that takes.
        NoMessageError: it is no message, or its payload is longer than `longest`.
    """
    if _byte(data, at) != _ARRAY_OF_3:
        raise NoMessageError("no array of three")
    start, stop = _text(data, at + 1, MAX_TOPIC_BYTES)
    if stop > len(data):
        raise Cut
    topic = data[start:stop].decode("utf-8", "replace")
    sequence, at = _sequence(data, stop)
    start, stop = _text(data, at, longest)
    if start == stop and sequence != -1:
        raise NoMessageError("no payload")
    return topic, sequence, start, stop


def _byte(data: bytes, at: int) -> int:
    if at >= len(data):
        raise Cut
    return data[at]


def _text(data: bytes, at: int, longest: int) -> tuple[int, int]:
    """Where the content of a bin or str begins and ends."""
    first = _byte(data, at)
    at += 1
    if 0xA0 <= first <= 0xBF:
        length = first & 0x1F
    elif first in _SIZES:
        size = _SIZES[first]
        if at + size > len(data):
            raise Cut
        length = int.from_bytes(data[at : at + size], "big")
        at += size
    else:
        raise NoMessageError("neither bytes nor text")
    if length > longest:
        raise NoMessageError("longer than any payload")
    return at, at + length


def _sequence(data: bytes, at: int) -> tuple[int, int]:
    """A number, or the 8 bytes in which ZeroMQ carries it."""
    first = _byte(data, at)
    if first <= 0x7F:
        return first, at + 1
    if first >= 0xE0:
        return first - 0x100, at + 1
    if first in _INTEGERS:
        size, signed = _INTEGERS[first]
        if at + 1 + size > len(data):
            raise Cut
        return int.from_bytes(data[at + 1 : at + 1 + size], "big", signed=signed), at + 1 + size
    start, stop = _text(data, at, _SEQUENCE_BYTES)
    if stop - start != _SEQUENCE_BYTES:
        raise NoMessageError("no sequence number")
    if stop > len(data):
        raise Cut
    return int.from_bytes(data[start:stop], "big", signed=True), stop


def messages(stream: Stream, limits: Limits, *, framed: bool) -> Iterator[list[Message] | Undecodable]:
    """Messages in order, as many at once as a read gave, and in between what was lost.

    After bytes that are no message nothing can be found any more.
    """
    data, at = b"", 0
    longest = limits.max_message_bytes
    while more := _more(stream, data[at:]):
        data, at = more, 0
        found: list[Message] = []
        torn = ""
        try:
            while at < len(data):
                message, at = _framed_at(data, at, longest) if framed else message_at(data, at, longest)
                if message is not None:
                    found.append(message)
                else:
                    yield Undecodable("a frame without a message", 1)
        except Cut:
            if len(data) - at > longest + MAX_TOPIC_BYTES + 64:
                torn = f"message longer than {longest:,} bytes: the rest is not read"
        except NoMessageError:
            torn = "no message where one should begin: the rest is not read"
        if found:
            yield found
        if torn:
            yield Undecodable(torn, 1)
            return
    if at < len(data):
        yield Undecodable("torn last message", 1)
    yield from stream.losses


def _more(stream: Stream, rest: bytes) -> bytes:
    """What is left and as much again, so that a long message is not copied often; empty at the end."""
    parts, size = [rest], 0
    while size <= len(rest) and (more := stream.read()):
        parts.append(more)
        size += len(more)
    return b"".join(parts) if size else b""


def _framed_at(data: bytes, at: int, longest: int) -> tuple[Message | None, int]:
    """The message in the frame at `at`, None when it holds none: the next one may."""
    body = at + LENGTH_BYTES
    if body > len(data):
        raise Cut
    end = body + int.from_bytes(data[at:body], "big")
    if end - body > longest + MAX_TOPIC_BYTES + 64:
        raise NoMessageError("longer than any payload")
    if end > len(data):
        raise Cut
    try:
        found, stop = message_at(data[body:end], 0, longest)
    except (Cut, NoMessageError):
        return None, end
    return (found if stop == end - body else None), end


def pack(topic: str, sequence: int, payload: bytes) -> bytes:
    """One message as a recorder writes it."""
    return msgspec.msgpack.encode([topic, sequence.to_bytes(8, "big", signed=True), payload])
