"""Attributes of JSON spans: each different one of a batch is decoded once.

    [{"key":"a","value":{..}},{"key":"b","value":{..}}][{"key":"a","value":{..}}]     the arrays of all spans
    ^                         ^                         ^
    cut here, before every `{"key":`; what lies between two cuts is an attribute and `,` or `][`

Inside a text that is valid JSON no string can hold `{"key":`: its quotes would be escaped. So every cut is
the begin of an object, and a piece that is one whole object (and separated as above) is one attribute. What
is written otherwise (value before key, indented, maps inside) is odd, and is decoded span by span.
"""

from __future__ import annotations

from collections import Counter
from secrets import randbits
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from kvtrace.sources.otlp import batch, ids, json_bodies, values

if TYPE_CHECKING:
    from collections.abc import Sequence

    import msgspec

_EMPTY = {b"", b"[]", b"null"}
_BEGIN = int.from_bytes(b'{"key":', "little")
_WIDTH = 8
_SEVEN_BYTES = np.uint64((1 << 56) - 1)
_BETWEEN = {b",", b", ", b"][", b"]"}
MISTAKES = (ValueError, TypeError, AttributeError, RecursionError, OverflowError)
"""What decoding raises where JSON is broken, or says what cannot be."""


class OddError(Exception):
    """Attributes that are not written as everybody writes them."""


def one_by_one(
    spans: Sequence[msgspec.Raw], gate: batch.Gate
) -> tuple[list[int], list[str], list[str | None]]:
    """How many attributes each span has, their names and their texts; what msgspec raises is not caught."""
    counts, keys, texts = [], [], []
    for raw in spans:
        own = json_bodies.LIST.decode(raw) if len(raw) else None
        counts.append(len(own or ()))
        for item in own or ():
            keys.append(item.key or "")
            texts.append(_text(item.value, 1, gate))
    return counts, keys, texts


def all_at_once(spans: Sequence[msgspec.Raw], gate: batch.Gate) -> batch.Attributes:
    """The attributes of all spans.

    Raises:
        OddError: some are odd, or wrong.
    """
    lengths = np.fromiter(map(len, spans), np.int64, len(spans))
    short = np.flatnonzero(lengths < _WIDTH)
    if any(bytes(spans[row]) not in _EMPTY for row in short.tolist()):
        raise OddError
    whole = b"".join([raw for raw in spans if len(raw) >= _WIDTH] if short.size else spans)
    lengths[short] = 0
    starts = _starts(whole)
    ends = np.cumsum(lengths)
    first = np.searchsorted(starts, ends - lengths)
    given = lengths > 0
    edges = np.append(starts, len(whole)).astype(np.int32)
    if not np.array_equal(edges[first[given]], (ends - lengths)[given] + 1):
        raise OddError  # an array that begins with anything but an attribute
    counts = np.diff(np.append(first, starts.size))
    offsets = pa.py_buffer(edges)
    pieces = pa.Array.from_buffers(pa.binary(), starts.size, [None, offsets, pa.py_buffer(whole)])
    rows = np.repeat(np.arange(lengths.size, dtype=np.int32), counts)
    encoded = pieces.dictionary_encode()
    times = np.bincount(encoded.indices.to_numpy(), minlength=len(encoded.dictionary))
    keys, texts = _decoded(encoded.dictionary.to_pylist(), times.tolist(), gate)
    return batch.Attributes(rows, batch.for_each(encoded, keys), batch.for_each(encoded, texts))


def _starts(whole: bytes) -> ids.Matrix:
    """Where an attribute begins."""
    if len(whole) < _WIDTH:
        return np.empty(0, np.int64)
    brackets = np.flatnonzero(np.frombuffer(whole, np.uint8)[: 1 - _WIDTH] == ord("{"))
    eights = np.ndarray((len(whole) + 1 - _WIDTH,), "<u8", whole, strides=(1,))
    return brackets[(eights[brackets] & _SEVEN_BYTES) == _BEGIN]


def _decoded(pieces: list[bytes], times: list[int], gate: batch.Gate) -> tuple[batch.Column, batch.Column]:
    """Names and texts of the pieces; content inside of one is dropped as often as the whole occurs."""
    bare = [piece.rstrip(b"[], ") for piece in pieces]
    if not {piece[len(own) :] for piece, own in zip(pieces, bare, strict=True)} <= _BETWEEN:
        raise OddError
    try:
        # a number that no input knows between two: a piece that is not whole swallows it, several lack it
        mark = randbits(60)
        found = json_bodies.SEPARATED.decode(b"[" + (b",%d," % mark).join(bare) + b"]")
        items = [item for item in found[::2] if not isinstance(item, int)]
        if len(items) != len(pieces) or set(found[1::2]) - {mark}:
            raise OddError
        texts = [
            value.string_value
            if (value := item.value) is not None and value.string_value.__class__ is str
            else repr(value.double_value)
            if value is not None and value.string_value is value.int_value is None is not value.double_value
            else _text(value, count, gate)
            for item, count in zip(items, times, strict=True)
        ]
    except MISTAKES as error:
        raise OddError from error
    keys = pa.array([item.key or "" for item in items], pa.string())
    return keys.dictionary_encode(), pa.array(texts, pa.string()).dictionary_encode()


def _text(value: json_bodies.AnyValue | None, times: int, gate: batch.Gate) -> str | None:
    """The text of a value that occurs several times."""
    if value is None or (len(value.array_value) == len(value.kvlist_value) == len(b"null")):
        return values.text(json_bodies.plain(value, gate))
    inside = batch.Gate(gate.keep, Counter())
    found = values.text(json_bodies.plain(value, inside))
    for name, dropped in inside.dropped.items():
        gate.dropped[name] += dropped * times
    return found
