"""One scenario's share of files that several scenarios of one engine start append to.

Receiver and tap open their files anew for every write, so a rename takes what is there. The cache
server keeps its files open: there the bytes after the last cut are copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.engines.configuration import HASH_LOG, STORAGE_TRACE

if TYPE_CHECKING:
    from pathlib import Path

RENAMED = ("otlp.binpb", "otlp-metrics.binpb", "kv-events.jsonl")
LENGTH_BYTES = 4


class Cutter:
    """Remembers how much of every growing file earlier scenarios have taken."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._taken: dict[Path, int] = {}

    def take(self, raw: Path) -> None:
        """Moves and copies into `raw` what was written since the last call."""
        for name in RENAMED:
            if (self._work / name).exists():
                (self._work / name).rename(raw / name)
        trace = self._work / STORAGE_TRACE
        if trace.exists():
            (raw / STORAGE_TRACE).write_bytes(self._new_frames(trace))
        for log in sorted((self._work / HASH_LOG).glob("lookup_hashes*.jsonl")):
            if lines := self._new_bytes(log):
                (raw / log.name).write_bytes(lines)

    def _new_bytes(self, path: Path) -> bytes:
        content = path.read_bytes()
        start = self._taken.get(path, 0)
        self._taken[path] = len(content)
        return content[start:]

    def _new_frames(self, path: Path) -> bytes:
        """The storage trace's first frame is its header: every share needs it."""
        header = b"" if path not in self._taken else _first_frame(path)
        return header + self._new_bytes(path)


def _first_frame(path: Path) -> bytes:
    content = path.read_bytes()
    return content[: LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "big")]
