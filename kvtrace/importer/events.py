"""Key events of several inputs: what an engine recorded from inside and published as well counts once.

The numbers of the messages (`seq`) are the same on both sides. An event that both have is the engine's own
row, which knows more; the rest of the stream then belongs to that engine as well. Engines that begin with the
same prompt publish the same events at first: a stream is that of the one engine with which it shares the
events of most of the numbers that both have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa

from kvtrace.sinks.parquet.arrow import conform
from kvtrace.sources.losses import Loss

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvtrace.importer.staging import Staging

_SAME = ("seq", "event", "key", "tier", "object_group")
_WHO = ("engine", "process", "key_space")
_UNKNOWN = "unknown"
_ROUTER = "dynamo:engine:"


def key_events(staging: Staging, parts: Iterable[tuple[str, pa.Table]]) -> Iterator[pa.Table]:
    """Rows of `block` from files, without those that a native recording has; counts those at once.

    `parts` are the rows with the input that each came from.
    """
    native = _native(staging)
    owners, routed = _owners(staging, native), _routed(staging)

    def rows_of(source: str, rows: pa.Table) -> pa.Table:
        if source in owners:
            return owned(_rest(rows, _of(native, owners[source])), owners[source])
        return owned(rows, routed[source]) if source in routed else rows

    return (rows_of(source, rows) for source, rows in parts)


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
    numbers: dict[str, list[pl.DataFrame]] = {}
    for source, rows in staging.parts("block"):
        own = _comparable(rows).with_columns(time_ns=pl.Series(rows["time_ns"]))
        both = own.join(native, on=_SAME, how="inner", nulls_equal=True, suffix="_own")
        met.setdefault(source, []).append(
            both.select("at", "time_ns", "seq", **{name: f"{name}_own" for name in _WHO})
        )
        numbers.setdefault(source, []).append(own.select("seq").unique())
    owners: dict[str, dict[str, str | None]] = {}
    for source, parts in met.items():
        both, seen = pl.concat(parts), pl.concat(numbers[source]).unique()
        who = _most(both, native.join(seen, on="seq", how="semi"))
        if who.height == 1:
            owners[source] = dict(zip(_WHO, who.row(0), strict=True))
            own_parts = (_of(part, owners[source]) for part in parts)
            twice = pl.concat(part.unique("at").select("time_ns") for part in own_parts)
            low, high = twice.select(low=pl.min("time_ns"), high=pl.max("time_ns")).row(0)
            detail = "key events that the engine recorded itself as well"
            staging.losses.append(Loss(source, "duplicate", twice.height, None, None, low, high, detail))
    return owners


def _most(both: pl.DataFrame, native: pl.DataFrame) -> pl.DataFrame:
    """Engines that share with a stream the events of more than half of the numbers that both have."""
    shared, common = (
        rows.group_by(_WHO).agg(pl.n_unique("seq").alias(name))
        for rows, name in ((both, "shared"), (native, "common"))
    )
    told = shared.join(common, on=_WHO, how="left", nulls_equal=True)
    return told.filter(2 * pl.col("shared") > pl.col("common")).select(_WHO)


def _of(rows: pl.DataFrame, owner: dict[str, str | None]) -> pl.DataFrame:
    """The rows of one engine."""
    return rows.filter(*(pl.col(name).eq_missing(pl.lit(owner[name], pl.String)) for name in _WHO))


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


def _rest(rows: pa.Table, native: pl.DataFrame) -> pa.Table:
    """What of a stream the engine's own recording lacks."""
    fresh = _comparable(rows).join(native, on=_SAME, how="anti", nulls_equal=True)["at"].sort()
    return rows.take(pa.array(fresh.to_arrow().cast(pa.int64())))


def owned(rest: pa.Table, owner: dict[str, str | None]) -> pa.Table:
    """The rows of a stream, with what is known of whose they are."""
    for column, value in owner.items():
        if value is None:
            continue
        own = pl.Series(rest[column].cast(pa.string()))
        missing = own.is_null() | own.str.contains(_UNKNOWN, literal=True).fill_null(value=False)
        filled = pl.select(pl.when(missing).then(pl.lit(value)).otherwise(own)).to_series()
        at = rest.column_names.index(column)
        rest = rest.set_column(at, column, filled.to_arrow().cast(rest.schema.field(column).type))
    return rest
