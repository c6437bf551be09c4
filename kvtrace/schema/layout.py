"""Where things lie inside a run directory.

RUN/
    run.json               who recorded what, with which versions; replaced atomically
    span/ block/ ...       a folder a table, Parquet files; *.tmp is never read
        shared/            rows without a request (steps, waits, holds of nobody)
        bucket=NN/         a compacted large run: rows by md5 of the request id
    raw/                   optional: what the run was imported from
    spool/                 what processes still write (native recording)
    .derived/              cached partitions; may be deleted at any time
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

RUN_FILE = "run.json"
DERIVED = ".derived"
SPOOL = "spool"
RAW = "raw"
SHARED = "shared"
BUCKETS = 64
PARQUET = ".parquet"
PARTIAL = ".tmp"


def table_files(run: Path, table: str) -> list[Path]:
    """Every finished Parquet file of a table, in a stable order; half-written ones end in .tmp."""
    folder = run / table
    if not folder.is_dir():
        folder = run / replaced_folder(table)
    return sorted(folder.rglob(f"*{PARQUET}")) if folder.is_dir() else []


def bucket_folder(bucket: int) -> str:
    """Name of the folder that holds one bucket of requests."""
    return f"bucket={bucket:02d}"


def replaced_folder(table: str) -> str:
    """Where compaction keeps a table's files for the instant in which its folder is being exchanged."""
    return f".replaced-{table}"
