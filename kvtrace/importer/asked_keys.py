"""Keys of requests' lookups from files, each once: of several files, and of files beside a server's own word.

hash log      r 0 k0   r 1 k1            a line a lookup
.lct            r 0 k0   r 1 k1          the call that the lookup made
inside        r 0 k0   r 1 k1            the server recorded it itself: its rows stay, they know the attempt
run           r 0 k0   r 1 k1            files that were imported before: as if they were here

The same lookup is (request, position, key space, key) in the order of time (matching.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from kvtrace.importer.matching import matched
from kvtrace.sinks.parquet.arrow import conform
from kvtrace.sources.losses import JOIN, Loss

if TYPE_CHECKING:
    from kvtrace.importer.staging import Staging

INSIDE = "lmcache.mp.lookup"
"""Source of the keys that LMCache's server recorded itself."""
_KEY = ("request_id", "position", "key_space", "key")
_TWICE = "keys of lookups that the server recorded itself as well"
_KINDS: dict[str, pa.DataType] = {
    "request_id": pa.string(),
    "position": pa.int64(),
    "key_space": pa.string(),
    "key": pa.string(),
    "time_ns": pa.int64(),
}


def request_keys(staging: Staging) -> pa.Table:
    """Keys of all lookups, each once; a request's lookups are its attempts, in time order.

    Where several kinds of file tell of the same lookups, the one that knows most of a request's counts; what
    runs and spools gave is not here again, and counts as `duplicate`. Runs lose at once what they have of
    files, where a server recorded it itself.
    """
    _runs_once(staging)
    keys = staging.facts.table("keys")
    told = keys.group_by("request_id", "key_space", "format").len()
    most = told.sort("len", "format", descending=[True, False]).unique(
        ["request_id", "key_space"], keep="first", maintain_order=True
    )
    keys = keys.join(most.drop("len"), on=["request_id", "key_space", "format"], how="semi", nulls_equal=True)
    keys = keys.drop("format")
    once = keys.unique(["request_id", "time_ns", "position", "key_space", "key"], keep="first")
    attempt = pl.col("time_ns").rank("dense").over("request_id").cast(pl.Int64)
    rows = once.sort("request_id", "time_ns", "position", "key_space", "key").with_columns(attempt=attempt)
    found: pa.Table = _without_repeats(staging, rows).to_arrow()
    return found


def _without_repeats(staging: Staging, rows: pl.DataFrame) -> pl.DataFrame:
    """What of the rows nobody recorded inside; the others are counted by the file that told them."""
    inside = _inside(staging)
    if not rows.height or not inside.height:
        return rows
    numbered = rows.with_columns(at=pl.int_range(pl.len()))
    repeated = matched(numbered, inside, _KEY).select("at")
    twice = numbered.join(repeated, on="at", how="semi").group_by("source").agg(
        pl.len(), low=pl.min("time_ns"), high=pl.max("time_ns")
    )  # fmt: skip
    staging.losses.extend(
        Loss(source, "duplicate", count, None, "lookup", low, high, _TWICE)
        for source, count, low, high in twice.sort("source").iter_rows()
    )
    return numbered.join(repeated, on="at", how="anti", maintain_order="left").drop("at")


def _runs_once(staging: Staging) -> None:
    """Take from the runs the keys of files that a server recorded itself as well; they are counted."""
    sides = [
        (side, pa.concat_tables([conform(part, "request_key") for part in side]).combine_chunks())
        for side in staging.given("request_key")
    ]
    if len(sides) < 2:
        return
    frames = [_numbered(whole) for _, whole in sides]
    own = pl.concat(frame.filter(source=INSIDE) for frame in frames).with_columns(at=pl.int_range(pl.len()))
    for (side, whole), frame in zip(sides, frames, strict=True):
        files = frame.filter(pl.col("source").ne_missing(INSIDE))
        repeated = matched(files, own, _KEY)["at"]
        if not repeated.len():
            continue
        twice = files.filter(pl.col("at").is_in(repeated.implode()))
        low, high = twice.select(low=pl.min("time_ns"), high=pl.max("time_ns")).row(0)
        staging.losses.append(Loss(JOIN, "duplicate", twice.height, None, "lookup", low, high, _TWICE))
        stays = frame.select(~pl.col("at").is_in(repeated.implode())).to_series()
        side[:] = [whole.filter(stays.to_arrow())]


def _numbered(whole: pa.Table) -> pl.DataFrame:
    """What two keys are compared by, and where they are from."""
    kinds = {**_KINDS, "source": pa.string()}
    columns = {name: pl.Series(whole[name].cast(kind)) for name, kind in kinds.items()}
    return pl.DataFrame({**columns, "at": pl.int_range(whole.num_rows, eager=True)})


def _inside(staging: Staging) -> pl.DataFrame:
    """The keys that runs and spools gave, each once."""
    parts = [
        pl.DataFrame({name: pl.Series(rows[name].cast(kind)) for name, kind in _KINDS.items()})
        for side in staging.given("request_key")
        for rows in (conform(part, "request_key") for part in side)
    ]
    names = {name: pl.Int64 if pa.types.is_integer(kind) else pl.String for name, kind in _KINDS.items()}
    found = pl.concat([pl.DataFrame(schema=names), *parts]).unique(maintain_order=True)
    return found.with_columns(at=pl.int_range(pl.len()))
