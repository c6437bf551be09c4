"""kvtrace describe: one question, panel, noun or table, column by column."""

from __future__ import annotations

import difflib
import inspect

import polars as pl

from kvtrace.analyses import question, questions, takes
from kvtrace.cli._docs import columns
from kvtrace.cli._nouns import view_columns, view_docs
from kvtrace.cli._rows import FormatOption, OutputOption, write
from kvtrace.cli._text import safe
from kvtrace.errors import UsageError
from kvtrace.panels import panel, panels


def describe(name: str, /, *, form: FormatOption = None, output: OutputOption = None) -> None:
    """Say what a question, panel, noun or table means, and every column with its unit.

    With --format the columns come out as rows.

    Example:
        kvtrace describe transfer
    """
    known = {*questions(), *panels(), *view_docs()}
    if name not in known:
        near = difflib.get_close_matches(name, sorted(known), n=1)
        hint = f"Did you mean {near[0]}?" if near else "kvtrace list names everything."
        raise UsageError(f"{name}: no such question, panel, noun or table. {hint}")
    if form is not None or output is not None:
        schema = dict.fromkeys(("kind", "name", "column", "type", "meaning"), pl.String)
        write(pl.DataFrame(_columns(name), schema=schema, orient="row"), form, output)
        return
    parts = [part for part in (_question(name), _panel(name), _view(name)) if part]
    print("\n\n".join(parts))


def _columns(name: str) -> list[tuple[str, str, str, str | None, str]]:
    """The columns of whatever has this name; a question's types are known only when it is asked."""
    rows: list[tuple[str, str, str, str | None, str]] = []
    if name in questions():
        found = columns(question(name).__doc__)
        rows += [("question", name, column, None, meaning) for column, meaning in found.items()]
    rows += [("noun", name, entry.name, entry.type, entry.meaning) for entry in view_columns().get(name, ())]
    return rows


def _question(name: str) -> str:
    if name not in questions():
        return ""
    doc = inspect.cleandoc(question(name).__doc__ or "")
    runs = " ".join(each.upper() for each in takes(name).names)
    return f"{name} is a question: kvtrace analyze {name} {runs}{' ...' if takes(name).more else ''}\n\n{doc}"


def _panel(name: str) -> str:
    if name not in panels():
        return ""
    module = panel(name)
    parts = [f"{name} is a panel: kvtrace report RUN", f"{module.TITLE}\n{module.READING}"]
    parts.append(inspect.cleandoc(module.data.__doc__ or ""))
    options = [p for p in inspect.signature(module.data).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if options:
        parts.append(
            "Options (in a dashboard file):\n" + "\n".join(f"    {p.name} = {p.default!r}" for p in options)
        )
    return "\n\n".join(part for part in parts if part)


def _view(name: str) -> str:
    entries = view_columns().get(name, ())
    if not entries:
        return ""
    lines = [f"{name} is a noun or table, for kvtrace sql RUN", "", view_docs()[name], ""]
    width = max(len(entry.name) for entry in entries)
    kinds = max(min(len(entry.type), 24) for entry in entries)
    lines += [f"    {entry.name:<{width}}  {entry.type:<{kinds}}  {safe(entry.meaning)}" for entry in entries]
    return "\n".join(lines)
