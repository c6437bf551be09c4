"""SQL that comes from a person or a file: exactly one SELECT, inside the run, bounded in memory and time.

DuckDB's settings alone are no sandbox: with external access off, COPY into the run, ATTACH, a second
statement and replacing a view still succeed. So the statement is parsed by DuckDB itself first, and only
type SELECT goes on (EXPLAIN does not: EXPLAIN ANALYZE COPY has that type).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.errors import QueryError
from kvtrace.run.nouns import create_views

if TYPE_CHECKING:
    from collections.abc import Mapping

    import duckdb
    import polars as pl

MEMORY_LIMIT = "2GB"
TIME_LIMIT_SECONDS = 300.0


def guarded_connection(run: Path) -> duckdb.DuckDBPyConnection:
    """An in-memory database with the run's nouns that can read the run's files and nothing else."""
    import duckdb  # noqa: PLC0415

    connection = duckdb.connect(":memory:")
    create_views(connection, run)
    connection.execute("SET allowed_directories = [$run]", {"run": f"{run}/"})
    connection.execute("SET enable_external_access = false")
    connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
    connection.execute("SET lock_configuration = true")
    return connection


def guarded(run: Path, query: str, params: Mapping[str, object]) -> pl.DataFrame:
    """Answer one SELECT.

    Raises:
        QueryError: not exactly one SELECT, refused by DuckDB, out of memory or out of time.
    """
    import duckdb  # noqa: PLC0415

    connection = guarded_connection(run)
    timer = threading.Timer(TIME_LIMIT_SECONDS, connection.interrupt)
    try:
        statements = connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise QueryError("sql: takes exactly one SELECT statement; nothing was run.")
        timer.start()
        return connection.sql(query, params=dict(params) or None).pl()
    except duckdb.InterruptException:
        raise QueryError(f"sql: gave up after {TIME_LIMIT_SECONDS:.0f} s; ask for less.") from None
    except duckdb.Error as error:
        raise QueryError(f"sql: {_sentence(str(error))}") from error
    finally:
        timer.cancel()
        connection.close()


def _sentence(message: str) -> str:
    """DuckDB's first line, with the hint that a contract column is a reserved word."""
    first = " ".join(message.split("\n\n")[0].split())
    hint = ' ("window" is a reserved word: write it in double quotes)' if "window" in message.lower() else ""
    return first + hint
