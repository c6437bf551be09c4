"""Frames of a 4-byte big-endian length, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources.stream import Limits, Stream, Undecodable

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH_BYTES = 4
TORN = "torn last frame"
"""How a frame is called that ends before its length."""


def frames(stream: Stream, limits: Limits) -> Iterator[bytes | Undecodable]:
    """Frames without their length; after one that is too long nothing is read."""
    data, at, wanted = b"", 0, 0
    parts: list[bytes] = []
    while more := stream.read():
        parts.append(more)
        wanted -= len(more)
        if wanted > 0:
            continue
        data, at = b"".join([data[at:], *parts]), 0
        parts = []
        while at + LENGTH_BYTES <= len(data):
            end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "big")
            if end - at > limits.max_message_bytes:
                yield Undecodable("no frame where one should begin: the rest is not read", 1)
                return
            if end > len(data):
                wanted = end - len(data)
                break
            yield data[at + LENGTH_BYTES : end]
            at = end
    if parts or at < len(data):
        yield Undecodable(TORN, 1)
    yield from stream.losses
