"""kvtrace list: questions, panels, nouns and tables, one line each."""

from __future__ import annotations

from kvtrace.analyses import questions, takes
from kvtrace.cli._docs import constant
from kvtrace.cli._nouns import view_docs
from kvtrace.cli._rows import FormatOption, OutputOption, write
from kvtrace.cli._text import safe
from kvtrace.panels import panels
from kvtrace.schema.tables import TABLE_DOCS

Row = tuple[str, str, str, str | None]


def list_(*, form: FormatOption = None, output: OutputOption = None) -> None:
    """Name all questions, panels, nouns and tables, with what each is about.

    Example:
        kvtrace list
    """
    rows: list[Row] = [("question", name, asks, _runs(name)) for name, asks in questions().items()]
    rows += [("panel", name, constant("kvtrace.panels", name, "TITLE"), None) for name in panels()]
    rows += [("noun", name, doc, None) for name, doc in view_docs().items() if name not in TABLE_DOCS]
    rows += [("table", name, doc, None) for name, doc in TABLE_DOCS.items()]
    if form is None and output is None:
        _print(rows)
        return
    import polars as pl  # the plain list need not load it

    schema = {"kind": pl.String, "name": pl.String, "about": pl.String, "runs": pl.String}
    write(pl.DataFrame(rows, schema=schema, orient="row"), form, output)


def _runs(question: str) -> str:
    """The runs that a question takes, as they are written on the command line."""
    names, more = takes(question)
    return " ".join(name.upper() for name in names) + ("..." if more else "")


def _print(rows: list[Row]) -> None:
    how = {
        "question": "Questions (kvtrace analyze NAME RUN)", "panel": "Panels (kvtrace report RUN)",
        "noun": "Nouns (kvtrace sql RUN)", "table": "Tables (kvtrace sql RUN)",
    }  # fmt: skip
    for kind, heading in how.items():
        print(f"{heading}")
        for _, name, about, runs in (row for row in rows if row[0] == kind):
            several = "" if runs in (None, "RUN") else f" (takes {takes(name)})"
            print(f"    {safe(name):<16} {safe(about)}{several}".rstrip())
        print()
    print("kvtrace describe NAME says more about any of them.")
