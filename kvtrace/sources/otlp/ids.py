"""Trace and span ids: bytes or text in, one fixed-width byte matrix out, then hex text or numbers.

An id of zeros is no id (W3C Trace Context), so a row of zeros stands for an absent one.
Eight-byte trace ids (Zipkin, Jaeger) are padded on the left, as the B3 specification says.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

Matrix: TypeAlias = "np.ndarray[Any, Any]"

TRACE_BYTES = 16
SPAN_BYTES = 8
_HEX = np.frombuffer(bytes(range(256)).hex().encode(), dtype=np.uint8).reshape(256, 2)


def from_bytes(values: Sequence[bytes], width: int) -> tuple[Matrix, int]:
    """Matrix of ids (n x width) and how many had an impossible length; those are zeros in it."""
    joined = b"".join(values)
    if len(joined) == width * len(values) and all(len(value) == width for value in values):
        return np.frombuffer(joined, dtype=np.uint8).reshape(-1, width), 0
    matrix = np.zeros((len(values), width), dtype=np.uint8)
    malformed = 0
    for row, value in enumerate(values):
        if len(value) == width or (len(value) == SPAN_BYTES and width == TRACE_BYTES):
            matrix[row, width - len(value) :] = np.frombuffer(value, dtype=np.uint8)
        elif value:
            malformed += 1
    return matrix, malformed


def from_binary(array: Any, width: int) -> tuple[Matrix, int]:
    """The same from an Arrow column without nulls, without a Python loop when lengths are usual."""
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(offsets)
    usual = lengths == width
    if not (usual | (lengths == 0)).all():
        return from_bytes(array.to_pylist(), width)
    matrix = np.zeros((len(array), width), dtype=np.uint8)
    if usual.any():
        data = np.frombuffer(array.buffers()[2], dtype=np.uint8)[offsets[0] : offsets[-1]]
        matrix[usual] = data.reshape(-1, width)
    return matrix, 0


def from_text(values: Sequence[str | None], width: int) -> tuple[Matrix, int]:
    """The same from JSON: hex in either case, or base64 as ProtoJSON writers have it, told by length."""
    digits = [value or "" for value in values]
    try:
        joined = bytes.fromhex("".join(digits))
        lengths = np.fromiter(map(len, digits), dtype=np.int64, count=len(digits))
    except ValueError:
        return _one_by_one(digits, width)
    usual = lengths == 2 * width
    if not (usual | (lengths == 0)).all() or len(joined) != width * int(usual.sum()):
        return _one_by_one(digits, width)
    matrix = np.zeros((len(digits), width), dtype=np.uint8)
    matrix[usual] = np.frombuffer(joined, dtype=np.uint8).reshape(-1, width)
    return matrix, 0


def _one_by_one(digits: list[str], width: int) -> tuple[Matrix, int]:
    parsed = [parse(text) for text in digits]
    matrix, malformed = from_bytes([value or b"" for value in parsed], width)
    return matrix, malformed + sum(value is None for value in parsed)


def parse(text: str) -> bytes | None:
    """Bytes of one textual id; None when it is neither hex nor base64 of 8 or 16 bytes."""
    try:
        if len(text) in (2 * TRACE_BYTES, 2 * SPAN_BYTES):
            value = bytes.fromhex(text)
        else:
            padded = text.replace("-", "+").replace("_", "/").rstrip("=")
            value = base64.b64decode(padded + "=" * (-len(padded) % 4), validate=True)
    except (ValueError, binascii.Error):
        return None
    return value if len(value) in (0, SPAN_BYTES, TRACE_BYTES) else None


def hex_dictionary(matrix: Matrix) -> Any:
    """Lower-case hex of each row, "" for zeros, as a dictionary column: spans of a trace share it."""
    width = matrix.shape[1]
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(width), len(matrix), [None, pa.py_buffer(np.ascontiguousarray(matrix))]
    ).dictionary_encode()
    size = width * len(fixed.dictionary)
    different = np.frombuffer(fixed.dictionary.buffers()[1] or b"", np.uint8)[:size].reshape(-1, width)
    return pa.DictionaryArray.from_arrays(fixed.indices, hex_text(different))


def hex_text(matrix: Matrix) -> Any:
    """Lower-case hex of each row, "" for zeros."""
    present = matrix.any(axis=1)
    width = 2 * matrix.shape[1]
    offsets = np.zeros(len(matrix) + 1, dtype=np.int32)
    np.cumsum(present, out=offsets[1:])
    data = _HEX[matrix if present.all() else matrix[present]]
    buffers = pa.py_buffer(offsets * width), pa.py_buffer(data.tobytes())
    return pa.StringArray.from_buffers(len(matrix), *buffers)


def numbers(matrix: Matrix) -> Any:
    """Big-endian number of each row of eight bytes, null for zeros."""
    values = np.ascontiguousarray(matrix).view(">u8").reshape(-1).astype(np.uint64)
    return pa.array(values, pa.uint64(), mask=values == 0)
