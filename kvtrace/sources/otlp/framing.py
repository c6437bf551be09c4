"""From a stream of bytes to batches of payloads: frames, lines, or one body, in bounded memory.

What cannot be a payload is yielded as Undecodable and skipped: a message beyond the limit, a torn last
frame, bytes after which no frame boundary can be found. Broken lines are not judged here, their decoder
says what is wrong with them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvtrace.sources.otlp.sniffing import BODY, FRAMES, JSON, sniff
from kvtrace.sources.stream import MIB, ZSTD_MAGIC, Limits, Stream, Undecodable, expand, open_input

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BODY", "FRAMES", "JSON", "Limits", "Stream", "batches", "open_input", "sniff"]

TARGET_BYTES = 8 * MIB
_EMPTY_FRAMES = 1000
"""More empty frames in a row than a writer makes: zeros of a preallocated or damaged file."""
_FIRST_BYTE = 0x0A
"""resource_spans, resource_metrics: every payload begins with it."""
_BODY_STARTS = re.compile(rb'\s*\[?\s*\{\s*"resource_?(?:[sS]pans|[mM]etrics)"')
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')


def batches(
    stream: Stream, kind: str, limits: Limits, *, target_bytes: int = TARGET_BYTES
) -> Iterator[list[bytes] | Undecodable]:
    """Batches of payloads of about target_bytes, and in between what was lost."""
    source = {JSON: _documents, FRAMES: _frames, BODY: _body}[kind](stream, limits)
    waiting: list[bytes] = []
    size = 0
    for item in source:
        if isinstance(item, Undecodable):
            yield item
            continue
        waiting.append(item)
        size += len(item)
        if size >= target_bytes:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting
    yield from stream.losses


def _too_long(what: str, limits: Limits) -> Undecodable:
    return Undecodable(f"{what} longer than {limits.max_message_bytes:,} bytes", 1)


def _body(stream: Stream, limits: Limits) -> Iterator[bytes | Undecodable]:
    parts, size = [], 0
    while more := stream.read():
        parts.append(more)
        size += len(more)
        if size > limits.max_message_bytes:
            yield _too_long("body", limits)
            return
    yield b"".join(parts)


@dataclass(slots=True)
class _Window:
    """What of a stream was read and not taken yet."""

    stream: Stream
    data: bytes = b""
    at: int = 0

    def fill(self, size: int) -> bool:
        """Have so many bytes, if there are."""
        have = len(self.data) - self.at
        if have >= size:
            return True
        parts = [self.data[self.at :]]
        while have < size and (more := self.stream.read()):
            parts.append(more)
            have += len(more)
        self.data, self.at = b"".join(parts), 0
        return have >= size

    def take(self, size: int) -> bytes:
        """The next bytes."""
        found = self.data[self.at : self.at + size]
        self.at += size
        return found

    def skip(self, size: int) -> bool:
        """Pass over bytes without keeping them, if there are so many."""
        while size > len(self.data) - self.at:
            size -= len(self.data) - self.at
            self.data, self.at = self.stream.read(), 0
            if not self.data:
                return False
        self.at += size
        return True


def _frames(stream: Stream, limits: Limits) -> Iterator[bytes | Undecodable]:
    window = _Window(stream)
    empty = 0
    while window.fill(5):
        length = int.from_bytes(window.data[window.at : window.at + 4], "big")
        empty = 0 if length else empty + 1
        if empty > _EMPTY_FRAMES:
            yield Undecodable("nothing but zeros where frames should be: the rest is not read", 1)
            return
        if length <= limits.max_message_bytes:
            if not window.fill(4 + length):
                yield Undecodable("torn last frame", 1)
                return
            window.at += 4
            yield from _opened(window.take(length), limits)
            continue
        if window.data[window.at + 4] != _FIRST_BYTE:
            yield Undecodable("no frame where one should begin: the rest is not read", 1)
            return
        yield _too_long("frame", limits)
        if not window.skip(4 + length):
            return
    if window.data[window.at :].strip(b"\0"):
        yield Undecodable("torn last frame", 1)


def _opened(frame: bytes, limits: Limits) -> Iterator[bytes | Undecodable]:
    """A frame's payload; the Collector compresses each by itself when told to compress."""
    if not frame.startswith(ZSTD_MAGIC):
        if frame:
            yield frame
        return
    found = expand(frame, limits)
    yield Undecodable("compressed frame corrupt or too long", 1) if found is None else found


def _lines(stream: Stream, limits: Limits) -> Iterator[bytes | Undecodable]:
    """Lines without their end; a line beyond the limit is skipped to where it ends."""
    parts: list[bytes] = []
    size = 0
    skipping = False
    while more := stream.read():
        *whole, rest = more.split(b"\n")
        for piece in whole:
            if skipping:
                skipping = False
                continue
            line = b"".join([*parts, piece])
            parts, size = [], 0
            yield line if len(line) <= limits.max_message_bytes else _too_long("line", limits)
        if skipping:
            continue
        parts.append(rest)
        size += len(rest)
        if size > limits.max_message_bytes:
            yield _too_long("line", limits)
            parts, size, skipping = [], 0, True
    if size:
        yield b"".join(parts)


@dataclass(slots=True)
class _Document:
    """A pretty-printed body in the making: the lines until its brackets are closed."""

    lines: list[bytes] = field(default_factory=list)
    size: int = 0
    depth: int = 0

    def add(self, line: bytes) -> None:
        bare = _STRINGS.sub(b"", line)
        self.depth += bare.count(b"{") + bare.count(b"[") - bare.count(b"}") - bare.count(b"]")
        self.lines.append(line)
        self.size += len(line) + 1

    def is_interrupted_by(self, line: bytes) -> bool:
        """Whether another body starts here: then this one was torn; inside an array bodies may follow."""
        return self.lines[0].strip() != b"[" and bool(_BODY_STARTS.match(line))

    def take(self) -> bytes:
        found = b"\n".join(self.lines)
        self.lines, self.size, self.depth = [], 0, 0
        return found


def _documents(stream: Stream, limits: Limits) -> Iterator[bytes | Undecodable]:
    """One body a line; a line that ends in an open bracket or comma begins a body over many lines."""
    document = _Document()
    for line in _lines(stream, limits):
        if isinstance(line, Undecodable):
            yield line
            continue
        if document.lines and document.is_interrupted_by(line):
            yield document.take()
        if not document.lines and not line.rstrip().endswith((b"{", b"[", b",")):
            if line.strip():
                yield line
            continue
        document.add(line)
        if document.size > limits.max_message_bytes:
            yield _too_long("document", limits)
            document.take()
        elif document.depth <= 0:
            yield document.take()
    if document.lines:
        yield document.take()
