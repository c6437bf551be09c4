"""Rows of a chunk under their request's own id, and members of operations likewise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from kvtrace.importer.facts import holds, origins
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
    if "members" in chunk.column_names and names.fixed.height:
        members = _members(chunk["members"].combine_chunks(), names)
        chunk = chunk.set_column(chunk.column_names.index("members"), "members", members)
    return chunk, unclear


def _meant(chunk: pa.Table, at: npt.NDArray[np.int64], names: Names) -> tuple[pl.Series, int]:
    """The request that each of some rows means."""
    wanted = ("request_id", "start_ns", "end_ns", "span_id", "parent_span_id", "op", "evidence")
    taken = chunk.select([name for name in wanted if name in chunk.column_names]).take(pa.array(at))
    rows = pl.DataFrame(
        {
            "alias": pl.Series(taken["request_id"]),
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
    mask = np.zeros(chunk.num_rows, bool)
    mask[at] = True
    ids = chunk["request_id"].combine_chunks()
    new = pc.replace_with_mask(ids, pa.array(mask), meant.to_arrow().cast(pa.string()))
    return chunk.set_column(chunk.column_names.index("request_id"), "request_id", new)


def _members(lists: pa.ListArray, names: Names) -> pa.ListArray:
    """Members under their own ids, where a name means one request always."""
    entries = lists.flatten()
    ids = pl.DataFrame({"alias": pl.Series(entries.field("request_id"))})
    own = ids.join(names.fixed, on="alias", how="left", maintain_order="left")
    new = own.select(pl.coalesce("request_id", "alias")).to_series().to_arrow().cast(pa.string())
    fields = [new if field.name == "request_id" else entries.field(field.name) for field in entries.type]
    renamed_entries = pa.StructArray.from_arrays(fields, fields=list(entries.type))
    lengths = lists.value_lengths().fill_null(0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    empty = np.append(lists.is_null().to_numpy(zero_copy_only=False), False)
    return pa.ListArray.from_arrays(pa.array(offsets, mask=empty), renamed_entries, type=lists.type)
