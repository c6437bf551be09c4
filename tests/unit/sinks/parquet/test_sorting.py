"""Span rows into few files, sorted by bucket, request and start, in bounded memory."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from kvtrace.schema.layout import BUCKETS, table_files
from kvtrace.sinks.parquet import sorting
from kvtrace.sinks.parquet.sorting import NO_BUCKET, write_sorted

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 500


def chunks() -> list[pa.Table]:
    """Rows of a hundred requests and of none, in no order, in chunks of different columns."""
    rng = random.Random(7)
    requests = [None, *(f"cmpl-req-{number:03d}-0-{number:08x}" for number in range(100))]
    rows = [
        {
            "request_id": rng.choice(requests),
            "start_ns": rng.randrange(50),
            "span_id": number,
            "op": "load",
            "tokens": 1,
        }
        for number in range(COUNT)
    ]
    whole = pa.Table.from_pylist(rows).set_column(2, "span_id", pa.array(range(COUNT), pa.uint64()))
    parts = [whole.slice(at, 50) for at in range(0, COUNT, 50)]
    parts[1] = parts[1].drop_columns(["tokens"])
    parts[2] = parts[2].drop_columns(["request_id"])
    return parts


@pytest.mark.parametrize(("sort_rows", "one_file_rows"), [(10**6, 10**6), (60, 10**6), (60, 100), (1, 1)])
def test_every_row_is_written_once_in_its_bucket_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sort_rows: int, one_file_rows: int
) -> None:
    monkeypatch.setattr(sorting, "HELD_ROWS", 0)
    monkeypatch.setattr(sorting, "SORT_ROWS", sort_rows)
    monkeypatch.setattr(sorting, "ONE_FILE_ROWS", one_file_rows)
    assert write_sorted(chunks(), COUNT, tmp_path / "span", tmp_path / "scratch", "run-7") == COUNT
    assert not (tmp_path / "scratch").exists()
    files = table_files(tmp_path, "span")
    found = pl.concat([pl.read_parquet(file) for file in files])
    assert sorted(found["span_id"].to_list()) == list(range(COUNT))
    assert found["run_id"].unique().to_list() == ["run-7"]
    right = duckdb.sql(
        f"SELECT count(*) FROM found WHERE bucket = CASE WHEN request_id IS NULL THEN {NO_BUCKET} "
        f"ELSE md5_number_upper(request_id) % {BUCKETS} END"
    ).fetchall()
    assert right == [(COUNT,)]
    for file in files:
        rows = pl.read_parquet(file)
        nobody = file.parent.name == "shared"
        assert rows["request_id"].is_null().all() == nobody
        order = [
            (b, r or "", s, i)
            for b, r, s, i in rows.select("bucket", "request_id", "start_ns", "span_id").rows()
        ]
        assert order == sorted(order)
        if file.parent.name.startswith("bucket="):
            assert rows["bucket"].unique().to_list() == [int(file.parent.name.removeprefix("bucket="))]
    assert any(file.parent.name.startswith("bucket=") for file in files) == (one_file_rows < COUNT)


def test_columns_that_a_chunk_lacks_are_null(tmp_path: Path) -> None:
    write_sorted(chunks(), COUNT, tmp_path / "span", tmp_path / "scratch", "run-7")
    found = pl.concat([pl.read_parquet(file) for file in table_files(tmp_path, "span")])
    assert found.filter(pl.col("span_id").is_between(50, 99))["tokens"].null_count() == 50
    assert found["tokens"].null_count() == 50
    assert found["found_by_tier"].null_count() == COUNT


def test_a_failure_leaves_no_scratch_and_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorting, "HELD_ROWS", 0)
    monkeypatch.setattr(sorting, "SORT_ROWS", 60)

    def broken():
        yield from chunks()[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_sorted(broken(), COUNT, tmp_path / "span", tmp_path / "scratch", "run-7")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_no_rows_are_no_files(tmp_path: Path) -> None:
    assert write_sorted([], 0, tmp_path / "span", tmp_path / "scratch", "run-7") == 0
    assert table_files(tmp_path, "span") == []
