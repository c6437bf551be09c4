"""A round out of what was recorded, as a run of its own.

    request    |---1---|   |----2----|      |--3--|        of this round: 2
    its rows     |-|         |--| |------------|           with it, however late
    a step     |-------|-------|--------|--------|         of this round: those that begin in it
                        from                until

What names a request goes with it: its round is that in which it begins (its own row, else its first). All
else goes by its own time. A process's first and last record are cut to the round, so that what stays open
counts to its end and no further.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

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


def cut(recorded: Path, out: Path, *, from_ns: int, until_ns: int | None) -> None:
    """Write the rows of one round into a new run at `out`; run.json is that of the recording."""
    run = open_run(recorded)
    until = LAST_NS if until_ns is None else until_ns
    known, mine = _requests(run, from_ns, until)
    out.mkdir(parents=True)
    shutil.copy(run.path / RUN_FILE, out / RUN_FILE)
    for table in (*NAMED, "metric", "loss", *WHOLE):
        for number, file in enumerate(table_files(run.path, table)):
            _copy(file, out / table / f"part-{number:03d}.parquet", table, (known, mine), (from_ns, until))


def _requests(run: Run, from_ns: int, until_ns: int) -> tuple[pa.Array, pa.Array]:
    """All requests whose beginning is known, and those of this round."""
    began = run.connection().sql(_BEGAN).to_arrow_table()
    names = began["request_id"].cast(pa.string()).combine_chunks()
    inside = _between(began["began_ns"].combine_chunks(), from_ns, until_ns)
    return names, names.filter(inside)


def _between(times: pa.Array, from_ns: int, until_ns: int) -> pa.Array:
    inside = pc.and_(pc.greater_equal(times, from_ns), pc.less(times, until_ns))
    return pc.fill_null(inside, False)  # noqa: FBT003 - pyarrow's own signature


def _copy(
    file: Path, out: Path, table: str, names: tuple[pa.Array, pa.Array], window: tuple[int, int]
) -> None:
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


def _kept(rows: pa.Table, table: str, names: tuple[pa.Array, pa.Array], window: tuple[int, int]) -> pa.Table:
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
    known, mine = names
    own = rows["request_id"].cast(pa.string())
    return rows.filter(pc.if_else(pc.is_in(own, known), pc.is_in(own, mine), by_time))


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
