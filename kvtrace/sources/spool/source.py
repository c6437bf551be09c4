"""The bytes of a spool that may be growing.

Read in blocks, never mapped: reading a mapped file that has become shorter kills the reader.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

BLOCK_BYTES = 8 << 20


class Source:
    """A file, or bytes in memory."""

    def __init__(self, source: Path | bytes | memoryview) -> None:
        self._path: Path | None = None
        self._start = 0
        self._window = memoryview(b"")
        if isinstance(source, bytes | memoryview):
            self._window = memoryview(source).cast("B")
        else:
            self._path = source
        self._end = len(self._window)

    def size(self) -> int:
        """How many bytes there are now."""
        if self._path is not None:
            self._end = self._path.stat().st_size
            self._window = memoryview(b"")  # what was read as a torn tail may be another frame by now
        return self._end

    def view(self, at: int, length: int) -> memoryview:
        """Bytes of the source as it was when its size was asked; shorter when the file shrank since."""
        if self._path is not None and not self._start <= at <= at + length <= self._start + len(self._window):
            self._read(at, max(length, BLOCK_BYTES))
        return self._window[at - self._start : at - self._start + length]

    def _read(self, at: int, length: int) -> None:
        assert self._path is not None
        with self._path.open("rb") as file:
            self._window = memoryview(os.pread(file.fileno(), min(length, max(self._end - at, 0)), at))
            self._start = at

    def find(self, text: bytes, at: int) -> int | None:
        """Where these bytes occur next."""
        while at + len(text) <= self._end:
            view = self.view(at, min(BLOCK_BYTES, self._end - at))
            found = bytes(view).find(text)
            if found >= 0:
                return at + found
            if len(view) < len(text):
                return None
            at += len(view) - len(text) + 1
        return None
