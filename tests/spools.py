"""Writes spools from literal rows, so that a test can show them; an encoder of its own, not the recorder's.

    spool = Drawn(run / "spool")                       one process; header first
    spool.rows("span", "whole", [{"op": "step", "start_ns": 10, "end_ns": 20}])
    spool.rows("span", "open", [{"span_id": 7, "op": "request", "request_id": "r0", "start_ns": 5}])
    spool.end()

Times are monotonic ns; ANCHOR is where they lie in unix time.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.schema import VERSION, frames

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

ANCHOR = (1_000, 1_700_000_000_000_000_000)
"""Monotonic ns and the unix ns at the same moment."""
OFFSET = ANCHOR[1] - ANCHOR[0]
"""Unix ns = monotonic ns + this."""
BOOT = "11111111-2222-3333-4444-555555555555"
MEMBER = ("request_id", "phase", "scheduled_tokens", "output_tokens", "computed_before")
_MEMBERS: dict[str, type] = {"request_id": str, "phase": str}


class Drawn:
    """One spool, frame by frame. By default its process lives on another machine, and so has ended."""

    def __init__(self, folder: Path, pid: int = 100, *, prefix: int = 5, **header: Any) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.pid = pid
        self.path = folder / f"{header.get('boot_id', BOOT)}-{pid}-1000{frames.SUFFIX}"
        self.process = f"{header.get('host', 'drawn-host')}/{pid}"
        self.written = 0
        self._words: dict[str, int] = {}
        self._epoch = 0
        self._shapes: dict[tuple[Any, ...], int] = {}
        self._fresh = True
        if header is not None:
            self.frame(frames.HEADER, _json(drawn_header(pid, prefix) | header))

    def frame(self, kind: int, payload: bytes) -> Drawn:
        """Append any frame."""
        return self.raw(frames.frame(kind, payload))

    def raw(self, content: bytes) -> Drawn:
        """Append any bytes."""
        with self.path.open("ab") as file:
            file.write(content)
        return self

    def cut(self, size: int) -> Drawn:
        """Cut the last bytes off, as a killed process leaves its spool; nothing is appended afterwards."""
        os.truncate(self.path, self.path.stat().st_size - size)
        return self

    def aged(self, seconds: float = 3600.0) -> Drawn:
        """Make the spool one that has not grown for long."""
        found = self.path.stat()
        os.utime(self.path, (found.st_atime - seconds, found.st_mtime - seconds))
        return self

    def facts(self, **facts: Any) -> Drawn:
        """What describe has said so far."""
        return self.frame(frames.FACTS, _json(facts))

    def anchor(self, monotonic: int, unix: int) -> Drawn:
        """A clock anchor."""
        return self.frame(frames.ANCHOR, frames.ANCHOR_PAIR.pack(monotonic, unix))

    def idle(self, monotonic: int) -> Drawn:
        """The mark of a flush that found nothing."""
        return self.frame(frames.IDLE, _json({"written_ns": monotonic}))

    def end(self) -> Drawn:
        """The closing mark."""
        return self.frame(frames.END, _json({"rows": self.written, "written_ns": 0}))

    def epoch(self) -> Drawn:
        """Forget all texts and shapes."""
        self._epoch, self._words, self._shapes, self._fresh = self._epoch + 1, {}, {}, True
        return self

    def rows(
        self,
        table: str,
        part: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        written_ns: int = 0,
        **constants: str | int,
    ) -> Drawn:
        """Rows of one shape, in one frame; a column that a row lacks is missing there."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        number = self._shape(table, part, columns, constants)
        encoded = b"".join(self._column([row.get(name) for row in rows], name) for name in columns)
        self._flush_words()
        head = frames.ROWS_HEAD.pack(number, self._epoch, len(rows), len(columns), self.written, written_ns)
        self.written += len(rows)
        return self.frame(frames.ROWS, head + encoded)

    def _shape(self, table: str, part: str, columns: list[str], constants: Mapping[str, Any]) -> int:
        key = (table, part, tuple(columns), json.dumps(constants, sort_keys=True))
        if key not in self._shapes:
            self._shapes[key] = len(self._shapes)
            shape = {"number": self._shapes[key], "table": table, "part": part, "columns": columns}
            self.frame(frames.SHAPE, _json(shape | {"constants": dict(constants)}))
        return self._shapes[key]

    def _number(self, text: str) -> int:
        if text not in self._words:
            self._words[text] = len(self._words)
            self._pending = [*getattr(self, "_pending", []), text]
        return self._words[text]

    def _flush_words(self) -> None:
        texts = [text.encode() for text in getattr(self, "_pending", [])]
        if texts or self._fresh:
            first = len(self._words) - len(texts)
            sizes = struct.pack(f"<{len(texts)}I", *map(len, texts))
            head = frames.WORDS_HEAD.pack(self._epoch, first, len(texts))
            self.frame(frames.WORDS, head + sizes + b"".join(texts))
        self._pending: list[str] = []
        self._fresh = False

    def _column(self, values: list[Any], name: str) -> bytes:
        """One column, in the kind that its values need."""
        if name == "members":
            return _head(frames.MEMBERS, self._members(values))
        present = {type(value) for value in values if value is not None}
        if not present:
            return _head(frames.NULL, b"")
        if present == {int}:
            kind = frames.INT if None not in values else frames.INT_NULL
            missing = [frames.MISSING_INT if value is None else value for value in values]
            return _head(kind, struct.pack(f"<{len(values)}q", *missing))
        if present == {float}:
            there = bytes(value is not None for value in values)
            return _head(
                frames.FLOAT, there + struct.pack(f"<{len(values)}d", *(value or 0.0 for value in values))
            )
        if present == {bool}:
            return _head(frames.BOOL, bytes(2 if value is None else value for value in values))
        assert present == {str}, present
        return _head(frames.TEXT, self._texts(values))

    def _texts(self, values: Iterable[str | None]) -> bytes:
        numbers = [-1 if value is None else self._number(value) for value in values]
        return struct.pack(f"<{len(numbers)}i", *numbers)

    def _members(self, values: list[Any]) -> bytes:
        lengths = [-1 if value is None else len(value) for value in values]
        members = list(itertools.chain.from_iterable(value for value in values if value is not None))
        columns = [[member.get(field) for member in members] for field in MEMBER]
        encoded = b"".join(self._column(column, field) for column, field in zip(columns, MEMBER, strict=True))
        return struct.pack(f"<{len(lengths)}i", *lengths) + encoded


def drawn_header(pid: int = 100, prefix: int = 5) -> dict[str, Any]:
    """A header of another machine."""
    return {
        "format": frames.FORMAT, "schema": VERSION, "kvtrace": "0", "run_id": "drawn", "pid": pid, "ppid": 1,
        "start_ticks": 1, "pid_namespace": "pid:[1]", "time_namespace": "time:[1]", "boot_id": BOOT,
        "host": "drawn-host", "start_ns": 1000, "anchor": list(ANCHOR), "anchor_source": "run",
        "prefix": prefix, "program": "drawn", "python": "3.11",
    }  # fmt: skip


def living_header() -> dict[str, Any]:
    """The fields of a header of this very process: its spool has not ended."""
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return {
        "pid": os.getpid(), "start_ticks": int(stat[19]), "host": socket.gethostname(),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "pid_namespace": str(Path("/proc/self/ns/pid").readlink()),
    }  # fmt: skip


def run_file(run: Path, **meta: Any) -> Path:
    """Make a run directory as whoever starts a recording does."""
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    (run / "run.json").write_text(json.dumps({"schema_version": VERSION, "run_id": "drawn", **meta}))
    return run


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _head(kind: int, content: bytes) -> bytes:
    return frames.COLUMN_HEAD.pack(kind, len(content)) + content
