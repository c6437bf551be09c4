"""SQL that comes from a person or a file: exactly one SELECT, inside the run, bounded in memory and time.

DuckDB's settings alone are no sandbox: with external access off, COPY into the run, ATTACH, a second
statement and replacing a view still succeed. So the statement is parsed by DuckDB itself first, and only
type SELECT goes on (EXPLAIN does not: EXPLAIN ANALYZE COPY has that type).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kvtrace.errors import QueryError
from kvtrace.run.nouns import create_views
from kvtrace.schema.layout import table_files
from kvtrace.schema.tables import TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import duckdb
    import polars as pl
    import pyarrow as pa

MEMORY_LIMIT = "2GB"
TIME_LIMIT_SECONDS = 300.0
ANSWER_LIMIT_BYTES = 1 << 31
"""The answer leaves DuckDB's memory, so DuckDB's limit does not bound it."""
NO_COLUMN = frozenset({"interval", "union", "bignum", "variant", "geometry"})
"""DuckDB types that a data frame has no type for (polars fails or even panics on some)."""
_BATCH_ROWS = 64 * 1024


def guarded_connection(run: Path) -> duckdb.DuckDBPyConnection:
    """An in-memory database with the run's nouns that can read the run's files and nothing else."""
    import duckdb

    connection = duckdb.connect(":memory:")
    create_views(connection, run)
    connection.execute("SET temp_directory = ''")  # else a big sort fills the disk, in the caller's folder
    connection.execute("SET allowed_directories = [$run]", {"run": f"{run}/"})
    if links := _linked(run):
        connection.execute("SET allowed_paths = $links", {"links": links})
    connection.execute("SET enable_external_access = false")
    connection.execute("SET python_enable_replacements = false")
    connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
    connection.execute("SET lock_configuration = true")
    return connection


def _linked(run: Path) -> list[str]:
    """The files of another run that a view of it links to: DuckDB asks where a link leads."""
    files = (file for table in TABLES for file in table_files(run, table))
    return [str(file.resolve()) for file in files if file.is_symlink()]


def guarded(run: Path, query: str, params: Mapping[str, object]) -> pl.DataFrame:
    """Answer one SELECT.

    Raises:
        QueryError: not exactly one SELECT, refused by DuckDB, out of memory or out of time, or a column of
            a type that a data frame does not have.
    """
    import duckdb
    import pyarrow as pa

    connection = guarded_connection(run)
    late = threading.Event()

    def stop() -> None:
        late.set()
        connection.interrupt()

    timer = threading.Timer(TIME_LIMIT_SECONDS, stop)
    timer.daemon = True
    try:
        query.encode()
        statements = connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise QueryError("sql: takes exactly one SELECT statement; nothing was run.")
        timer.start()
        return _frame(connection.sql(query, params=dict(params) or None))
    except (duckdb.Error, pa.ArrowException, OSError) as error:  # a batch that fails raises Arrow's own
        if late.is_set():
            raise QueryError(f"sql: gave up after {TIME_LIMIT_SECONDS:.0f} s; ask for less.") from None
        if "Out of Memory Error" in str(error):
            raise QueryError(f"sql: needs more memory than {MEMORY_LIMIT}; ask for less.") from None
        raise QueryError(f"sql: {_sentence(str(error))}") from error
    except UnicodeEncodeError:  # an argument of the command line that is no UTF-8
        raise QueryError("sql: is not UTF-8 text; nothing was run.") from None
    finally:
        timer.cancel()
        connection.close()


def _frame(relation: duckdb.DuckDBPyRelation) -> pl.DataFrame:
    """The answer as a data frame, batch by batch so that its size is bounded."""
    import polars as pl
    import pyarrow as pa

    for name, kind in zip(relation.columns, relation.types, strict=True):
        if found := _foreign(kind):
            way_out = f"cast it, as in {name}::VARCHAR"
            raise QueryError(f"sql: column {name} has type {found}, which no data frame holds; {way_out}.")
    reader = relation.to_arrow_reader(_BATCH_ROWS)
    batches: list[pa.RecordBatch] = []
    size = 0
    for batch in reader:
        batches.append(batch)
        size += batch.nbytes
        if size > ANSWER_LIMIT_BYTES:
            way_out = "aggregate, filter or add a LIMIT"
            raise QueryError(f"sql: the answer is larger than {ANSWER_LIMIT_BYTES:,} bytes; {way_out}.")
    names: list[str] = []
    for name in reader.schema.names:  # SELECT 1 AS a, 2 AS a
        again, number = name, 1
        while again in names:
            again, number = f"{name}_{number}", number + 1
        names.append(again)
    return pl.DataFrame(pa.Table.from_batches(batches, schema=reader.schema).rename_columns(names))


def _foreign(kind: duckdb.sqltypes.DuckDBPyType) -> str | None:
    """The first type inside this one that a data frame has no type for."""
    if kind.id in NO_COLUMN:
        return kind.id.upper()
    if kind.id not in ("list", "array", "struct", "map"):
        return None
    parts = (child for _, child in kind.children if not isinstance(child, int | list))  # an array's size
    return next((found for child in parts if (found := _foreign(child))), None)


def _sentence(message: str) -> str:
    """DuckDB's first line, with the hint that a contract column is a reserved word."""
    first = " ".join(message.split("\n\n")[0].split())
    hint = ' ("window" is a reserved word: write it in double quotes)' if "window" in message.lower() else ""
    return first + hint
