"""kvtrace list: questions, panels, nouns and tables, one line each."""

from __future__ import annotations

from kvtrace.analyses import questions
from kvtrace.cli._docs import constant
from kvtrace.cli._nouns import view_docs
from kvtrace.cli._rows import FormatOption, OutputOption, write
from kvtrace.cli._text import safe
from kvtrace.panels import panels
from kvtrace.schema.tables import TABLE_DOCS


def list_(*, form: FormatOption = None, output: OutputOption = None) -> None:
    """Name all questions, panels, nouns and tables, with what each is about.

    Example:
        kvtrace list
    """
    rows = [("question", name, asks) for name, asks in questions().items()]
    rows += [("panel", name, constant("kvtrace.panels", name, "TITLE")) for name in panels()]
    rows += [("noun", name, doc) for name, doc in view_docs().items() if name not in TABLE_DOCS]
    rows += [("table", name, doc) for name, doc in TABLE_DOCS.items()]
    if form is None and output is None:
        _print(rows)
        return
    import polars as pl  # the plain list need not load it

    write(pl.DataFrame(rows, schema=["kind", "name", "about"], orient="row"), form, output)


def _print(rows: list[tuple[str, str, str]]) -> None:
    how = {
        "question": "Questions (kvtrace analyze NAME RUN)", "panel": "Panels (kvtrace report RUN)",
        "noun": "Nouns (kvtrace sql RUN)", "table": "Tables (kvtrace sql RUN)",
    }  # fmt: skip
    for kind, heading in how.items():
        print(f"{heading}")
        for _, name, about in (row for row in rows if row[0] == kind):
            print(f"    {safe(name):<16} {safe(about)}".rstrip())
        print()
    print("kvtrace describe NAME says more about any of them.")
