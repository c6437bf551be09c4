"""Rows of one shape -> the payload of a ROWS frame (schema/frames.py draws it).

Every step is one C call over a whole column, so that the engine's interpreter is held for microseconds.
"""

from __future__ import annotations

from array import array

from kvtrace.schema.frames import (
    BOOL,
    COLUMN_HEAD,
    CUT,
    FLOAT,
    INT,
    INT_NULL,
    MAX_MEMBERS,
    MAX_TEXT,
    MEMBERS,
    MISSING_INT,
    MIXED,
    MIXED_BOOL,
    MIXED_FLOAT,
    MIXED_INT,
    MIXED_NULL,
    MIXED_TEXT,
    NULL,
    ROWS_HEAD,
    TEXT,
    WORDS,
    WORDS_HEAD,
    frame,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

EPOCH_TEXTS = 16_384
EPOCH_CHARACTERS = 8 << 20
"""An epoch of the string table ends at the first frame after so many texts or characters."""
_NONE = type(None)
_INTS, _FLOATS, _BOOLS, _TEXTS = {int}, {float}, {bool}, {str}


class UnencodableError(ValueError):
    """A row holds what no column can: it is counted, and the others are written."""


class Texts(dict):  # type: ignore[type-arg]
    """Text -> its number in this epoch. A miss gives the next number and remembers the text as fresh."""

    __slots__ = ("characters", "cut", "epoch", "fresh")

    def __init__(self) -> None:
        self.epoch = 0
        self.cut = 0
        self.fresh: list[str] = []
        self.characters = 0
        self[None] = -1

    def __missing__(self, text: object) -> int:
        if type(text) is not str:
            if not isinstance(text, str):
                raise UnencodableError("no text")
            return self[str.__str__(text)]
        if len(text) > MAX_TEXT:
            self.cut += 1
            return self[text[: MAX_TEXT - len(CUT)] + CUT]
        number = len(self) - 1
        self[text] = number
        self.fresh.append(text)
        self.characters += len(text)
        return number

    def full(self) -> bool:
        """Whether the next frame should begin a new epoch."""
        return len(self) > EPOCH_TEXTS or self.characters > EPOCH_CHARACTERS

    def next_epoch(self) -> None:
        """Forget every text."""
        self.clear()
        self.fresh.clear()
        self.characters = 0
        self.epoch += 1
        self[None] = -1

    def frame(self) -> bytes:
        """The WORDS frame of what is fresh, if anything is."""
        fresh = self.fresh
        if not fresh:
            return b""
        # A lone surrogate has no UTF-8: it is written as the six characters \udcXX.
        encoded = [text.encode("utf-8", "backslashreplace") for text in fresh]
        head = WORDS_HEAD.pack(self.epoch, len(self) - 1 - len(fresh), len(fresh))
        payload = head + _bytes("I", map(len, encoded)) + b"".join(encoded)
        fresh.clear()
        return frame(WORDS, payload)


def rows_payload(
    shape: int,
    columns: tuple[str, ...],
    rows: Sequence[tuple[object, ...]],
    texts: Texts,
    first_row: int,
    now: int,
) -> bytes:
    """The payload of a ROWS frame; the rows begin with their shape.

    Raises:
        UnencodableError, ValueError, TypeError: some row cannot be written; `encodable` says which.
    """
    width = len(columns) + 1
    values = tuple(zip(*rows, strict=True))
    if len(values) != width:
        raise UnencodableError(f"{len(values) - 1} values for {len(columns)} columns")
    parts = [ROWS_HEAD.pack(shape, texts.epoch, len(rows), width - 1, first_row, now)]
    for name, column in zip(columns, values[1:], strict=True):
        if name == "members":
            _put(parts, MEMBERS, _members(column, texts))
        else:
            _put(parts, *_column(column, texts, name[:11] == "attributes."))
    return b"".join(parts)


def encodable(columns: tuple[str, ...], row: object) -> bool:
    """Whether this row can be written, found by trying."""
    try:
        rows_payload(0, columns, [row], Texts(), 0, 0)  # type: ignore[list-item]
    except Exception:  # noqa: BLE001 - whatever a foreign value raises, the row cannot be written
        return False
    return True


def _put(parts: list[bytes], kind: int, data: bytes) -> None:
    parts.append(COLUMN_HEAD.pack(kind, len(data)))
    parts.append(data)


def _bytes(code: str, values: object) -> bytes:
    return array(code, values).tobytes()  # type: ignore[call-overload]


def _column(values: tuple[object, ...], texts: Texts, exact: bool) -> tuple[int, bytes]:  # noqa: FBT001
    """One column. The first value tells what to try; what fails is looked at type by type.

    `exact`: in attributes, True is not 1.
    """
    first = type(values[0])
    try:
        if first is str:
            one = values[0]
            if values[-1] is one and values.count(one) == len(values):  # often one text in all rows
                return TEXT, _bytes("i", (texts[one],)) * len(values)
            return TEXT, _bytes("i", list(map(texts.__getitem__, values)))
        if first is int and not exact:
            return INT, _bytes("q", values)
        if first is _NONE and values.count(None) == len(values):
            return NULL, b""
    except (TypeError, OverflowError, UnencodableError):
        pass
    return _by_types(values, texts)


def _by_types(values: tuple[object, ...], texts: Texts) -> tuple[int, bytes]:
    types = set(map(type, values))
    missing = _NONE in types
    types.discard(_NONE)
    if types == _TEXTS:
        return TEXT, _bytes("i", list(map(texts.__getitem__, values)))
    if types == _INTS and MISSING_INT not in values:
        try:
            if not missing:
                return INT, _bytes("q", values)
            return INT_NULL, _bytes("q", [MISSING_INT if value is None else value for value in values])
        except OverflowError:
            return MIXED, _mixed(values, texts)
    if types == _FLOATS:
        present = bytes([value is not None for value in values])
        return FLOAT, present + _bytes("d", [0.0 if value is None else value for value in values])
    if types == _BOOLS:
        return BOOL, bytes([2 if value is None else value for value in values])  # type: ignore[misc]
    return MIXED, _mixed(values, texts)


def _mixed(values: tuple[object, ...], texts: Texts) -> bytes:
    """Values of several types, one by one."""
    codes = bytearray()
    numbers = []
    for value in values:
        code, text = _as_text(value)
        codes.append(code)
        numbers.append(texts[text])
    return bytes(codes) + _bytes("i", numbers)


def _as_text(value: object) -> tuple[int, str | None]:
    if value is None:
        return MIXED_NULL, None
    if isinstance(value, bool):
        return MIXED_BOOL, "true" if value else "false"
    if isinstance(value, int):
        return MIXED_INT, int.__repr__(value)
    if isinstance(value, float):
        return MIXED_FLOAT, float.__repr__(value)
    if isinstance(value, str):
        return MIXED_TEXT, value
    try:
        return MIXED_INT, int.__repr__(value.__index__())  # type: ignore[attr-defined]
    except AttributeError:
        # No repr of a foreign object: it may hold a prompt.
        raise UnencodableError(f"a value of type {type(value).__name__}") from None


def _members(values: tuple[Any, ...], texts: Texts) -> bytes:
    lengths: list[int] = []
    flat: tuple[list[object], ...] = ([], [], [], [], [])
    ids, phases, scheduled, output, before = flat
    for value in values:
        if value is None:
            lengths.append(-1)
            continue
        a, b, c, d, e = value
        size = len(a)
        if not (size == len(b) == len(c) == len(d) == len(e)):
            raise UnencodableError("members of unequal length")
        lengths.append(size)
        ids.extend(a)
        phases.extend(b)
        scheduled.extend(c)
        output.extend(d)
        before.extend(e)
    if len(ids) > MAX_MEMBERS:
        raise UnencodableError("too many members")
    parts = [_bytes("i", lengths)]
    for column in flat:
        _put(parts, *(_column(tuple(column), texts, False) if column else (NULL, b"")))  # noqa: FBT003
    return b"".join(parts)
