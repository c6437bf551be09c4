"""Blockers of a whole run, block by block over the sweep of exposure, kept beside its partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from kvtrace.analyses.blockers.holds import Holds, Lacks, held, hold_rows, holds, lacking, lacks
from kvtrace.analyses.blockers.sharing import portions, together
from kvtrace.analyses.blockers.sums import Sums, added, apportioned, summed
from kvtrace.analyses.blockers.waits import ANY, UNKNOWN, Named, blamed, named_waits, waiting
from kvtrace.analyses.exposure import intervals as queries
from kvtrace.analyses.exposure import layers
from kvtrace.analyses.exposure.cache import ALGORITHM as EXPOSURE
from kvtrace.analyses.exposure.cache import blocks, prepare
from kvtrace.analyses.exposure.sweep import pieces as cut_layers
from kvtrace.analyses.exposure.sweep import segments
from kvtrace.run.derived import derived_folder, files_hash, published

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.analyses.exposure.cache import Prepared
    from kvtrace.analyses.exposure.layers import Ints
    from kvtrace.analyses.exposure.sweep import Requests, Segments
    from kvtrace.run import Run

ALGORITHM = "1"
"""Bumped whenever the blockers of the same run can come out differently."""
COLUMNS = {
    "request_id": pl.String,
    "blocker_request_id": pl.String,
    "class": pl.String,
    "reason": pl.String,
    "exposed_ns": pl.Int64,
    "overlap_ns": pl.Int64,
}
_FILE = {"window": pl.String, **COLUMNS}
_RELEVANT = ANY | (1 << layers.QUEUE_CAPACITY)
_REASONS = ("load", "store", "lookup", "lock", "unknown")
"""Codes of reasons: those of waits first, in the sweep's order; a wait's fifth is none."""


@dataclass(frozen=True)
class Ready:
    """A run made ready: requests and sweep, waits, holds, what was lacked, and the names of codes."""

    prepared: Prepared
    lane: Ints
    waits: Named
    holds: Holds
    lacks: Lacks
    ids: pl.Series


def ready(run: Run, only: tuple[str, ...] = ()) -> Ready:
    """Read all that can block, and the requests (`only` these, or all) that can be blocked."""
    prepared = prepare(run, only)
    waits = pl.DataFrame(queries.waits(prepared.connection))
    kept = hold_rows(prepared.connection)
    waits, kept = _within(waits, prepared.block), _within(kept, prepared.block)
    ids = (
        pl.concat([waits["names"].explode(empty_as_null=True, keep_nulls=True), kept["request_id"]])
        .cast(pl.String).drop_nulls().unique().sort()
    )  # fmt: skip
    codes = pl.DataFrame({"id": ids, "code": np.arange(ids.len())})
    engines = pl.concat([waits["engine"], kept["engine"]]).cast(pl.String).unique().drop_nulls().sort()
    numbers = prepared.table.select("request_id", pl.col("number").cast(pl.Int64))

    def lane(engine: pl.Series) -> Ints:
        names = pl.DataFrame({"engine": engines, "lane": np.arange(engines.len())})
        rows = pl.DataFrame({"engine": engine.cast(pl.String)})
        found = rows.join(names, on="engine", how="left", maintain_order="left")["lane"]
        return found.fill_null(-1).to_numpy()

    words = pl.DataFrame({"word": _REASONS, "code": np.arange(len(_REASONS))})
    return Ready(
        prepared, lane(prepared.table["engine"]),
        named_waits(waits, lane(waits["engine"]), codes, numbers),
        holds(kept, lane(kept["engine"]), codes, words),
        lacks(prepared.connection, numbers), ids,
    )  # fmt: skip


def _within(rows: pl.DataFrame, block: Requests) -> pl.DataFrame:
    """Intervals cut to the time in which there are requests at all."""
    if not block.start.size:
        return rows.clear()
    first, last = int(block.start.min()), int(block.last.max())
    return rows.with_columns(s=pl.col("s").clip(first, last), e=pl.col("e").clip(first, last)).filter(
        pl.col("e") > pl.col("s")
    )


def _in_windows(made: Ready, part: Requests, cuts: Segments) -> Iterator[tuple[str, Sums]]:
    """Parts and totals of one block, window by window."""
    lane = made.lane[part.first : part.first + part.start.size]
    for window in made.prepared.windows(part):
        within = (cuts.s >= window.begin[cuts.request]) & (cuts.e <= window.end[cuts.request])
        mine = cuts.where(within)
        own = layers.classes_of(mine.layers, mine.layers)
        known = np.where(window.exact[mine.request], np.int64(-1), ~np.int64(1 << layers.COMPUTE))
        winner = layers.first_bit(own & known)
        for pieces in waiting(mine, own, winner, lane):
            for some in portions(pieces, made.waits.timeline):
                pairs = together(blamed(some, made.waits, part.first))
                yield window.name, summed(some, pairs, pairs)
        pieces = lacking(mine, winner, lane, part, made.lacks)
        for some in portions(pieces, made.holds.timeline):
            pairs = held(some, made.holds)
            yield window.name, summed(some, pairs, together(pairs))


def _rows(made: Ready, part: Requests, cuts: Segments) -> Iterator[pl.DataFrame]:
    """The rows of one block, all windows."""
    found: dict[str, list[Sums]] = {}
    for window, rows in _in_windows(made, part, cuts):
        found.setdefault(window, []).append(rows)
    names = made.prepared.table["request_id"].slice(part.first, part.start.size)
    reasons = pl.Series([*_REASONS, None], dtype=pl.String)
    for window, every in found.items():
        answer = apportioned(added(every))
        waits = answer.kind != layers.CAPACITY
        why = np.where(
            (answer.reason < 0) | (waits & (answer.reason == UNKNOWN)), len(_REASONS), answer.reason
        )
        exposed, blocker = pl.Series(answer.exposed_ns), pl.Series(answer.blocker)
        yield pl.DataFrame(
            {
                "window": pl.Series([window]).new_from_index(0, answer.kind.size),
                "request_id": names.gather(answer.request),
                "blocker_request_id": made.ids.gather(blocker.set(blocker < 0, None)),
                "class": pl.Series(layers.CLASSES).gather(answer.kind),
                "reason": reasons.gather(why),
                "exposed_ns": exposed.set(exposed < 0, None),
                "overlap_ns": answer.overlap_ns,
            }
        )


def _blocks(made: Ready, *, beside: int = 0) -> Iterator[pl.DataFrame]:
    """The rows of all requests; not of time in which one of the layers `beside` is active."""
    for part, found in blocks(made.prepared, owners=False):
        cuts = segments(cut_layers(found, part, owners=False), [], part)
        cuts = cuts.where(((cuts.layers & _RELEVANT) != 0) & ((cuts.layers & beside) == 0))
        yield from _rows(made, part, cuts)


def _anything(run: Run) -> bool:
    """Whether there is anything that could block: without it no sweep is needed."""
    query = "SELECT EXISTS (SELECT 1 FROM span WHERE op IN ('wait', 'hold') AND engine IS NOT NULL)"
    ((found,),) = run.connection().sql(query).fetchall()
    return bool(found)


def shares_of(run: Run, requests: tuple[str, ...]) -> pl.DataFrame:
    """The rows of some requests, all windows; those of all are read where they are known already."""
    if (known := _target(run)).exists():
        return pl.scan_parquet(known).filter(pl.col("request_id").is_in(list(requests))).collect()
    found = _blocks(ready(run, requests)) if _anything(run) else ()
    return pl.concat([pl.DataFrame(schema=_FILE), *found])


def shares_alone(run: Run) -> pl.DataFrame:
    """The rows of a run, all windows, of the time in which no transfer of the request was going on."""
    found = _blocks(ready(run), beside=layers.TRANSFERS) if _anything(run) else ()
    return pl.concat([pl.DataFrame(schema=_FILE), *found])


def shares(run: Run) -> Path:
    """The cached rows of a run as a Parquet file: the columns of `blockers` and the window."""
    target = _target(run)
    if target.exists():
        return target
    schema = pl.DataFrame(schema=_FILE).to_arrow().schema
    with published(target) as partial, pq.ParquetWriter(partial, schema, compression="zstd") as writer:
        for rows in _blocks(ready(run)) if _anything(run) else ():
            writer.write_table(rows.select(list(_FILE)).to_arrow().cast(schema))
    return target


def _target(run: Run) -> Path:
    return derived_folder(run) / f"blockers-{files_hash(run, EXPOSURE, ALGORITHM)}.parquet"
