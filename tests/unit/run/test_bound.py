"""Views that were bound once are copied: nobody can tell which connection got which."""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from kvtrace.run import bound
from kvtrace.run.nouns import create_views
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

LOAD = {"op": "load", "start_ns": 1, "end_ns": 3, "request_id": "r1", "tier_from": "disk", "tier_to": "host"}
CATALOG = (
    "SELECT view_name, sql, comment FROM duckdb_views() WHERE NOT internal ORDER BY view_name",
    """SELECT table_name, column_name, data_type, comment FROM duckdb_columns() WHERE NOT internal
    ORDER BY table_name, column_index""",
    "SELECT database_name FROM duckdb_databases() ORDER BY ALL",
)


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has opened no run yet."""
    monkeypatch.setattr(bound, "_kept", {})
    monkeypatch.setattr(bound, "_seen", set())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return write_run(tmp_path / "run", span=[LOAD])


def opened(path: Path) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:")
    create_views(connection, path)
    return connection


def catalog(connection: duckdb.DuckDBPyConnection) -> list[list[tuple[Any, ...]]]:
    """A view's text as its words: DuckDB writes EXCLUDE and REPLACE, which are sets, in any order."""
    views, *others = (connection.sql(query).fetchall() for query in CATALOG)
    return [[(name, sorted(re.findall(r"\w+|\W", sql)), comment) for name, sql, comment in views], *others]


def kept() -> list[Path]:
    return [file.parent for file in bound._kept.values()]


def test_one_connection_keeps_nothing_and_the_third_copies_what_the_second_kept(run: Run) -> None:
    first = opened(run.path)
    assert not kept()
    second = opened(run.path)
    (folder,) = kept()
    third = opened(run.path)
    assert catalog(first) == catalog(second) == catalog(third)
    assert len(catalog(first)[0]) > 20
    for connection in (first, second, third):
        assert connection.sql("SELECT request_id, bytes FROM transfer").fetchall() == [("r1", None)]
    assert folder.stat().st_mode & 0o077 == 0


def test_a_copy_shows_the_files_of_its_own_run(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        opened(run.path)
    other = write_run(
        tmp_path / "other", span=[LOAD | {"request_id": "r2"}], loss=[{"source": "s", "count": 3}]
    )
    empty = write_run(tmp_path / "empty")
    query = "SELECT request_id FROM transfer"
    assert opened(other.path).sql(query).fetchall() == [("r2",)]
    assert opened(other.path).sql("SELECT count FROM loss").fetchall() == [(3,)]
    assert opened(empty.path).sql(query).fetchall() == []
    assert opened(run.path).sql(query).fetchall() == [("r1",)]


def test_who_cleans_the_temporary_folder_makes_us_bind_again(run: Run) -> None:
    for _ in range(2):
        opened(run.path)
    (folder,) = kept()
    shutil.rmtree(folder)
    assert opened(run.path).sql("SELECT request_id FROM transfer").fetchall() == [("r1",)]
    (again,) = kept()
    assert again != folder
    assert again.exists()


def test_without_a_temporary_folder_every_connection_binds_its_own(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/nonexistent")
    for _ in range(3):
        assert opened(run.path).sql("SELECT request_id FROM transfer").fetchall() == [("r1",)]
    assert not kept()


def test_a_forked_child_keeps_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        opened(run.path)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert not bound.copied(duckdb.connect(":memory:"))
