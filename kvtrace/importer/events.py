"""Key events of several inputs: what an engine recorded from inside and published as well counts once.

The numbers of the messages (`seq`) are the same on both sides. An event that both have is the engine's own
row, which knows more; the rest of the stream then belongs to that engine as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from kvtrace.sinks.parquet.arrow import conform
from kvtrace.sources.losses import Loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.importer.staging import Staging

_SAME = ("seq", "event", "key", "tier", "object_group")
_WHO = ("engine", "process", "key_space")
_UNKNOWN = "unknown"
_ROUTER = "dynamo:engine:"


def key_events(staging: Staging) -> Iterator[pa.Table]:
    """Rows of `block` from files, without those that a native recording has; counts those at once."""
    native = _native(staging)
    owners = _routed(staging) | _owners(staging, native)
    return (
        _rest(rows, native, owners[source]) if source in owners else rows
        for source, rows in staging.parts("block")
    )


def _native(staging: Staging) -> pl.DataFrame:
    """Numbered events that runs and spools gave."""
    wanted = [*_SAME, *_WHO]
    parts = [
        pl.DataFrame({name: pl.Series(rows[name].cast(kind)) for name, kind in _types().items()})
        for side in staging.given("block")
        for rows in (conform(part, "block") for part in side)
    ]
    empty = pl.DataFrame(schema={name: pl.Int64 if name == "seq" else pl.String for name in wanted})
    return pl.concat([empty, *parts]).filter(pl.col("seq").is_not_null()).unique()


def _types() -> dict[str, pa.DataType]:
    return {name: pa.int64() if name == "seq" else pa.string() for name in (*_SAME, *_WHO)}


def _comparable(rows: pa.Table) -> pl.DataFrame:
    columns = {name: pl.Series(rows[name].cast(kind)) for name, kind in _types().items()}
    return pl.DataFrame(columns).with_row_index("at")


def _owners(staging: Staging, native: pl.DataFrame) -> dict[str, dict[str, str | None]]:
    """Inputs whose events one engine recorded itself, and which; the repeats are counted."""
    met: dict[str, list[pl.DataFrame]] = {}
    for source, rows in staging.parts("block"):
        own = _comparable(rows).with_columns(time_ns=pl.Series(rows["time_ns"]))
        both = own.join(native, on=_SAME, how="inner", nulls_equal=True, suffix="_own")
        met.setdefault(source, []).append(both.select("at", "time_ns", *(f"{name}_own" for name in _WHO)))
    owners: dict[str, dict[str, str | None]] = {}
    for source, parts in met.items():
        who = pl.concat(parts).select(f"{name}_own" for name in _WHO).unique()
        if who.height == 1:
            owners[source] = dict(zip(_WHO, who.row(0), strict=True))
            twice = pl.concat(part.unique("at").select("time_ns") for part in parts)
            low, high = twice.select(low=pl.min("time_ns"), high=pl.max("time_ns")).row(0)
            detail = "key events that the engine recorded itself as well"
            staging.losses.append(Loss(source, "duplicate", twice.height, None, None, low, high, detail))
    return owners


def _routed(staging: Staging) -> dict[str, dict[str, str | None]]:
    """Streams whose keys a router's own request keys repeat: block hashes and sequence hashes are one space.

    Dynamo routes by the hashes that its engines publish where the engine hashes as Dynamo does (its mocker);
    64 bits that agree are the same hash. A stream that agrees with several key spaces is left alone.
    """
    keys = staging.facts.table("keys").filter(pl.col("key_space").str.starts_with(_ROUTER))
    asked = keys.select("key_space", "key").unique()
    found: dict[str, set[str]] = {}
    for source, rows in staging.parts("block") if asked.height else ():
        own = _comparable(rows).filter(pl.col("key_space").str.contains(_UNKNOWN, literal=True))
        met = own.select("key").unique().join(asked, on="key")["key_space"].unique()
        found.setdefault(source, set()).update(met)
    nobody: dict[str, str | None] = dict.fromkeys(_WHO)
    return {source: nobody | {"key_space": min(own)} for source, own in found.items() if len(own) == 1}


def _rest(rows: pa.Table, native: pl.DataFrame, owner: dict[str, str | None]) -> pa.Table:
    """What of a stream the engine's own recording lacks, with what is known of whose it is."""
    fresh = _comparable(rows).join(native, on=_SAME, how="anti", nulls_equal=True)["at"].sort()
    rest = rows.take(pa.array(fresh.to_arrow().cast(pa.int64())))
    for column, value in owner.items():
        if value is None:
            continue
        own = pl.Series(rest[column].cast(pa.string()))
        missing = own.is_null() | own.str.contains(_UNKNOWN, literal=True).fill_null(value=False)
        filled = pl.select(pl.when(missing).then(pl.lit(value)).otherwise(own)).to_series()
        at = rest.column_names.index(column)
        rest = rest.set_column(at, column, filled.to_arrow().cast(rest.schema.field(column).type))
    return rest
