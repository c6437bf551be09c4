"""A round out of what was recorded, as a run of its own.

    request    |---1---|   |----2----|      |--3--|        of this round: 2
    its rows     |-|         |--| |------------|           with it, however late
    a step     |-------|-------|--------|--------|         of this round: those that begin in it
                        from                until

What names a request goes with it: its round is that in which it begins (its own row, else its first). Where
an engine takes the client's ids as its own, one id begins in several rounds: a row is of the begin it
follows. All else goes by its own time. A process's first and last record are cut to the round, so that what
stays open counts to its end and no further.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, NamedTuple

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvtrace.run import open_run
from kvtrace.schema.layout import RUN_FILE, table_files

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

WHOLE = ("identity", "process")
TIMES = {"span": "start_ns", "block": "time_ns", "metric": "time_ns"}
NAMED = ("span", "block", "request_key", "alias")
LAST_NS = 2**63 - 1
_BATCH_ROWS = 128 * 1024

_BEGAN = """
SELECT request_id, coalesce(min(start_ns) FILTER (op = 'request'), min(start_ns)) AS began_ns
FROM span WHERE request_id IS NOT NULL GROUP BY request_id
"""

_AGAIN = """
WITH began AS (
    SELECT request_id, start_ns AS began_ns, start_ns >= $from AND start_ns < $until AS inside
    FROM span WHERE op = 'request' AND request_id IS NOT NULL AND start_ns IS NOT NULL
), twice AS (
    SELECT request_id FROM began GROUP BY request_id HAVING bool_or(inside) AND NOT bool_and(inside)
)
FROM began SEMI JOIN twice USING (request_id) ORDER BY began_ns
"""
"""Requests that begin inside the round and outside of it."""


class _Requests(NamedTuple):
    """All whose beginning is known, those of this round, and begins of an id that has others elsewhere."""

    known: pa.Array
    mine: pa.Array
    again: pl.DataFrame


def cut(recorded: Path, out: Path, *, from_ns: int, until_ns: int | None) -> None:
    """Write the rows of one round into a new run at `out`; run.json is that of the recording."""
    run = open_run(recorded)
    until = LAST_NS if until_ns is None else until_ns
    names = _requests(run, from_ns, until)
    out.mkdir(parents=True)
    shutil.copy(run.path / RUN_FILE, out / RUN_FILE)
    for table in (*NAMED, "metric", "loss", *WHOLE):
        for number, file in enumerate(table_files(run.path, table)):
            _copy(file, out / table / f"part-{number:03d}.parquet", table, names, (from_ns, until))


def _requests(run: Run, from_ns: int, until_ns: int) -> _Requests:
    began = run.connection().sql(_BEGAN).to_arrow_table()
    names = began["request_id"].cast(pa.string()).combine_chunks()
    inside = _between(began["began_ns"].combine_chunks(), from_ns, until_ns)
    window = {"from": from_ns, "until": until_ns}
    again = pl.DataFrame(run.connection().sql(_AGAIN, params=window).to_arrow_table())
    mine = pa.concat_arrays([names.filter(inside), again["request_id"].unique().to_arrow().cast(pa.string())])
    return _Requests(names, mine, again)


def _between(times: pa.Array, from_ns: int, until_ns: int) -> pa.Array:
    inside = pc.and_(pc.greater_equal(times, from_ns), pc.less(times, until_ns))
    return pc.fill_null(inside, False)  # noqa: FBT003 - pyarrow's own signature


def _copy(file: Path, out: Path, table: str, names: _Requests, window: tuple[int, int]) -> None:
    """The rows of one file that are of the round; none: no file."""
    source = pq.ParquetFile(file)
    writer = None
    try:
        for batch in source.iter_batches(batch_size=_BATCH_ROWS):
            rows = _kept(pa.Table.from_batches([batch]), table, names, window)
            if not rows.num_rows:
                continue
            if writer is None:
                out.parent.mkdir(exist_ok=True)
                writer = pq.ParquetWriter(out, rows.schema, compression="zstd")
            writer.write_table(rows)
    finally:
        if writer is not None:
            writer.close()


def _kept(rows: pa.Table, table: str, names: _Requests, window: tuple[int, int]) -> pa.Table:
    if table == "process":
        return _clipped(rows, window)
    if table in WHOLE:
        return rows
    if table == "loss":
        return rows.filter(_overlaps(rows, window))
    timed = TIMES.get(table)
    by_time = _between(rows[timed].combine_chunks(), *window) if timed else pa.array([False] * rows.num_rows)
    if table not in NAMED:
        return rows.filter(by_time)
    own = rows["request_id"].cast(pa.string())
    by_name = pc.if_else(pc.is_in(own, names.known), pc.is_in(own, names.mine), by_time)
    if timed and names.again.height:
        by_name = pc.coalesce(_by_begin(own, rows[timed], names.again), by_name)
    return rows.filter(by_name)


def _by_begin(own: pa.ChunkedArray, times: pa.ChunkedArray, again: pl.DataFrame) -> pa.Array:
    """Whether the begin that a row follows, else the next, is in the round; null: its id has but one."""
    rows = pl.DataFrame({"request_id": own, "began_ns": times}).with_row_index("place")
    rows = rows.filter(pl.col("request_id").is_in(again["request_id"].unique().implode()))
    found = rows.drop_nulls("began_ns").sort("began_ns")
    begins, by = again.sort("began_ns"), "request_id"
    before, after = begins.rename({"inside": "before"}), begins.rename({"inside": "after"})
    found = found.join_asof(before, on="began_ns", by=by, check_sortedness=False)
    found = found.join_asof(after, on="began_ns", by=by, strategy="forward", check_sortedness=False)
    kept = found.select("place", inside=pl.coalesce("before", "after"))
    whole = pl.DataFrame({"place": pl.arange(0, len(own), dtype=pl.UInt32, eager=True)})
    return whole.join(kept, on="place", how="left", maintain_order="left")["inside"].to_arrow()


def _overlaps(rows: pa.Table, window: tuple[int, int]) -> pa.Array:
    """A loss that may touch the round; of one without times nobody knows that it does not."""
    begins = pc.fill_null(rows["from_ns"], 0)
    ends = pc.fill_null(rows["to_ns"], LAST_NS)
    return pc.and_(pc.less(begins, window[1]), pc.greater_equal(ends, window[0]))


def _clipped(rows: pa.Table, window: tuple[int, int]) -> pa.Table:
    clips = (("first_ns", window[0], pc.max_element_wise), ("last_ns", window[1], pc.min_element_wise))
    for column, bound, clip in clips:
        values = clip(rows[column], pa.scalar(bound, pa.int64()), skip_nulls=False)
        rows = rows.set_column(rows.column_names.index(column), rows.schema.field(column), values)
    return rows
