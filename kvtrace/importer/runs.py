"""Runs as inputs: their rows go through the same joins, so that several recordings become one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from kvtrace import schema
from kvtrace.errors import InputError
from kvtrace.schema.content import is_content
from kvtrace.schema.layout import RUN_FILE, table_files
from kvtrace.schema.tables import TABLES
from kvtrace.sinks.parquet.arrow import conform
from kvtrace.sources.dialects import vllm
from kvtrace.sources.dialects.attributes import map_array
from kvtrace.sources.dialects.columns import ID_KIND

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.importer.staging import Staging

_JOINED_ANEW = ("run_id", "bucket")


_UNREADABLE = (OSError, msgspec.MsgspecError, pa.ArrowException, KeyError, ValueError)


class _Said(msgspec.Struct):
    """What a run says of its recording, and of content that was dropped."""

    recording: dict[str, Any] | None = None
    content_dropped: dict[str, int] | None = None


def read_run(path: Path, staging: Staging, *, keep_content: bool) -> tuple[int, int]:
    """Stage every table of a run; returns how many spans and how many other rows it has.

    What it says of its recording, and of content that was dropped, goes with it.

    Raises:
        InputError: no readable run, or one of a newer schema.
    """
    try:
        meta = msgspec.json.decode((path / RUN_FILE).read_bytes(), type=dict[str, Any])
        version = meta.get("schema_version")
        if not isinstance(version, int) or not 1 <= version <= schema.VERSION:
            raise InputError(
                f"{path}: is a run of schema v{version}; this kvtrace reads up to v{schema.VERSION}."
            )
        said = msgspec.convert(meta, _Said)
        outside = _outside(path)
        staging.facts.keep("outside", outside)
        joined = outside["request_id"].unique()
        spans = others = 0
        tables: dict[str, list[pa.Table]] = {}
        staging.runs.append(tables)
        for table in TABLES:
            for file in table_files(path, table):
                for batch in pq.ParquetFile(file).iter_batches(batch_size=128 * 1024):
                    found = pa.Table.from_batches([batch])
                    _check(found, table, file)
                    if table == "span":
                        kept = found if keep_content else _without_content(found, staging)
                        staging.add_spans([_with_kind(kept, joined)])
                        spans += found.num_rows
                    else:
                        tables.setdefault(table, []).append(conform(found, table))
                        others += found.num_rows
    except (*_UNREADABLE, pl.exceptions.PolarsError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: is no readable run ({reason}); import its raw files instead.") from error
    if isinstance(meta.get("engines"), dict):
        staging.engines |= meta["engines"]
    if said.recording:
        staging.recordings.append(said.recording)
    staging.add_content(said.content_dropped or {})
    return spans, others


def _check(found: pa.Table, table: str, file: Path) -> None:
    """Columns that no version of the schema knows are of another file."""
    unknown = set(found.column_names) - {column.name for column in TABLES[table]}
    if unknown:
        names = ", ".join(sorted(unknown)[:3])
        raise InputError(
            f"{file}: has the column {names}, which the table {table} does not; it is no part of a run."
        )


def _outside(path: Path) -> pl.DataFrame:
    """External names of a run, and the request ids that they were joined to."""
    columns = ["alias", "kind", "request_id"]
    parts = [pl.read_parquet(file, columns=columns) for file in table_files(path, "alias")]
    empty = pl.DataFrame(schema=dict.fromkeys(columns, pl.String))
    return pl.concat([empty, *parts]).filter(pl.col("kind") == "external").select("alias", "request_id")


def _with_kind(rows: pa.Table, joined: pl.Series) -> pa.Table:
    """Say again which rows carry which kind of id.

    External: those of vLLM's spans that no internal id was found for. Internal: those of cache servers.
    """
    own = pl.Series(rows["name"]).is_in([vllm.SPAN, vllm.QUEUE]).fill_null(value=False)
    external = own & ~pl.Series(rows["request_id"]).is_in(joined.implode()).fill_null(value=False)
    server = (pl.Series(rows["observer"]) == "server") & (pl.Series(rows["evidence"]) == "native")
    kinds = pl.when(external).then(pl.lit("external")).when(server).then(pl.lit("internal"))
    kind = pl.select(kinds).to_series()
    fitted = conform(rows, "span").drop_columns(list(_JOINED_ANEW))
    return fitted.append_column(ID_KIND, kind.to_arrow().cast(pa.string()).dictionary_encode())


def _without_content(rows: pa.Table, staging: Staging) -> pa.Table:
    """A run that kept content loses it at the next door."""
    maps = rows["attributes"].combine_chunks()
    if not pa.types.is_map(maps.type):
        raise ValueError(f"attributes are {maps.type}, no map")
    keys = maps.keys
    content = [name for name in keys.unique().to_pylist() if is_content(name)]
    if not content:
        return rows
    dropped = pl.Series(keys).is_in(content)
    counts = pl.Series(keys).filter(dropped).value_counts()
    staging.add_content(dict(counts.iter_rows()))
    row = np.repeat(np.arange(rows.num_rows), np.diff(maps.offsets.to_numpy()))
    stays = (~dropped).to_numpy()
    mask = pa.array(stays)
    kept = map_array(rows.num_rows, row[stays], keys.filter(mask), maps.items.filter(mask))
    return rows.set_column(rows.column_names.index("attributes"), "attributes", kept)
