"""Keys of requests' lookups from files, each once: of several files, and of files beside a server's own word.

hash log      r 0 k0   r 1 k1            a line a lookup
.lct            r 0 k0   r 1 k1          the call that the lookup made
inside        r 0 k0   r 1 k1            the server recorded it itself: its rows stay, they know the attempt

The same lookup is (request, position, key space, key) in the order of time (matching.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from kvtrace.importer.matching import matched
from kvtrace.sinks.parquet.arrow import conform
from kvtrace.sources.losses import Loss

if TYPE_CHECKING:
    from kvtrace.importer.staging import Staging

_KEY = ("request_id", "position", "key_space", "key")
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
    runs and spools gave is not here again, and counts as `duplicate`.
    """
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
    detail = "keys of lookups that the server recorded itself as well"
    staging.losses.extend(
        Loss(source, "duplicate", count, None, "lookup", low, high, detail)
        for source, count, low, high in twice.sort("source").iter_rows()
    )
    return numbered.join(repeated, on="at", how="anti", maintain_order="left").drop("at")


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
