"""Reads a spool: bytes -> frames -> Arrow tables, from any offset, also while it grows.

    reader = SpoolReader(path)
    frames = list(reader.frames(from_offset))      what is whole now; ask again when the file has grown
    for batch in together(frames): batch.columns   one table a shape, cheap a row

    |header|shape|words|rows|words|rows|xxxxxxxx|rows|wor
     └ whole frames ───────────────────┘ damaged └──┘ torn: reader.torn bytes, no frame yet

Damage costs the frames it hits and those that need what they defined: `damaged` and `undecodable` frames say
so. A shape or text that an earlier damage took is never guessed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.schema import frames as layout
from kvtrace.schema.tables import TABLES
from kvtrace.sources.spool.damage import NonsenseError
from kvtrace.sources.spool.frame import Batch, Frame, Shape, together
from kvtrace.sources.spool.source import Source
from kvtrace.sources.spool.texts import Texts, read_words
from kvtrace.sources.spool.values import read_column

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DAMAGED", "UNDECODABLE", "Batch", "Frame", "Shape", "SpoolReader", "together"]

DAMAGED, UNDECODABLE = "damaged", "undecodable"
_HEAD = layout.FRAME_HEAD.size
_DEFINING = {layout.HEADER, layout.SHAPE, layout.WORDS}


class SpoolReader:
    """Frames of one spool; keeps its shapes and the texts of the current epoch between calls."""

    def __init__(self, source: Path | str | bytes | memoryview) -> None:
        self._source = Source(source if not isinstance(source, str) else Path(source))
        self._forget()

    def _forget(self) -> None:
        self.position = 0
        """Everything before it was read; the next frame begins here."""
        self.torn = 0
        """Bytes behind `position` at the end of the file that are no whole frame (yet)."""
        self.header: dict[str, Any] | None = None
        self._shapes: dict[int, Shape] = {}
        self._texts: Texts | None = None

    def frames(self, from_offset: int = 0, *, most_bytes: int | None = None) -> Iterator[Frame]:
        """Every whole frame from an offset at which one begins; definitions are taken in and not shown.

        Stops behind the first frame that ends `most_bytes` or more after `from_offset`. Going back reads from
        the beginning again, which looks at definitions only.
        """
        if from_offset < self.position:
            self._forget()
        size = self._source.size()
        self.torn = 0
        while self.position < size and (most_bytes is None or self.position - from_offset < most_bytes):
            found = self._next(size, skip=self.position < from_offset)
            if found is None:
                self.torn = size - self.position
                return
            self.position = found.end
            if found.kind and found.start >= from_offset:
                yield found

    def _next(self, size: int, *, skip: bool) -> Frame | None:
        """The frame at the position, or what there is instead; None when nothing is whole from here on."""
        start = self.position
        head = self._head(start, size)
        if head is None:
            return self._behind_damage(start, size)
        kind, length, checksum = head
        end = start + _HEAD + length
        if skip and kind not in _DEFINING and (end == size or self._is_magic(end)):
            return Frame("", start, end)
        payload = self._source.view(start + _HEAD, length)
        if layout.checksum(kind, payload) != checksum:
            return self._behind_damage(start, size)
        try:
            return self._decoded(kind, payload, start, end)
        except (NonsenseError, ValueError, KeyError, TypeError, RecursionError):
            rows = layout.ROWS_HEAD.unpack_from(payload)[2] if self._is_rows(kind, payload) else 0
            return Frame(UNDECODABLE, start, end, rows=rows)

    def _head(self, at: int, size: int) -> tuple[int, int, int] | None:
        """(kind, length, checksum) of the frame that begins here, if one does and is whole."""
        if at + _HEAD > size:
            return None
        head = self._source.view(at, _HEAD)
        if len(head) < _HEAD:  # it became shorter since: a writer on a full disk takes half a frame back
            return None
        magic, kind, length, checksum = layout.FRAME_HEAD.unpack(head)
        if magic != layout.MAGIC or length > layout.MAX_PAYLOAD_BYTES or at + _HEAD + length > size:
            return None
        return kind, length, checksum

    def _is_magic(self, at: int) -> bool:
        return self._source.view(at, len(layout.MAGIC)) == layout.MAGIC

    def _behind_damage(self, start: int, size: int) -> Frame | None:
        """The bytes up to the next frame whose checksum is right."""
        at = self._source.find(layout.MAGIC, start + 1)
        while at is not None:
            head = self._head(at, size)
            if head is not None:
                kind, length, checksum = head
                if layout.checksum(kind, self._source.view(at + _HEAD, length)) == checksum:
                    return Frame(DAMAGED, start, at)
            at = self._source.find(layout.MAGIC, at + 1)
        return None

    @staticmethod
    def _is_rows(kind: int, payload: memoryview) -> bool:
        return kind == layout.ROWS and len(payload) >= layout.ROWS_HEAD.size

    def _decoded(self, kind: int, payload: memoryview, start: int, end: int) -> Frame:
        if kind == layout.ROWS:
            return self._rows(payload, start, end)
        if kind == layout.WORDS:
            self._add_words(payload)
            return Frame("", start, end)
        if kind == layout.ANCHOR:
            if len(payload) != layout.ANCHOR_PAIR.size:
                raise NonsenseError("anchor")
            return Frame("anchor", start, end, content=layout.ANCHOR_PAIR.unpack(payload))
        content = json.loads(bytes(payload))
        if not isinstance(content, dict):
            raise NonsenseError("no object")
        if kind == layout.SHAPE:
            number, shape = _whole_number(content["number"]), _shape(content)
            if self._shapes.get(number) != shape:  # every epoch says it again
                self._shapes[number] = shape
            return Frame("", start, end)
        if kind == layout.HEADER:
            self.header = content
        return Frame(layout.KINDS[kind], start, end, content=content)

    def _add_words(self, payload: memoryview) -> None:
        epoch, first, lengths, data = read_words(payload)
        if self._texts is None or self._texts.epoch != epoch:
            self._texts = Texts(epoch)
        self._texts.add(first, lengths, data)

    def _rows(self, payload: memoryview, start: int, end: int) -> Frame:
        if len(payload) < layout.ROWS_HEAD.size:
            raise NonsenseError("rows")
        number, epoch, rows, width, first_row, written_ns = layout.ROWS_HEAD.unpack_from(payload)
        shape = self._shapes[number]
        if width != len(shape.names) or rows > layout.MAX_ROWS or first_row > 1 << 62:
            raise NonsenseError("columns")
        texts = self._texts if self._texts is not None and self._texts.epoch == epoch else None
        columns = []
        at = layout.ROWS_HEAD.size
        for name in shape.names:
            if at + layout.COLUMN_HEAD.size > len(payload):
                raise NonsenseError("columns")
            kind, length = layout.COLUMN_HEAD.unpack_from(payload, at)
            at += layout.COLUMN_HEAD.size
            if at + length > len(payload) or (kind == layout.MEMBERS) != (name == "members"):
                raise NonsenseError("columns")
            columns.append(read_column(kind, payload[at : at + length], rows, texts))
            at += length
        if at != len(payload):
            raise NonsenseError("columns")
        return Frame(
            "rows", start, end, rows=rows, first_row=first_row, written_ns=written_ns,
            shape=shape, texts=texts, raw=tuple(columns),
        )  # fmt: skip


def _whole_number(value: object) -> int:
    if not isinstance(value, int):
        raise NonsenseError("number of a shape")
    return value


def _shape(content: dict[str, Any]) -> Shape:
    """What a SHAPE frame says, checked."""
    names, constants = tuple(content["columns"]), dict(content["constants"])
    fine = (
        content["table"] in TABLES
        and content["part"] in layout.PARTS
        and all(isinstance(name, str) for name in (*names, *constants))
        and all(isinstance(value, str | int) for value in constants.values())
        and len({*names, *constants}) == len(names) + len(constants)
    )
    if not fine:
        raise NonsenseError("shape")
    return Shape(content["table"], content["part"], names, constants)
