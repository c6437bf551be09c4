"""Rows of a chunk under their request's own id, and members of operations likewise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from kvtrace.importer.columns import holds, origins
from kvtrace.importer.naming import Names, by_overlap, known_meaning
from kvtrace.sources.dialects.columns import ID_KIND

if TYPE_CHECKING:
    import numpy.typing as npt


def renamed(chunk: pa.Table, names: Names) -> tuple[pa.Table, int]:
    """Give rows that are known by another name their own id; also how many rows fit several requests."""
    if not (names.fixed.height or names.by_origin.height or names.crowded.height):
        return chunk, 0
    unclear = 0
    if "request_id" in chunk.column_names:
        at = np.flatnonzero(~holds(chunk, ID_KIND, "internal"))
        meant, unclear = _meant(chunk, at, names)
        chunk = _with_ids(chunk, at, meant)
    if "members" in chunk.column_names:
        members, lost = _members(chunk, names)
        chunk = chunk.set_column(chunk.column_names.index("members"), "members", members)
        unclear += lost
    return chunk, unclear


def _meant(chunk: pa.Table, at: npt.NDArray[np.int64], names: Names) -> tuple[pl.Series, int]:
    """The request that each of some rows means."""
    wanted = ("request_id", "start_ns", "end_ns", "span_id", "parent_span_id", "op", "evidence")
    taken = chunk.select([name for name in wanted if name in chunk.column_names]).take(pa.array(at))
    rows = pl.DataFrame(
        {
            "alias": pl.Series(taken["request_id"].cast(pa.string())),
            "origin": pl.Series(origins(taken)),
            "start_ns": pl.Series(taken["start_ns"]),
            "end_ns": pl.Series(taken["end_ns"] if "end_ns" in taken.column_names else taken["start_ns"]),
        }
    )
    found = known_meaning(rows, names).with_row_index("at")
    if not names.crowded.height:
        return found["meant"], 0
    claims = holds(taken, "op", "request") | holds(taken, "evidence", "derived")
    open_rows = found.filter((pl.col("meant") == pl.col("alias")) & ~pl.Series(claims))
    decided = by_overlap(open_rows.select("at", "alias", "start_ns", "end_ns"), names.crowded)
    both = found.join(decided, on="at", how="left", maintain_order="left")
    return both.select(pl.coalesce("request_id", "meant")).to_series(), decided["request_id"].null_count()


def _with_ids(chunk: pa.Table, at: npt.NDArray[np.int64], meant: pl.Series) -> pa.Table:
    """Replace the request ids of some rows."""
    given = chunk["request_id"].combine_chunks()
    named = meant.to_arrow().cast(pa.string()).dictionary_encode()
    ids, others = pa.chunked_array([given, named]).unify_dictionaries().chunks
    codes = ids.indices.fill_null(-1).to_numpy(zero_copy_only=False).copy()
    codes[at] = others.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    new = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), ids.dictionary)
    return chunk.set_column(chunk.column_names.index("request_id"), "request_id", new)


def _members(chunk: pa.Table, names: Names) -> tuple[pa.ListArray, int]:
    """Members under their own ids; also how many of them fit several requests, or none in time."""
    lists = chunk["members"].combine_chunks()
    entries = lists.flatten()
    lengths = lists.value_lengths().fill_null(0).to_numpy()
    ids, unclear = _member_ids(chunk, entries.field("request_id"), lengths, names)
    fields = [ids if field.name == "request_id" else entries.field(field.name) for field in entries.type]
    renamed_entries = pa.StructArray.from_arrays(fields, fields=list(entries.type))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    empty = np.append(lists.is_null().to_numpy(zero_copy_only=False), False)
    return pa.ListArray.from_arrays(pa.array(offsets, mask=empty), renamed_entries, type=lists.type), unclear


def _member_ids(
    chunk: pa.Table, ids: pa.Array, lengths: npt.NDArray[np.int64], names: Names
) -> tuple[pa.Array, int]:
    """What each member's name means in the time of its operation."""
    rows = pl.DataFrame({"alias": pl.Series(ids)}).with_row_index("at")
    own = rows.join(names.fixed, on="alias", how="left", maintain_order="left")
    unclear = 0
    if names.crowded.height:
        row = pa.array(np.repeat(np.arange(chunk.num_rows), lengths))
        ends = "end_ns" if "end_ns" in chunk.column_names else "start_ns"
        times = {
            "start_ns": pl.Series(chunk["start_ns"].take(row)),
            "end_ns": pl.Series(chunk[ends].take(row)),
        }
        decided = by_overlap(rows.with_columns(**times), names.crowded)
        unclear = decided["request_id"].null_count()
        own = own.join(decided.rename({"request_id": "then"}), on="at", how="left", maintain_order="left")
        own = own.with_columns(pl.coalesce("request_id", "then").alias("request_id"))
    meant = own.select(pl.coalesce("request_id", "alias")).to_series()
    return meant.to_arrow().cast(pa.string()), unclear
