"""Nouns: every file of kvtrace/sql/ is one commented view; every table of a run is a view as well."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from kvtrace.run import bound
from kvtrace.schema.layout import table_files
from kvtrace.schema.tables import TABLE_DOCS, TABLES, Column

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

_DUCKDB = {
    "string": "VARCHAR",
    "int64": "BIGINT",
    "uint64": "UBIGINT",
    "uint8": "UTINYINT",
    "float64": "DOUBLE",
    "bool": "BOOLEAN",
    "map<string,string>": "MAP(VARCHAR, VARCHAR)",
    "map<string,int64>": "MAP(VARCHAR, BIGINT)",
    "list<member>": "STRUCT(request_id VARCHAR, phase VARCHAR, scheduled_tokens BIGINT, "
    "output_tokens BIGINT, computed_before BIGINT)[]",
}


@cache
def noun_files() -> dict[str, str]:
    """Noun -> its SQL, by listing the folder: a new noun is a new file."""
    folder = files("kvtrace").joinpath("sql")
    return {
        entry.name.removesuffix(".sql"): entry.read_text(encoding="utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".sql")
    }


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _table_view(name: str, columns: tuple[Column, ...], parquet: list[Path]) -> str:
    """A view over a table's files, or over no rows of the same types when there are none.

    Nouns were bound to these very types; a cast to the type that a column has is none.
    """
    if parquet:
        source = (
            f"read_parquet([{', '.join(_quoted(str(file)) for file in parquet)}], hive_partitioning=false)"
        )
        named = ", ".join(f"{column.name}::{_DUCKDB[column.type]} AS {column.name}" for column in columns)
        return f"CREATE OR REPLACE VIEW {name} AS SELECT {named} FROM {source}"  # noqa: S608 - names of our own schema
    nulls = ", ".join(f"NULL::{_DUCKDB[column.type]} AS {column.name}" for column in columns)
    return f"CREATE VIEW {name} AS SELECT {nulls} WHERE false"


def create_views(connection: duckdb.DuckDBPyConnection, run: Path) -> None:
    """Create every table and noun of a run in an empty database, commented from the schema and the files.

    The nouns are bound over empty tables, which the run's own then replace.
    """
    if not bound.copied(connection):
        for table, columns in TABLES.items():
            _create_table(connection, table, columns, [])
        _create_nouns(connection)
        bound.keep(connection)
    for table, columns in TABLES.items():
        if files_of_run := table_files(run, table):
            _create_table(connection, table, columns, files_of_run)


def _create_table(
    connection: duckdb.DuckDBPyConnection, table: str, columns: tuple[Column, ...], parquet: list[Path]
) -> None:
    connection.execute(_table_view(table, columns, parquet))
    connection.execute(f"COMMENT ON VIEW {table} IS {_quoted(TABLE_DOCS[table])}")


def _create_nouns(connection: duckdb.DuckDBPyConnection) -> None:
    """Every file of sql/, whatever their order.

    A noun may build on another; views bind when they are created, so what fails for want of one that comes
    later is tried again until a whole round makes no progress.
    """
    import duckdb

    waiting = dict(noun_files())
    while waiting:
        failed: dict[str, str] = {}
        reason: duckdb.Error | None = None
        for noun, text in waiting.items():
            try:
                connection.execute(text)
            except duckdb.CatalogException as error:
                failed[noun], reason = text, error
        if len(failed) == len(waiting):
            assert reason is not None
            raise reason
        waiting = failed


def column_docs(connection: duckdb.DuckDBPyConnection) -> dict[str, dict[str, str]]:
    """View -> column -> meaning: the view's own comment, else the schema's word for that column."""
    known = {column.name: column.doc for columns in reversed(TABLES.values()) for column in columns}
    own = {table: {column.name: column.doc for column in columns} for table, columns in TABLES.items()}
    rows = connection.sql(
        "SELECT table_name, column_name, comment FROM duckdb_columns() "
        "WHERE NOT internal ORDER BY table_name, column_index"
    ).fetchall()
    docs: dict[str, dict[str, str]] = {}
    for view, column, comment in rows:
        docs.setdefault(view, {})[column] = comment or own.get(view, known).get(column, "")
    return docs
