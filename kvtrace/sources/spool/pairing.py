"""Facts about operations that last -> one row an operation, when its close has come.

    open    span 7: request, start 10 ─┐
    update  span 7: gpu_hit 128        ├─► one row: a later fact that is not null wins, open before
    close   span 7: end 90, status ok ─┘   updates before close, and among equals as they were written

What is not closed waits, a chunk a pass and shape; chunks of one shape are merged as their sizes double, so
that a million open requests cost a pass no more than a search for those that it closes. Columns are of
the types of the run (rows.py); no loop goes over rows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Numbers = npt.NDArray[np.int64]
Ids = npt.NDArray[np.uint64]
KINDS: tuple[str, ...] = ("open", "update", "close")
OPEN, UPDATE, CLOSE = range(3)
_SEQUENCE, _KIND = "\x00sequence", "\x00kind"
"""Columns of waiting parts on disk: when each was written, and what it is."""


@dataclass(frozen=True)
class Part:
    """Rows of one shape: their columns, `span_id` among them, and the order in which they were written."""

    kind: int
    rows: pa.Table
    sequence: Numbers

    @property
    def shape(self) -> tuple[int, tuple[str, ...]]:
        """What the rows of mergeable chunks have in common."""
        return self.kind, tuple(self.rows.column_names)


class _Chunk:
    """Waiting parts of one shape sorted by operation; those taken out are struck off, then left behind."""

    def __init__(self, part: Part) -> None:
        ids = part.rows["span_id"].to_numpy()
        if np.any(ids[1:] < ids[:-1]):
            order = np.argsort(ids, kind="stable")
            part = Part(part.kind, part.rows.take(pa.array(order)), part.sequence[order])
            ids = ids[order]
        self.part = part
        self.ids: Ids = ids
        self.waiting = np.ones(ids.size, bool)
        self.left = ids.size

    def at(self, wanted: Ids) -> npt.NDArray[np.int64]:
        """Places of the waiting parts of some operations (sorted, each once)."""
        low, high = np.searchsorted(self.ids, wanted), np.searchsorted(self.ids, wanted, side="right")
        counts = high - low
        starts = np.repeat(low - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
        places = starts + np.arange(int(counts.sum()))
        return places[self.waiting[places]]

    def take(self, wanted: Ids) -> Part | None:
        """Take the parts of some operations out."""
        places = self.at(wanted)
        if not places.size:
            return None
        self.waiting[places] = False
        self.left -= places.size
        return Part(self.part.kind, self.part.rows.take(pa.array(places)), self.part.sequence[places])

    def rest(self) -> Part:
        """What still waits."""
        if self.left == self.ids.size:
            return self.part
        return Part(
            self.part.kind, self.part.rows.filter(pa.array(self.waiting)), self.part.sequence[self.waiting]
        )


class Pairing:
    """The operations of one spool that are not finished."""

    def __init__(self) -> None:
        self._chunks: dict[tuple[int, tuple[str, ...]], list[_Chunk]] = {}

    def add(self, parts: Iterable[Part]) -> pa.Table | None:
        """Take the parts of a pass; returns the operations that are finished now.

        A close that comes before its open (two threads wrote them) waits for it.
        """
        for part in parts:
            self._keep(_Chunk(part))
        ready = self._known(OPEN, self._ids(CLOSE))
        return self._merged(ready) if ready.size else None

    def end(self) -> tuple[pa.Table | None, pa.Table | None]:
        """The spool has ended: what never closed, and parts of operations whose open never came."""
        opened = self._ids(OPEN)
        rows = self._merged(opened) if opened.size else None
        parts = [chunk.rest() for chunks in self._chunks.values() for chunk in chunks if chunk.left]
        self._chunks = {}
        return rows, combined(parts) if parts else None

    @property
    def waiting(self) -> int:
        """How many parts wait."""
        return sum(chunk.left for chunks in self._chunks.values() for chunk in chunks)

    def table(self) -> pa.Table:
        """All that waits, to be kept on disk."""
        parts = [chunk.rest() for chunks in self._chunks.values() for chunk in chunks if chunk.left]
        marked = [
            part.rows.append_column(_SEQUENCE, pa.array(part.sequence)).append_column(
                _KIND, pa.array(np.full(part.rows.num_rows, part.kind, np.int8))
            )
            for part in parts
        ]
        return pa.concat_tables(marked, promote_options="default") if marked else pa.table({})

    def restore(self, table: pa.Table) -> None:
        """Take back what table() gave."""
        for kind in range(len(KINDS)) if table.num_rows else ():
            rows = table.filter(pc.equal(table[_KIND], kind))
            if rows.num_rows:
                sequence = rows[_SEQUENCE].to_numpy()
                own = rows.drop_columns([_SEQUENCE, _KIND])
                named = [name for name in own.column_names if own[name].null_count < own.num_rows]
                self._keep(_Chunk(Part(kind, own.select(named), sequence)))

    def _keep(self, chunk: _Chunk) -> None:
        """Add a chunk, merged with its predecessors as long as they are not much larger."""
        chunks = self._chunks.setdefault(chunk.part.shape, [])
        chunks.append(chunk)
        while len(chunks) > 1 and chunks[-2].left <= 2 * chunks[-1].left:
            last, before = chunks.pop(), chunks.pop()
            rest = [found.rest() for found in (before, last) if found.left]
            if rest:
                rows = concatenated([part.rows for part in rest])
                sequence = np.concatenate([part.sequence for part in rest])
                chunks.append(_Chunk(_once(Part(last.part.kind, rows, sequence))))

    def _ids(self, kind: int) -> Ids:
        """Operations of which a part of this kind waits, sorted, each once."""
        own = [c.ids[c.waiting] for key, chunks in self._chunks.items() if key[0] == kind for c in chunks]
        return _distinct(own)

    def _known(self, kind: int, wanted: Ids) -> Ids:
        """Those of some operations of which a part of this kind waits."""
        own = [c.ids[c.at(wanted)] for key, chunks in self._chunks.items() if key[0] == kind for c in chunks]
        return _distinct(own)

    def _merged(self, wanted: Ids) -> pa.Table:
        """Take operations out and make one row of each."""
        parts = []
        for key, chunks in list(self._chunks.items()):
            parts += [part for chunk in chunks if (part := chunk.take(wanted)) is not None]
            self._chunks[key] = [chunk for chunk in chunks if chunk.left]
        return combined(parts)


def _distinct(ids: Sequence[Ids]) -> Ids:
    """Operations of several sorted lists, sorted, each once."""
    if not ids:
        return np.empty(0, np.uint64)
    whole = ids[0] if len(ids) == 1 else np.sort(np.concatenate(ids), kind="stable")
    return whole[np.append(True, whole[1:] != whole[:-1])] if whole.size else whole


def concatenated(tables: list[pa.Table]) -> pa.Table:
    """Tables under each other, one chunk a column and one dictionary a column of words."""
    whole = pa.concat_tables(tables, promote_options="default")
    return whole.unify_dictionaries().combine_chunks()


def _once(part: Part) -> Part:
    """Updates that one operation got again and again are kept as one."""
    if part.kind != UPDATE:
        return part
    rows = combined([part])
    if rows.num_rows == part.rows.num_rows:
        return part
    order = np.lexsort((part.sequence, part.rows["span_id"].to_numpy()))
    ids = part.rows["span_id"].to_numpy()[order]
    last = np.flatnonzero(np.append(ids[1:] != ids[:-1], True))
    return Part(part.kind, rows, part.sequence[order][last])


def combined(parts: Sequence[Part]) -> pa.Table:
    """One row an operation: of every column the last value that is not null."""
    rows = concatenated([part.rows for part in parts])
    kinds = np.repeat([part.kind for part in parts], [part.rows.num_rows for part in parts])
    ids = rows["span_id"].to_numpy()
    order = np.lexsort((np.concatenate([part.sequence for part in parts]), kinds, ids))
    starts = np.flatnonzero(np.append(True, np.diff(ids[order].view(np.int64)) != 0)) if ids.size else order
    return pa.table({name: _last(rows[name], order, starts) for name in rows.column_names})


def _last(values: pa.ChunkedArray, order: Numbers, starts: Numbers) -> pa.ChunkedArray:
    """The last value of each group that is not null; null where all are."""
    if values.null_count == 0:
        return values.take(pa.array(order[np.append(starts[1:], order.size) - 1]))
    valid = values.is_valid().to_numpy()[order]
    last = np.maximum.reduceat(np.where(valid, np.arange(order.size), -1), starts)
    return values.take(pa.array(order[last], mask=last < 0))


def merged_ops(rows: pa.Table) -> Counter[str | None]:
    """How many rows of each operation there are."""
    if "op" not in rows.column_names:
        return Counter({None: rows.num_rows})
    counted = rows["op"].cast(pa.string()).value_counts()
    return Counter({entry["values"]: entry["counts"] for entry in counted.to_pylist()})
