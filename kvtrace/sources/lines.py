"""Lines of a text file in batches of bounded size; a line beyond the limit is skipped, and said."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.sources.stream import MIB, Limits, Stream, Undecodable

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH_BYTES = 4 * MIB


def lines(
    stream: Stream, limits: Limits | None = None, *, batch_bytes: int = BATCH_BYTES
) -> Iterator[list[bytes] | Undecodable]:
    """Batches of lines without their ends, blank ones left out; in between what was lost."""
    longest = (limits or Limits()).max_message_bytes
    rest, skipping = b"", False
    while more := stream.read():
        head, newline, tail = more.rpartition(b"\n")
        if not newline:
            rest = b"" if skipping else rest + more
        else:
            found = (b"" if skipping else rest) + head
            batch = found.split(b"\n")[1:] if skipping else found.split(b"\n")
            rest, skipping = tail, False
            yield from _bounded(batch, longest, batch_bytes)
        if len(rest) > longest:
            yield _too_long(longest)
            rest, skipping = b"", True
    if rest.strip():
        yield [rest]
    yield from stream.losses


def _bounded(batch: list[bytes], longest: int, batch_bytes: int) -> Iterator[list[bytes] | Undecodable]:
    """The lines of a batch that are not too long, in parts."""
    part: list[bytes] = []
    size = 0
    for line in batch:
        if len(line) > longest:
            yield _too_long(longest)
            continue
        if not line.strip():
            continue
        part.append(line)
        size += len(line)
        if size >= batch_bytes:
            yield part
            part, size = [], 0
    if part:
        yield part


def _too_long(longest: int) -> Undecodable:
    return Undecodable(f"line longer than {longest:,} bytes", 1)
