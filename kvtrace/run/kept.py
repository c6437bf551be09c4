"""Nouns that most questions ask and that are dear: those of a large run are computed once.

    copy ──► transfer      RUN/.derived/copy-KEY.parquet, transfer-KEY.parquet: the views' very rows

A small run is planned and computed again by every question: that costs less than writing it down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.run.derived import derived_folder, files_hash, published
from kvtrace.run.nouns import noun_files

if TYPE_CHECKING:
    from pathlib import Path

    import duckdb

    from kvtrace.run.opening import Run

NOUNS = ("copy", "transfer")
"""In the order in which one is made of another."""
MANY_ROWS = 200_000
"""Of `span`: from here on a run is large."""


def is_large(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether nouns of this connection's run are kept, as the footers of its files say."""
    ((rows,),) = connection.execute("SELECT count(*) FROM span").fetchall()
    return bool(rows >= MANY_ROWS)


def key(run: Run) -> str:
    """What is kept under: the run's files as they lie there now, and what the nouns are made by.

    Take it before the views of a connection are made: a file that comes later is then of another key.
    """
    return files_hash(run, *noun_files().values())


def keep(run: Run, connection: duckdb.DuckDBPyConnection, key: str) -> None:
    """Let the views of a connection read what is kept; of a large run it is computed first."""
    if is_large(connection):
        for noun in NOUNS:
            target = derived_folder(run) / f"{noun}-{key}.parquet"
            if not target.exists():
                with published(target) as partial:
                    connection.sql(f"SELECT * FROM {noun}").write_parquet(str(partial))  # noqa: S608 - a noun
            _read(connection, noun, target)


def use(run: Run, connection: duckdb.DuckDBPyConnection, key: str) -> None:
    """Let the views of a connection read what is kept already; nothing is computed."""
    if is_large(connection):
        for noun in NOUNS:
            target = derived_folder(run) / f"{noun}-{key}.parquet"
            if target.exists():
                _read(connection, noun, target)


def _read(connection: duckdb.DuckDBPyConnection, noun: str, file: Path) -> None:
    """The noun's view with its comments, over the file."""
    path = str(file).replace("'", "''")
    connection.execute(f"CREATE OR REPLACE VIEW {noun} AS SELECT * FROM read_parquet('{path}')")  # noqa: S608
    connection.execute(noun_files()[noun].split(";\n", 1)[1])
