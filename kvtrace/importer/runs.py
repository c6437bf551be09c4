"""Runs as inputs: their rows go through the same joins, so that several recordings become one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kvtrace import schema
from kvtrace.errors import InputError
from kvtrace.schema.layout import RUN_FILE, table_files
from kvtrace.schema.tables import TABLES
from kvtrace.sources.losses import JOIN

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.importer.staging import Staging

_JOINED_ANEW = ("run_id", "bucket")


def read_run(path: Path, staging: Staging) -> int:
    """Stage every table of a run; returns the rows beside spans.

    Raises:
        InputError: no readable run, or one of a newer schema.
    """
    try:
        meta = msgspec.json.decode((path / RUN_FILE).read_bytes(), type=dict[str, object])
        version = meta.get("schema_version")
        if not isinstance(version, int) or not 1 <= version <= schema.VERSION:
            raise InputError(
                f"{path}: is a run of schema v{version}; this kvtrace reads up to v{schema.VERSION}."
            )
        rows = 0
        for table in TABLES:
            for file in table_files(path, table):
                for batch in pq.ParquetFile(file).iter_batches(batch_size=128 * 1024):
                    found = pa.Table.from_batches([batch])
                    if table == "span":
                        staging.add_spans([found.drop_columns(list(_JOINED_ANEW))])
                    else:
                        if table == "loss":
                            found = found.filter(pc.not_equal(pc.fill_null(found["source"], ""), JOIN))
                        staging.tables.setdefault(table, []).append(found)
                        rows += found.num_rows
    except (OSError, msgspec.MsgspecError, pa.ArrowException) as error:
        raise InputError(f"{path}: is no readable run ({error}); import its raw files instead.") from error
    return rows
