"""kvtrace compare: groups of runs side by side, and what each step from one to the next brought."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003 - the parser reads annotations
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from kvtrace.analyses._text import many
from kvtrace.cli._rows import FormatOption, OutputOption, write
from kvtrace.cli._table import NOT_OBSERVED, console
from kvtrace.cli._text import safe
from kvtrace.errors import UsageError
from kvtrace.experiment.groups import groups
from kvtrace.experiment.groups.words import change, level, limits, metric_words
from kvtrace.experiment.plan import read_plan
from kvtrace.run import open_run

if TYPE_CHECKING:
    import polars as pl

    from kvtrace.cli._table import QuietConsole


def compare(
    *runs: Path,
    plan: Annotated[
        Path | None,
        Parameter(help="TOML file: what must be the same, the SLO, what each group is held against."),
    ] = None,
    form: FormatOption = None,
    output: OutputOption = None,
) -> None:
    """Put groups of runs of the same work side by side: no_reuse, gpu_prefix, tiered, tiered_cut, or others.

    A run's group is what `kvtrace run --group NAME` said; several runs of a group are its rounds. Of each
    group: how requests ended, what became of the cache's offer, time to first token and between tokens (p50,
    p90, p99), SLO attainment, exposed transfer, hit ratios, recomputed tokens, bytes, with 95% intervals; and
    of each step what it brought. Runs that differ in what must be the same are refused, exit code 3, and so
    is a warm group whose stores were not over when it was measured. With --format the numbers come as rows.

    Example:
        kvtrace compare no-reuse-1 no-reuse-2 tiered-1 tiered-2 --plan plan.toml
    """
    if not runs:
        raise UsageError("compare: give the runs of the groups, as in kvtrace compare RUN...")
    rows = groups([open_run(run) for run in runs], read_plan(plan) if plan else None)
    if form not in (None, "table") or output is not None:
        write(rows, form, output)
        return
    show(rows)


def show(rows: pl.DataFrame) -> None:
    """Two tables for a person: a group a column, then a step a column; and what limits which number."""
    term = console(sys.stdout)
    found = rows.to_dicts()
    cells = {(row["group"], row["metric"]): row for row in found}
    names, metrics = (list(dict.fromkeys(row[key] for row in found)) for key in ("group", "metric"))
    runs = {row["group"]: many(row["runs"], "run") for row in found}
    heads = [f"{name} ({runs[name]})" for name in names]
    lines = [[metric_words(each), *(level(cells[name, each]) for name in names)] for each in metrics]
    _print(term, ["95%", *heads], lines)
    if steps := {row["group"]: row["against"] for row in found if row["against"] is not None}:
        term.print()
        heads = [f"{base} -> {name}" for name, base in steps.items()]
        lines = [[metric_words(each), *(change(cells[name, each]) for name in steps)] for each in metrics]
        _print(term, ["change, 95%", *heads], lines)
    term.print()
    for line in limits(found):
        term.print(Text(safe(line), style="dim"), soft_wrap=True)


def _print(term: QuietConsole, head: list[str], lines: list[list[str]]) -> None:
    """A table as wide as it must be: no column is hidden, a terminal wraps or scrolls."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for at, name in enumerate(head):
        table.add_column(Text(safe(name)), justify="right" if at else "left", no_wrap=True)
    for line in lines:
        table.add_row(*(Text(safe(cell), style="dim" if cell == NOT_OBSERVED else "") for cell in line))
    widths = [max(cell_len(cell) for cell in column) for column in zip(head, *lines, strict=True)]
    term.width = max(term.width, sum(widths) + 3 * len(widths))
    term.print(table)
