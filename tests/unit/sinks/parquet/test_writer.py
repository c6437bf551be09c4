"""One finished Parquet file at a time: whole, or not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kvtrace.errors import RunError
from kvtrace.schema import VERSION
from kvtrace.schema.layout import table_files
from kvtrace.schema.tables import TABLES
from kvtrace.sinks.parquet.arrow import arrow_schema, conform, memory_schema
from kvtrace.sinks.parquet.writer import write_table

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("table", TABLES)
def test_a_file_has_its_tables_schema_and_says_which_version(tmp_path: Path, table: str) -> None:
    path = tmp_path / table / "part-000.parquet"
    assert write_table(path, table, arrow_schema(table).empty_table()) == 0
    found = pq.read_schema(path)
    assert found.names == arrow_schema(table).names
    assert found.metadata[b"kvtrace.schema"] == str(VERSION).encode()
    assert found.metadata[b"kvtrace.table"] == table.encode()


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    rows = [
        {
            "op": "lookup",
            "span_id": 2**64 - 1,
            "start_ns": 2**63 - 1,
            "found_by_tier": [("host", 0)],
            "attributes": [],
        },
        {
            "op": None,
            "span_id": 0,
            "start_ns": -(2**63),
            "found_by_tier": None,
            "attributes": [("a\0", "\n☃")],
        },
    ]
    names = ["op", "span_id", "start_ns", "found_by_tier", "attributes"]
    schema = pa.schema([arrow_schema("span").field(name) for name in names])
    path = tmp_path / "span" / "part-000.parquet"
    assert (
        write_table(
            path, "span", [pa.Table.from_pylist(rows[:1], schema), pa.Table.from_pylist(rows[1:], schema)]
        )
        == 2
    )
    assert pq.read_table(path).select(names).to_pylist() == rows


def test_times_and_counters_are_delta_packed_and_words_are_dictionaries(tmp_path: Path) -> None:
    path = tmp_path / "part-000.parquet"
    write_table(path, "span", pa.table({"op": ["load"] * 1000, "start_ns": range(1000)}))
    group = pq.ParquetFile(path).metadata.row_group(0)
    columns = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
    assert "DELTA_BINARY_PACKED" in columns["start_ns"].encodings
    assert "RLE_DICTIONARY" in columns["op"].encodings
    assert {column.compression for column in columns.values()} == {"ZSTD"}


def test_a_file_that_breaks_off_is_not_there(tmp_path: Path) -> None:
    def parts():
        yield pa.table({"op": ["load"]})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_table(tmp_path / "span" / "part-000.parquet", "span", parts())
    assert list((tmp_path / "span").iterdir()) == []


def test_a_file_being_written_is_no_table_file(tmp_path: Path) -> None:
    seen = []

    def parts():
        yield pa.table({"op": ["load"]})
        seen.append(([path.name for path in (tmp_path / "span").iterdir()], table_files(tmp_path, "span")))

    write_table(tmp_path / "span" / "part-000.parquet", "span", parts())
    assert seen == [(["part-000.parquet.tmp"], [])]
    assert len(table_files(tmp_path, "span")) == 1


def test_a_place_that_cannot_be_written_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "span").write_bytes(b"a file")
    with pytest.raises(RunError, match="cannot be written") as caught:
        write_table(tmp_path / "span" / "part-000.parquet", "span", pa.table({"op": ["load"]}))
    assert "\n" not in str(caught.value)


def test_a_column_that_the_schema_does_not_have_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="span has no column novelty"):
        conform(pa.table({"novelty": [1]}), "span")


def test_missing_columns_are_null_and_all_stand_in_order() -> None:
    found = conform(pa.table({"tokens": [1], "op": ["load"]}), "span")
    assert found.schema.names == memory_schema("span").names
    assert found["bytes"].to_pylist() == [None]
