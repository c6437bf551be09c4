"""An input as a stream of decompressed bytes that cannot exhaust the machine, and says what it lost.

gzip and zstd are told by their magic bytes; files of several members or frames are read to the end. The mark
that some editors and shells put before UTF-8 is no content. A stream that is cut, corrupt or a bomb ends
early: what came before is kept, the rest is in `losses`.
"""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import pyarrow as pa

from kvtrace.errors import InputError

if TYPE_CHECKING:
    from types import TracebackType

MIB = 1 << 20
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
UTF8_MARK = b"\xef\xbb\xbf"
CHUNK_BYTES = 1 << 15


@dataclass(frozen=True, slots=True)
class Undecodable:
    """What arrived and could not be read: in words without any of its content, and how often."""

    detail: str
    count: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What one input may cost.

    max_message_bytes: longest payload, line or document, decompressed
    max_expanded_bytes: all decompressed bytes of one input
    max_expansion: decompressed over compressed bytes, looked at beyond the first expansion_grace_bytes
    """

    max_message_bytes: int = 64 * MIB
    max_expanded_bytes: int = 16384 * MIB
    max_expansion: int = 1000
    expansion_grace_bytes: int = 64 * MIB


class _Reader(Protocol):
    """Decompressed chunks; b"" at the end; an OSError or zlib.error when cut or corrupt."""

    def read(self, size: int, /) -> bytes: ...


class _Gzip:
    """gzip by zlib itself: unlike a file object it gives out all that came before the cut."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._member = zlib.decompressobj(wbits=31)
        self._waiting = b""
        self._inside = True

    def read(self, size: int, /) -> bytes:
        while True:
            if not self._waiting:
                self._waiting = self._raw.read(CHUNK_BYTES)
                if not self._waiting:
                    return self._rest(size)
            if not self._inside:  # zeros after a member are padding (tar, tapes); else it is the next member
                self._waiting = self._waiting.lstrip(b"\0")
                if not self._waiting:
                    continue
                self._member, self._inside = zlib.decompressobj(wbits=31), True
            found = self._member.decompress(self._waiting, size)
            if self._member.eof:
                self._waiting, self._inside = self._member.unused_data, False
            else:
                self._waiting = self._member.unconsumed_tail
            if found:
                return found

    def _rest(self, size: int) -> bytes:
        """What zlib still holds back after the last input byte; an error when the member is not complete."""
        found = self._member.decompress(b"", size) if self._inside else b""
        self._inside = self._inside and not self._member.eof
        if self._inside and not found:
            raise EOFError
        return found


class Stream:
    """Reads one input in chunks, small ones when compressed: a cut may lose the chunk it is in.

    `losses` is complete once `read` has returned b"". `plain_path`: the file itself, for whoever must seek in
    it; None when it is compressed. `written_ns`: when the file was last written, unix ns.
    """

    def __init__(self, path: Path, limits: Limits) -> None:
        self.losses: list[Undecodable] = []
        self._limits = limits
        self._expanded_bytes = 0
        self._head = b""
        self._ended = False
        self._raw: IO[bytes] = path.open("rb")
        self.written_ns = os.fstat(self._raw.fileno()).st_mtime_ns
        magic = self._raw.read(4)
        self._raw.seek(0)
        self._compressed = magic.startswith(GZIP_MAGIC) or magic == ZSTD_MAGIC
        self.plain_path = None if self._compressed else path
        self._reader: _Reader = self._raw
        if magic.startswith(GZIP_MAGIC):
            self._reader = _Gzip(self._raw)
        elif magic == ZSTD_MAGIC:
            self._reader = pa.CompressedInputStream(self._raw, "zstd")

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raw.close()

    def peek(self, size: int) -> bytes:
        """The first bytes, without taking them away."""
        while len(self._head) < size and (more := self._next()):
            self._head += more
        return self._head[:size]

    def read(self) -> bytes:
        """The next bytes, as many as are convenient; b"" at the end."""
        if self._head:
            head, self._head = self._head, b""
            return head
        return self._next()

    def _next(self) -> bytes:
        if self._ended:
            return b""
        try:
            found = self._reader.read(CHUNK_BYTES if self._compressed else MIB)
        except (OSError, EOFError, zlib.error):
            return self._end("compressed input is cut or corrupt: the rest is lost")
        if not self._expanded_bytes and found.startswith(UTF8_MARK):
            found, self._expanded_bytes = found.removeprefix(UTF8_MARK), len(UTF8_MARK)
            if not found:
                return self._next()
        self._expanded_bytes += len(found)
        if self._compressed and self._expanded_bytes > self._limits.max_expanded_bytes:
            return self._end(f"expands beyond {self._limits.max_expanded_bytes:,} bytes: reading stopped")
        if self._compressed and self._expanded_bytes > self._limits.expansion_grace_bytes:
            # the file position runs ahead by what is buffered, which only makes the guard milder
            ratio = self._expanded_bytes / max(self._raw.tell(), 1)
            if ratio > self._limits.max_expansion:
                return self._end(f"expands more than {self._limits.max_expansion} times: reading stopped")
        self._ended = not found
        return found

    def _end(self, detail: str) -> bytes:
        self._ended = True
        self.losses.append(Undecodable(detail, 1))
        return b""


def open_input(path: Path | str, limits: Limits | None = None) -> Stream:
    """Open a file, decompressing it if need be; use it as a context manager."""
    try:
        return Stream(Path(path), limits or Limits())
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror or error}). Give the path of a readable file."
        ) from error


def expand(message: bytes, limits: Limits) -> bytes | None:
    """One message that is compressed by itself (zstd); None when it is corrupt or too long."""
    try:
        source = pa.CompressedInputStream(pa.BufferReader(message), "zstd")
        found: bytes = source.read(limits.max_message_bytes + 1)
    except (OSError, pa.ArrowException):
        return None
    return found if len(found) <= limits.max_message_bytes else None
