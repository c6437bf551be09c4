"""Whether rows wait in memory or on disk, and in how many tables, changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from kvtrace.importer import staging
from tests.unit.importer.drawn import lines, op, reported

if TYPE_CHECKING:
    from pathlib import Path

SENT = [
    lines(*(op("load", 10 + n, 11 + n, request=f"r{n % 7}") for n in range(first, first + 20)))
    for first in (0, 20, 40)
]


def _rows(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(reported(folder, *SENT).run / "span" / "*.parquet").drop("run_id")


@pytest.mark.parametrize(
    ("rows_a_file", "rows_a_table", "held_bytes"),
    [(20, 20, 1 << 30), (20, 20, 0), (20, 20, 2_000), (7, 40, 0), (1000, 1000, 0)],
)
def test_where_rows_wait_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_a_file: int, rows_a_table: int, held_bytes: int
) -> None:
    wanted = _rows(tmp_path / "wanted")
    written: list[int] = []
    write = staging.Staging._write
    monkeypatch.setattr(staging.Staging, "_write", lambda self: (written.append(1), write(self))[1])
    monkeypatch.setattr(staging, "ROWS_A_FILE", rows_a_file)
    monkeypatch.setattr(staging, "ROWS_A_TABLE", rows_a_table)
    monkeypatch.setattr(staging, "HELD_BYTES", held_bytes)
    assert _rows(tmp_path / "found").equals(wanted)
    assert wanted.height == 60
    assert bool(written) == (held_bytes < 1 << 30)
