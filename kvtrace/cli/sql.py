"""kvtrace sql: one SELECT over nouns and tables."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - the parser reads annotations

import polars as pl

from kvtrace.cli._rows import FormatOption, OutputOption, write
from kvtrace.errors import QueryError
from kvtrace.run import open_run


def sql(run: Path, query: str, /, *, form: FormatOption = None, output: OutputOption = None) -> None:
    """Run one SELECT over the nouns and tables of a run.

    `kvtrace list` names them, `kvtrace describe NOUN` says what each column means. Exactly one SELECT
    is taken, and it can reach nothing but the run. "window" is a reserved word: write it in double quotes.

    Example:
        kvtrace sql run "SELECT request_id, ttft_ns FROM request ORDER BY ttft_ns DESC LIMIT 5"
    """
    try:
        rows = open_run(run).sql(query)
    except pl.exceptions.PolarsError as error:
        raise QueryError(
            f"sql: a column of the answer has a type that cannot come out ({error}); cast it."
        ) from error
    write(rows, form, output)
