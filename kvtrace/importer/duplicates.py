"""Rows that arrived twice: the same (trace_id, span_id) counts once, whichever file brought it again.

What an engine recorded from inside belongs to no trace: there it is (process, span_id); where a source says
neither trace nor process, (name, span_id).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from kvtrace.sources.losses import JOIN, Loss

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.importer.facts import Facts

_COLUMNS = ("trace_id", "span_id", "process", "name", "start_ns", "end_ns", "evidence")


def duplicates(facts: Facts, chunks: Iterable[pa.Table]) -> tuple[npt.NDArray[np.int64], list[Loss]]:
    """Numbers of the rows that count no more, and the losses that say so (derived rows are not counted).

    A hash finds the few candidates; their ids decide. Of an open and a finished version of a span the
    finished one stays, else the first.
    """
    seen = np.concatenate(facts.seen) if facts.seen else np.empty(0, np.uint64)
    inorder = np.sort(seen)
    twice = np.unique(inorder[1:][(inorder[1:] == inorder[:-1]) & (inorder[1:] != 0)])
    candidates = np.flatnonzero(np.isin(seen, twice)) if twice.size else np.empty(0, np.int64)
    if not candidates.size:
        return candidates, []
    frames, first = [], 0
    for chunk in chunks:
        low, high = np.searchsorted(candidates, [first, first + chunk.num_rows])
        if high > low:
            taken = chunk.take(pa.array(candidates[low:high] - first))
            columns = {name: _plain(taken, name) for name in _COLUMNS}
            frames.append(pl.DataFrame({"row": candidates[low:high], **columns}))
        first += chunk.num_rows
    found = pl.concat(frames, how="vertical_relaxed").sort(pl.col("end_ns").is_null(), "row")
    extra = found.filter(
        pl.int_range(pl.len()).over(pl.coalesce("trace_id", "process", "name"), "trace_id", "span_id") > 0
    )
    counted = extra.filter(pl.col("evidence").ne_missing("derived"))
    losses = [
        Loss(
            JOIN,
            "duplicate",
            count,
            process=process,
            from_ns=low,
            to_ns=high,
            detail="spans that arrived twice",
        )
        for process, count, low, high in counted.group_by("process")
        .agg(pl.len(), pl.col("start_ns").min().alias("low"), pl.col("start_ns").max().alias("high"))
        .sort("process")
        .iter_rows()
    ]
    return np.sort(extra["row"].to_numpy()), losses


def _plain(table: pa.Table, name: str) -> pl.Series:
    if name not in table.column_names:
        return pl.Series(name, [None] * table.num_rows, dtype=pl.Int64 if name == "end_ns" else pl.String)
    values = table[name]
    return pl.Series(name, values.cast(pa.string()) if pa.types.is_dictionary(values.type) else values)
