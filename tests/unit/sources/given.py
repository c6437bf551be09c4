"""Gives lines to a decoder that reads from a stream, and shows what came of them as plain rows."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from kvtrace.sources.decoded import Options
from kvtrace.sources.stream import open_input

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.sources.decoded import Format
    from kvtrace.sources.losses import Loss
    from kvtrace.sources.stream import Stream, Undecodable


@dataclass
class Bytes:
    """A stream of bytes that are there already, in pieces of any size."""

    content: bytes
    piece: int = 1 << 20
    losses: list[Undecodable] = field(default_factory=list)

    def peek(self, size: int) -> bytes:
        return self.content[:size]

    def read(self) -> bytes:
        found, self.content = self.content[: self.piece], self.content[self.piece :]
        return found


@dataclass
class Found:
    """All parts of an input as one; rows without what is null in them."""

    rows: dict[str, list[dict[str, Any]]]
    losses: list[Loss]
    content: dict[str, int]
    notes: list[str]
    parts: int

    def table(self, name: str, **wanted: Any) -> list[dict[str, Any]]:
        """Rows of a table with these values."""
        return [
            row
            for row in self.rows.get(name, [])
            if all(row.get(column) == value for column, value in wanted.items())
        ]

    def lost(self) -> dict[str, int]:
        return {loss.cause: sum(each.count for each in self.losses if each.cause == loss.cause)
                for loss in self.losses}  # fmt: skip


def decoded(module: object, content: bytes, *, piece: int = 1 << 20) -> Found:
    """What a decoder makes of bytes."""
    return _together(cast("Format", module), cast("Stream", Bytes(content, piece)), "given")


def given(module: object, *records: Any) -> Found:
    """What a decoder makes of JSON lines."""
    return decoded(module, b"".join(json.dumps(record).encode() + b"\n" for record in records))


def recorded(module: object, path: Path) -> Found:
    """What a decoder makes of a file."""
    with open_input(path) as stream:
        return _together(cast("Format", module), stream, path.name)


def _together(module: Format, stream: Stream, source: str) -> Found:
    found = Found({}, [], {}, [], 0)
    for part in module.read(stream, source, Options()):
        for table, frame in part.tables.items():
            known = [
                {name: value for name, value in row.items() if value is not None} for row in frame.to_dicts()
            ]
            found.rows.setdefault(table, []).extend(known)
        for name, count in part.content.items():
            found.content[name] = found.content.get(name, 0) + count
        found.losses += part.losses
        found.notes += part.notes
        found.parts += 1
    return found
