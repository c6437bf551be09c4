"""Span rows -> few sorted files, in bounded memory.

    chunks ──► ranges of buckets, each small enough to sort in memory ──► one file, or one a bucket
          └──► rows of no request (steps, waits, holds of nobody) ────────► shared/

A bucket is md5_number_upper(request_id) % 64, as DuckDB computes it: a request's rows lie together, sorted by
start, and an analysis can take one bucket at a time, here or on another machine.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather as feather
import pyarrow.parquet as pq

from kvtrace.schema.layout import BUCKETS, SHARED, bucket_folder
from kvtrace.sinks.parquet.arrow import conform, memory_schema, together, with_used_texts
from kvtrace.sinks.parquet.writer import ROW_GROUP_ROWS, open_writer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

ONE_FILE_ROWS = 2_000_000
"""Up to so many rows a run keeps its requests' rows in one file; beyond, a folder a bucket."""
SORT_ROWS = 150_000
"""So many rows are sorted in memory at a time, where a run has more than HELD_ROWS."""
HELD_ROWS = 800_000
"""So many rows are sorted in memory at once: to write and read them again costs more than the memory."""
NO_BUCKET = 255
LARGEST_BITS = 63


def write_sorted(chunks: Iterable[pa.Table], estimate: int, folder: Path, scratch: Path, run_id: str) -> int:
    """Write span rows sorted by bucket, request and start; returns how many there were.

    Args:
        chunks: rows; columns of `span` that a chunk lacks are null, run_id and bucket are added here.
        estimate: about how many rows there are.
        folder: the table's folder.
        scratch: a folder for parts, made and removed.
        run_id: the run they belong to.
    """
    parts = _Parts(estimate, scratch)
    out = _Output(folder, run_id, bucketed=estimate > ONE_FILE_ROWS)
    try:
        rows = sum(parts.add(chunk) for chunk in chunks)
        for table in parts.tables():
            for part in _sorted(table):
                out.write(part)
        out.close()
    finally:
        out.close()
        shutil.rmtree(scratch, ignore_errors=True)
    return rows


def in_order(rows: pa.Table) -> pa.Table:
    """Span rows with their bucket, sorted by bucket, request, start and span id; all of it in memory."""
    whole = _with_bucket(rows, _buckets(rows))
    return whole.take(pa.array(_places(whole)))


class _Parts:
    """Chunks split into ranges of buckets small enough to sort; with one range they stay in memory."""

    def __init__(self, estimate: int, scratch: Path) -> None:
        self.ranges = 1 if estimate <= HELD_ROWS else min(BUCKETS, estimate // SORT_ROWS + 1)
        self.scratch = scratch
        self.held: list[pa.Table] = []
        self.files: list[list[Path]] = [[] for _ in range(self.ranges + 1)]

    def add(self, chunk: pa.Table) -> int:
        """Split one chunk; the last range holds the rows of no request."""
        bucket = _buckets(chunk)
        rows = _with_bucket(chunk, bucket)
        if self.ranges == 1:
            self.held.append(rows)
            return rows.num_rows
        self.scratch.mkdir(parents=True, exist_ok=True)
        place = np.where(bucket == NO_BUCKET, self.ranges, bucket.astype(np.int64) * self.ranges // BUCKETS)
        order = np.argsort(place, kind="stable")
        rows = rows.take(pa.array(order))
        edges = np.searchsorted(place[order], np.arange(self.ranges + 2))
        for number, (low, high) in enumerate(itertools.pairwise(edges)):
            if high > low:
                file = self.scratch / f"{number:02d}-{len(self.files[number]):06d}.arrow"
                part = with_used_texts(rows.slice(low, high - low))
                feather.write_feather(part, str(file), compression="uncompressed")
                self.files[number].append(file)
        return rows.num_rows

    def tables(self) -> Iterator[pa.Table]:
        """The ranges one after the other; rows of no request last, as many at a time as can be sorted."""
        if self.held:
            yield together(self.held, memory_schema("span"))
        for number, files in enumerate(self.files):
            held: list[pa.Table] = []
            for file in files:
                held.append(feather.read_table(str(file)))
                if number == self.ranges and sum(part.num_rows for part in held) >= SORT_ROWS:
                    yield together(held, memory_schema("span"))
                    held = []
            if held:
                yield together(held, memory_schema("span"))


def _buckets(chunk: pa.Table) -> npt.NDArray[np.uint8]:
    """Bucket of every row, NO_BUCKET without a request."""
    if "request_id" not in chunk.column_names:
        return np.full(chunk.num_rows, NO_BUCKET, np.uint8)
    ids = chunk["request_id"].combine_chunks()
    ids = ids if pa.types.is_dictionary(ids.type) else ids.dictionary_encode()
    codes = ids.indices.fill_null(len(ids.dictionary)).to_numpy(zero_copy_only=False)
    given = np.flatnonzero(np.bincount(codes, minlength=len(ids.dictionary))[: len(ids.dictionary)])
    bucket = np.full(len(ids.dictionary) + 1, NO_BUCKET, np.uint8)
    bucket[given] = _buckets_of(ids.dictionary.take(pa.array(given)))
    return bucket[codes]


def _with_bucket(chunk: pa.Table, bucket: npt.NDArray[np.uint8]) -> pa.Table:
    kept = chunk.drop_columns(["bucket"]) if "bucket" in chunk.column_names else chunk
    return kept.append_column("bucket", pa.array(bucket))


def _sorted(table: pa.Table) -> Iterator[pa.Table]:
    """Rows by bucket, request, start, span id, a row group at a time; those of no request at once."""
    order = _places(table)
    requests = table.num_rows - int(np.count_nonzero(table["bucket"].to_numpy() == NO_BUCKET))
    edges = [*range(0, requests, ROW_GROUP_ROWS), requests, table.num_rows]
    for low, high in itertools.pairwise(edges):
        if high > low:
            yield table.take(pa.array(order[low:high]))


def _places(table: pa.Table) -> npt.NDArray[np.int64]:
    """Row numbers by bucket, request, start, span id."""
    rank = np.zeros(table.num_rows, np.int64)
    if "request_id" in table.column_names:
        ids = table["request_id"].combine_chunks()
        codes = ids.indices.fill_null(len(ids.dictionary)).to_numpy(zero_copy_only=False)
        bucket = np.zeros(len(ids.dictionary) + 1, np.uint8)
        bucket[codes] = table["bucket"].to_numpy()
        rank = _ranks(ids.dictionary, bucket[:-1])[codes]
    start, span = (_numbers(table, name) for name in ("start_ns", "span_id"))
    return _order(rank, start, span)


def _numbers(table: pa.Table, name: str) -> Any:
    """A column of numbers, 0 where it is not known."""
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int64)
    return table[name].fill_null(0).to_numpy()


def _ranks(ids: pa.Array, bucket: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """Place of every request id by bucket, then name; the last place is that of no request."""
    name = np.empty(len(ids), np.int64)
    name[pc.sort_indices(ids).to_numpy()] = np.arange(len(ids))
    rank = np.full(len(ids) + 1, len(ids), np.int64)
    rank[np.lexsort((name, bucket))] = np.arange(len(ids))
    return rank


def _order(rank: Any, start: Any, span: Any) -> npt.NDArray[np.int64]:
    """Row numbers by rank, start, span; equal rows stay in their order.

    Rank and start mostly fit into one number, which sorts several times faster than a key after the other.
    """
    low = int(start.min()) if start.size else 0
    bits = (int(start.max()) - low).bit_length() if start.size else 0
    if not start.size or bits + int(rank.max()).bit_length() > LARGEST_BITS:
        return np.lexsort((span, start, rank))
    packed = (rank << bits) | (start - low)
    order: npt.NDArray[np.int64] = np.argsort(packed)
    same = packed[order[1:]] == packed[order[:-1]]
    tied = np.append(same, False) | np.append(False, same)
    rows = order[tied]
    order[tied] = rows[np.lexsort((rows, span[rows], packed[rows]))]
    return order


def _buckets_of(ids: pa.Array) -> npt.NDArray[np.uint8]:
    """md5_number_upper(id) % BUCKETS; little-endian, so that the first byte decides."""
    found = [
        hashlib.md5(name.encode(), usedforsecurity=False).digest()[0] % BUCKETS for name in ids.to_pylist()
    ]
    return np.array(found, np.uint8)


class _Output:
    """Consecutive sorted tables into files: one for all or one a bucket; rows of no request apart."""

    def __init__(self, folder: Path, run_id: str, *, bucketed: bool) -> None:
        self.folder, self.run_id, self.bucketed = folder, run_id, bucketed
        self.shared = 0
        self._place: Path | None = None
        self._writer: pq.ParquetWriter | None = None
        self._opened = ExitStack()

    def write(self, table: pa.Table) -> None:
        """Write one sorted table."""
        bucket = table["bucket"].to_numpy()
        nobody = int(np.searchsorted(bucket, NO_BUCKET))
        edges = np.flatnonzero(np.diff(bucket[:nobody])) + 1 if self.bucketed else np.empty(0, np.int64)
        for low, high in zip([0, *edges], [*edges, nobody], strict=True):
            if high > low:
                place = self.folder / bucket_folder(int(bucket[low])) if self.bucketed else self.folder
                self._rows(table.slice(low, high - low), place / "part-000.parquet")
        if nobody < table.num_rows:
            self._rows(table.slice(nobody), self.folder / SHARED / f"part-{self.shared:03d}.parquet")
            self.shared += 1

    def _rows(self, rows: pa.Table, place: Path) -> None:
        if place != self._place or self._writer is None:
            self.close()
            self._writer = self._opened.enter_context(open_writer(place, "span"))
            self._place = place
        self._writer.write_table(_whole(rows, self.run_id), row_group_size=ROW_GROUP_ROWS)

    def close(self) -> None:
        """Finish the file being written."""
        self._opened.close()
        self._writer = None


def _whole(table: pa.Table, run_id: str) -> pa.Table:
    """The rows as the schema wants them, of this run."""
    kept = table.drop_columns(["run_id"]) if "run_id" in table.column_names else table
    codes = pa.array(np.zeros(kept.num_rows, np.int32))
    run = pa.DictionaryArray.from_arrays(codes, pa.array([run_id]))
    return conform(with_used_texts(kept).append_column("run_id", run), "span")
