"""The columns of a batch while dialects fill them, each for its own rows.

Three kinds, all of them plain arrays until the batch is whole: words (a code into a short list), text
(numbers among the attribute values), and numbers (with a mask of where they are known).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kvtrace.schema.tables import SPAN
from kvtrace.schema.vocabulary import CLOSED, REASONS
from kvtrace.sources.dialects.attributes import Attributes, Mask, Positions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.sources.otlp.batch import SpanBatch

ID_KIND = "id_kind"
"""A column of staged rows alone: whether request_id is the engine's internal one, an external one, or any."""
Numbers = npt.NDArray[np.int64]


@cache
def _types() -> dict[str, str]:
    return {column.name: column.type for column in SPAN}


class Columns:
    """One batch: its spans' own columns, and those that dialects add."""

    def __init__(self, batch: SpanBatch) -> None:
        self.batch = batch
        self.rows = batch.spans.num_rows
        self.resource = batch.spans["resource"].to_numpy()
        self.status_code = batch.spans["status_code"].to_numpy()
        self.attributes = Attributes(batch.attributes, self.rows)
        self._names, self._scopes = (_words(batch.spans[name]) for name in ("name", "scope"))
        end = batch.spans["end_ns"].to_numpy().astype(np.int64)
        everywhere = np.ones(self.rows, bool)
        self._words: dict[str, tuple[npt.NDArray[np.int32], list[str]]] = {}
        self._text: dict[str, Positions] = {}
        self._numbers: dict[str, tuple[Numbers, Mask]] = {
            "start_ns": (batch.spans["start_ns"].to_numpy().astype(np.int64), everywhere.copy()),
            "end_ns": (end, end != 0),
        }
        self._nested: dict[str, pa.Array] = {}
        self.refused: list[tuple[str, str, Mask, str]] = []

    def named(self, *wanted: str) -> Mask:
        """Spans with one of these names."""
        codes, names = self._names
        return np.array([*(name in wanted for name in names), False])[codes]

    def scoped(self, prefix: str) -> Mask:
        """Spans whose instrumentation scope begins so."""
        codes, scopes = self._scopes
        return np.array([*(scope.startswith(prefix) for scope in scopes), False])[codes]

    def number(self, column: str) -> tuple[Numbers, Mask]:
        """A number column as filled so far, and where it is known."""
        if column not in self._numbers:
            self._numbers[column] = (np.zeros(self.rows, np.int64), np.zeros(self.rows, bool))
        return self._numbers[column]

    def known(self, column: str) -> Mask:
        """Where a column of words or text is filled."""
        filled = np.zeros(self.rows, bool)
        if column in self._words:
            filled |= self._words[column][0] >= 0
        if column in self._text:
            filled |= self._text[column] >= 0
        return filled

    def is_word(self, column: str, word: str) -> Mask:
        """Where a column of words holds a word."""
        codes, words = self._words.get(column, (np.full(self.rows, -1, np.int32), []))
        return codes == words.index(word) if word in words else np.zeros(self.rows, bool)

    def put(self, column: str, word: str, mask: Mask) -> None:
        """Set a word for the rows of the mask."""
        codes, words = self._words.setdefault(column, (np.full(self.rows, -1, np.int32), []))
        if word not in words:
            words.append(word)
        codes[mask] = words.index(word)

    def put_words(self, column: str, words: Sequence[str | None], index: npt.NDArray[np.integer]) -> None:
        """Set a word for every row, by its number in a list (of resources); None leaves the row null."""
        codes, known = self._words.setdefault(column, (np.full(self.rows, -1, np.int32), []))
        known.extend(word for word in dict.fromkeys(words) if word is not None and word not in known)
        numbers = np.array([-1 if word is None else known.index(word) for word in words], np.int32)
        codes[:] = numbers[index]

    def put_numbers(self, column: str, values: Numbers, mask: Mask) -> None:
        """Set numbers for the rows of the mask."""
        current, known = self.number(column)
        current[mask] = values[mask]
        known |= mask

    def refuse(self, cause: str, op: str, mask: Mask, detail: str) -> None:
        """Note that something these spans say was not believed: a loss of an operation."""
        if mask.any():
            self.refused.append((cause, op, mask, detail))

    def put_nested(self, column: str, values: pa.Array) -> None:
        """Set members or found_by_tier for all rows."""
        self._nested[column] = values

    def take(self, attribute: str, column: str, mask: Mask) -> None:
        """Fill a column from an attribute; what does not fit its type or closed list stays an attribute."""
        if _types()[column] == "int64":
            values, valid = self.attributes.integers(attribute)
            fits = mask & valid
            self.put_numbers(column, values, fits)
        elif column in CLOSED or column == "reason":
            fits = self._take_words(attribute, column, mask)
        else:
            at = self.attributes.at(attribute)
            fits = mask & (at >= 0)
            current = self._text.setdefault(column, np.full(self.rows, -1, np.int32))
            current[fits] = at[fits]
        self.attributes.understood(attribute, fits)

    def _take_words(self, attribute: str, column: str, mask: Mask) -> Mask:
        """A word of a closed list; reasons depend on the operation."""
        fits = np.zeros(self.rows, bool)
        at = self.attributes.at(attribute)
        given = np.flatnonzero(mask & (at >= 0))
        found = self.attributes.strings(at[given])
        codes = found.indices.to_numpy(zero_copy_only=False)
        for number, word in enumerate(found.dictionary.to_pylist()):
            rows = given[codes == number]
            own = np.zeros(self.rows, bool)
            own[rows] = True
            if column == "reason":
                allowed = [op for op, reasons in REASONS.items() if word in reasons]
                own &= np.any([self.is_word("op", op) for op in allowed], axis=0) if allowed else False
            elif word not in CLOSED[column]:
                continue
            self.put(column, word, own)
            fits |= own
        return fits

    def table(self, schema: pa.Schema) -> pa.Table:
        """The columns that hold anything, in the order of a schema; the rest of the attributes among them."""
        spans = self.batch.spans
        given: dict[str, pa.Array] = {
            "name": spans["name"].combine_chunks(),
            "trace_id": _without_word(spans["trace_id"].combine_chunks(), ""),
            "span_id": spans["span_id"].combine_chunks(),
            "parent_span_id": spans["parent_span_id"].combine_chunks(),
            "attributes": self.attributes.rest(),
            **self._nested,
        }
        columns = {}
        for field in schema:
            values = given[field.name] if field.name in given else self._column(field.name)
            if values is not None and values.null_count < len(values):
                columns[field.name] = values
        return pa.table(columns)

    def _column(self, column: str) -> pa.Array | None:
        """Words, text or numbers as Arrow; None where nobody filled them."""
        if column in self._numbers:
            values, known = self._numbers[column]
            return pa.array(values, mask=~known)
        if column in self._text and column not in self._words:
            return self.attributes.strings(self._text[column])
        if column not in self._words:
            return None
        codes, words = self._words[column]
        found = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(words, pa.string()))
        if column in self._text:
            own = self._text[column]
            return pc.if_else(
                pa.array(own >= 0), self.attributes.strings(own).cast(pa.string()), found.cast(pa.string())
            ).dictionary_encode()
        return found


def _words(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], list[str]]:
    """A dictionary column without nulls as codes and its words."""
    values = column.combine_chunks()
    return values.indices.to_numpy(), values.dictionary.to_pylist()


def _without_word(values: pa.DictionaryArray, word: str) -> pa.DictionaryArray:
    """A dictionary column without nulls in which a word becomes null."""
    codes = values.indices.to_numpy()
    own = codes == pc.index(values.dictionary, word).as_py()
    return (
        pa.DictionaryArray.from_arrays(pa.array(codes, mask=own), values.dictionary) if own.any() else values
    )
