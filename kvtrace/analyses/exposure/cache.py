"""The partition of a whole run, computed block by block and kept beside it.

Blocks bound the memory: requests are taken in order until their intervals (and the waits of their engines
that overlap them) reach a limit, or until the axis of the sweep is full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvtrace.analyses.exposure import intervals as queries
from kvtrace.analyses.exposure.rows import SCHEMA, WORDS, block_rows
from kvtrace.analyses.exposure.serving import Memberships
from kvtrace.analyses.exposure.sweep import (
    MOST_CELLS,
    NO_SPAN,
    Intervals,
    Requests,
    Segments,
    Waits,
    pieces,
    segments,
    width,
)
from kvtrace.analyses.exposure.totals import Window, amounts
from kvtrace.analyses.exposure.users import users
from kvtrace.analyses.exposure.work import Work
from kvtrace.run.derived import derived_folder, files_hash, published, spilling

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import duckdb

    from kvtrace.analyses.exposure.layers import Bools, Ints
    from kvtrace.analyses.exposure.serving import Runs
    from kvtrace.run import Run

ALGORITHM = "4"
"""Bumped whenever the partition of the same run can come out differently."""
BLOCK_INTERVALS = 150_000


@dataclass(frozen=True)
class Prepared:
    """A run made ready for the sweep: its requests as numbers, its waits, and where intervals come from.

    `users` has a row a user, which is a row a request unless users are asked for; `user` says whose each
    request is. Requests of one user follow each other, and stay in one block.
    """

    connection: duckdb.DuckDBPyConnection
    table: pl.DataFrame
    block: Requests
    waits: Waits
    steps: Memberships
    user_table: pl.DataFrame
    users: Requests
    user: Ints

    def users_of(self, part: Requests) -> tuple[Requests, Ints]:
        """The users of a block, and whose each of its requests is (0 = first of the block)."""
        own = self.user[part.first : part.first + part.start.size]
        return self.users.part(int(own[0]), int(own[-1]) + 1), own - own[0]

    def first_of(self, number: int) -> int:
        """The first request of the user of this one."""
        return int(np.searchsorted(self.user, self.user[number]))

    def middle(self, low: int, high: int) -> int:
        """Where to halve [low, high) without parting a user's requests; `low` where that cannot be."""
        half = (low + high) // 2
        first, after = (int(np.searchsorted(self.user, self.user[half] + more)) for more in (0, 1))
        return first if first > low else after if after < high else low

    def windows(self, part: Requests) -> list[Window]:
        """The three windows of some consecutive users."""
        rows = self.user_table.slice(part.first, part.start.size)
        begin_decode = np.where(part.token >= 0, part.token, part.last)
        first_end = np.where(part.token >= 0, part.token, part.stop)

        def exact(name: str) -> Bools:
            return rows[name].fill_null(value=False).to_numpy()

        return [
            Window("ttft", part.start, first_end, exact("ttft_exact")),
            Window("decode", begin_decode, part.stop, exact("decode_exact")),
            Window("e2e", part.start, part.stop, exact("e2e_exact")),
        ]


def _numbers(column: pl.Series) -> Ints:
    return column.cast(pl.Int64).fill_null(-1).to_numpy()


def prepare(run: Run, only: tuple[str, ...] = (), *, by_user: bool = False) -> Prepared:
    """Read requests (`only` these or of these users, or all) and waits of a run; intervals come later."""
    connection = spilling(run)
    queries.prepare(connection, only, by_user=by_user)
    table = pl.DataFrame(queries.requests(connection))
    waits = pl.DataFrame(queries.waits(connection))
    engines = waits.select("engine", "engine_number").unique(maintain_order=True)
    table = table.join(engines, on="engine", how="left", maintain_order="left")
    block = _requests(table, _numbers(table["engine_number"]))
    rows = connection, table, block, _waits(waits, table), Memberships(connection, table.height)
    if not by_user:
        return Prepared(*rows, table, block, np.arange(table.height))
    found = users(connection)
    numbered = found.select("user_id", user=pl.int_range(pl.len()))
    user = _numbers(table.join(numbered, on="user_id", how="left", maintain_order="left")["user"])
    everywhere = _requests(found, np.full(found.height, -1))
    return Prepared(*rows, found, everywhere, user)


def _requests(table: pl.DataFrame, engine: Ints) -> Requests:
    start, stop, token = (_numbers(table[name]) for name in ("start_ns", "stop_ns", "token_ns"))
    return Requests(0, start, stop, token, engine)


def _waits(waits: pl.DataFrame, table: pl.DataFrame) -> Waits:
    """Waits as arrays, and the (wait, request) pairs in which a wait names a request."""
    size = max(table.height, 1)
    named = (
        waits.with_row_index("wait")
        .select("wait", "names").explode("names", empty_as_null=False, keep_nulls=False)
        .join(table.select("request_id", "number"), left_on="names", right_on="request_id")
        .select(pair=pl.col("wait").cast(pl.Int64) * size + pl.col("number"))
    )  # fmt: skip
    return Waits(
        _numbers(waits["engine_number"]), _numbers(waits["s"]), _numbers(waits["e"]),
        waits["is_open"].to_numpy(),
        _numbers(waits["reason"]), waits["names"].is_null().to_numpy(),
        waits["span_id"].fill_null(NO_SPAN).to_numpy(),
        np.unique(named["pair"].to_numpy()), size,
    )  # fmt: skip


def blocks(prepared: Prepared, *, owners: bool) -> Iterator[tuple[Requests, Intervals]]:
    """Consecutive requests with all of their intervals, in blocks that fit the memory and the axis."""
    for part, table in _blocks(prepared, owners=owners, swept=True):
        steps = prepared.steps.intervals(*prepared.steps.of(part), owners=owners)
        yield part, _joined(prepared, part, table, steps, owners=owners)


def blocks_in_runs(prepared: Prepared) -> Iterator[tuple[Requests, Intervals, Runs]]:
    """The same, with steps as runs wherever that is enough to say how long what was active."""
    for part, table in _blocks(prepared, owners=False, swept=False):
        runs, steps = prepared.steps.runs(part)
        yield part, _joined(prepared, part, table, steps, owners=False), runs


def _joined(
    prepared: Prepared, part: Requests, table: pa.Table | None, steps: Intervals, *, owners: bool
) -> Intervals:
    found = _intervals(table, part.first, owners=owners).joined(steps).clipped(part)
    return found.joined(prepared.waits.of(part, owners=owners))


def _blocks(prepared: Prepared, *, owners: bool, swept: bool) -> Iterator[tuple[Requests, pa.Table | None]]:
    """Blocks of requests, and the rows of the stream of each; `swept`: their steps count as intervals."""
    held: list[pa.RecordBatch] = []
    rows, first, size = 0, 0, prepared.block.start.size
    for batch in queries.stream(prepared.connection, owners=owners):
        held.append(batch)
        rows += batch.num_rows
        last = prepared.first_of(batch["number"][-1].as_py()) if batch.num_rows else first
        if rows >= BLOCK_INTERVALS and last > first:
            table = pa.Table.from_batches(held)
            keep = pc.sum(pc.less(table["number"], last)).as_py()
            yield from _fitting(prepared, first, last, table.slice(0, keep), swept=swept)
            held, rows, first = table.slice(keep).to_batches(), table.num_rows - keep, last
    table = pa.Table.from_batches(held) if held else None
    yield from _fitting(prepared, first, size, table, swept=swept)


def _fitting(
    prepared: Prepared, low: int, high: int, table: pa.Table | None, *, swept: bool
) -> Iterator[tuple[Requests, pa.Table | None]]:
    """Halve a block until its waits and steps fit the memory and its stretches fit the axis."""
    if high <= low:
        return
    part = prepared.block.part(low, high)
    too_long = part.start.size * width(prepared.users_of(part)[0]) > MOST_CELLS
    middle = prepared.middle(low, high)
    most = (4 if swept else 12) * BLOCK_INTERVALS
    if middle > low and (too_long or prepared.waits.count(part).sum() + prepared.steps.count(part) > most):
        at = pc.sum(pc.less(table["number"], middle)).as_py() or 0 if table is not None else 0
        yield from _fitting(prepared, low, middle, table.slice(0, at) if table else None, swept=swept)
        yield from _fitting(prepared, middle, high, table.slice(at) if table else None, swept=swept)
        return
    yield part, table


def _intervals(table: pa.Table | None, low: int, *, owners: bool) -> Intervals:
    """Arrow -> arrays."""
    none, ids = np.empty(0, np.int64), np.empty(0, np.uint64)
    if table is None or not table.num_rows:
        return Intervals(none, none.astype(np.int8), none, none, none.astype(bool), none, ids)
    return Intervals(
        table["number"].to_numpy() - np.int64(low), table["layer"].to_numpy(), table["s"].to_numpy(),
        table["e"].to_numpy(), table["is_open"].to_numpy(),
        table["started"].to_numpy() if owners else none,
        pl.Series(table["span_id"]).fill_null(NO_SPAN).to_numpy() if owners else ids,
    )  # fmt: skip


def swept(part: Requests, found: Intervals, runs: Runs) -> Segments:
    """Segments of a block, without owners."""
    opened = pieces(found.where(found.is_open), part, owners=False) if found.is_open.any() else []
    cuts = segments(pieces(found, part, owners=False), opened, part)
    return replace(cuts, served=runs.served(cuts, part))


def rows_of(prepared: Prepared) -> Iterator[pa.Table]:
    """The partition, block by block."""
    requests = prepared.table.select("request_id", "unfinished", tokenless=pl.col("token_ns").is_null())
    for part, found, runs in blocks_in_runs(prepared):
        cuts, windows = swept(part, found, runs), prepared.windows(part)
        work, every = Work(found, cuts, runs, part), amounts(cuts, windows)
        yield block_rows(every, work, part, windows, requests.slice(part.first, part.start.size))


def partition(run: Run) -> Path:
    """The cached partition of a run as a Parquet file: the rows of `exposure`, all three windows.

    Computed once for the run's files as they are; kept in RUN/.derived, or in a temporary folder when the
    run cannot be written.
    """
    target = derived_folder(run) / f"exposure-{files_hash(run, ALGORITHM)}.parquet"
    if target.exists():
        return target
    with (
        published(target) as partial,
        pq.ParquetWriter(
            partial, SCHEMA, compression="zstd", use_dictionary=list(WORDS), store_schema=False
        ) as writer,
    ):
        for rows in rows_of(prepare(run)):
            writer.write_table(rows)
    return target
