"""The interned texts of one epoch of a spool, growing as WORDS frames arrive."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kvtrace.schema.frames import MAX_TEXTS, WORDS_HEAD
from kvtrace.sources.spool.damage import NonsenseError

_FIRST_TEXTS = 1024
_FIRST_BYTES = 64 * 1024


class Texts:
    """Number -> text. What was lost with a damaged frame is a hole, and no row may use it."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.size = 0
        self._holes: list[tuple[int, int]] = []
        self._bytes = 0
        self._offsets = np.zeros(_FIRST_TEXTS, np.int64)
        self._data = np.empty(_FIRST_BYTES, np.uint8)

    def add(self, first: int, lengths: npt.NDArray[np.uint32], data: memoryview) -> None:
        """Append texts whose numbers begin at `first`.

        Raises:
            NonsenseError: lengths and bytes do not agree, the texts are no UTF-8, or a number is given twice.
        """
        offsets = np.zeros(lengths.size + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if first < self.size or first + lengths.size > MAX_TEXTS or offsets[-1] != len(data):
            raise NonsenseError("texts")
        piece = pa.LargeStringArray.from_buffers(lengths.size, pa.py_buffer(offsets), pa.py_buffer(data))
        try:
            piece.validate(full=True)
        except pa.ArrowInvalid as error:
            raise NonsenseError("texts") from error
        if first > self.size:
            self._holes.append((self.size, first))
            self._grow(np.full(first - self.size, self._bytes, np.int64), memoryview(b""))
        self._grow(offsets[1:] + self._bytes, data)

    def _grow(self, ends: npt.NDArray[np.int64], data: memoryview) -> None:
        size, filled = self.size + ends.size, self._bytes + len(data)
        # Arrays handed out earlier keep the old memory; what they see of the new one never changes.
        if size >= self._offsets.size:
            self._offsets = np.concatenate((self._offsets[: self.size + 1], np.zeros(2 * size, np.int64)))
        if filled > self._data.size:
            self._data = np.concatenate((self._data[: self._bytes], np.empty(2 * filled, np.uint8)))
        self._offsets[self.size + 1 : size + 1] = ends
        self._data[self._bytes : filled] = np.frombuffer(data, np.uint8)
        self.size, self._bytes = size, filled

    def knows(self, numbers: npt.NDArray[np.int32]) -> bool:
        """Whether each number is that of a text, or -1."""
        if not numbers.size:
            return True
        if int(numbers.min()) < -1 or int(numbers.max()) >= self.size:
            return False
        return not any(((numbers >= start) & (numbers < end)).any() for start, end in self._holes)

    def take(self, numbers: npt.NDArray[np.int32]) -> pa.Array:
        """The texts of some numbers, in their order."""
        whole = pa.LargeStringArray.from_buffers(
            self.size, pa.py_buffer(self._offsets), pa.py_buffer(self._data)
        )
        return whole.take(pa.array(numbers)).cast(pa.string())

    def dictionary(self, numbers: npt.NDArray[np.int32]) -> pa.DictionaryArray:
        """The same as a dictionary array of the texts that occur; -1 becomes null."""
        missing = numbers < 0
        indices: npt.NDArray[np.int32]
        if self.size > 8 * numbers.size:
            found, inverse = np.unique(numbers, return_inverse=True)
            indices = inverse.astype(np.int32)
            if found.size and found[0] < 0:
                found, indices = found[1:], indices - np.int32(1)
        else:
            used = np.zeros(self.size + 1, bool)
            used[numbers] = True  # -1 is the last
            used[-1] = False
            found = np.flatnonzero(used).astype(np.int32)
            indices = (np.cumsum(used, dtype=np.int32) - 1)[numbers]
        mask = missing if missing.any() else None
        indices = np.maximum(indices, 0) if mask is not None else indices
        return pa.DictionaryArray.from_arrays(pa.array(indices, mask=mask), self.take(found), safe=False)


def read_words(payload: memoryview) -> tuple[int, int, npt.NDArray[np.uint32], memoryview]:
    """(epoch, first number, lengths in bytes, the texts) of a WORDS frame.

    Raises:
        NonsenseError: it is shorter than it says.
    """
    if len(payload) < WORDS_HEAD.size:
        raise NonsenseError("texts")
    epoch, first, count = WORDS_HEAD.unpack_from(payload)
    at = WORDS_HEAD.size + 4 * count
    if at > len(payload):
        raise NonsenseError("texts")
    return epoch, first, np.frombuffer(payload[WORDS_HEAD.size : at], "<u4"), payload[at:]
