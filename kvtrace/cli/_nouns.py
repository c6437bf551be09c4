"""Nouns and tables with their columns, from the views of an empty database."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import duckdb

from kvtrace.run.nouns import column_docs, create_views

_NO_RUN = Path("/nonexistent")


@dataclass(frozen=True, slots=True)
class Described:
    """One column of a noun or table."""

    name: str
    type: str
    meaning: str


@cache
def view_docs() -> dict[str, str]:
    """Noun or table -> what one row of it is."""
    connection = _empty()
    rows = connection.sql(
        "SELECT view_name, comment FROM duckdb_views() WHERE NOT internal ORDER BY view_name"
    ).fetchall()
    return {name: comment or "" for name, comment in rows}


@cache
def view_columns() -> dict[str, tuple[Described, ...]]:
    """Noun or table -> its columns, in order, with DuckDB's type and their meaning."""
    connection = _empty()
    docs = column_docs(connection)
    rows = connection.sql(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal "
        "ORDER BY table_name, column_index"
    ).fetchall()
    found: dict[str, tuple[Described, ...]] = {}
    for view, column, kind in rows:
        found[view] = (*found.get(view, ()), Described(column, kind, docs[view][column]))
    return found


@cache
def _empty() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:")
    create_views(connection, _NO_RUN)
    return connection
