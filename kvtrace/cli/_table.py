"""Rows for a person: null dimmed as "not observed", numbers to the right, what is hidden is said.

A column whose description says "null for ..." has a third state beside a value and not observed: there null
is shown as n/a, not applicable.
"""

from __future__ import annotations

import json
from typing import IO, TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvtrace.cli._rows import plain
from kvtrace.cli._text import safe

if TYPE_CHECKING:
    import polars as pl

NOT_OBSERVED = "not observed"
NOT_APPLICABLE = "n/a"
TERMINAL_ROWS = 50
PIPE_ROWS = 1000
CELL_WIDTH = 60
_PADDING = 3
_ALWAYS = ("bound",)
"""Columns that are never hidden: an upper bound must not be read as a measure."""


class QuietConsole(Console):
    """A console that leaves a broken pipe to main, as every other print does."""

    def on_broken_pipe(self) -> None:
        """Let main see it; rich itself would end the process with exit code 1."""
        raise BrokenPipeError


def console(out: IO[str]) -> QuietConsole:
    """A console that interprets nothing in what it prints."""
    return QuietConsole(file=out, markup=False, highlight=False, emoji=False)


def show(
    frame: pl.DataFrame,
    out: IO[str],
    *,
    term: QuietConsole | None = None,
    inapplicable: frozenset[str] = frozenset(),
) -> None:
    """Print a frame: on a terminal what fits into its width and 50 rows, in a pipe every column.

    `inapplicable` names the columns whose null means not applicable.
    """
    term = term or console(out)
    limit = TERMINAL_ROWS if term.is_terminal else PIPE_ROWS
    nulls = [NOT_APPLICABLE if name in inapplicable else NOT_OBSERVED for name in frame.columns]
    cells = [
        [_cell(value, null) for value, null in zip(row, nulls, strict=True)]
        for row in frame.head(limit).iter_rows()
    ]
    widths = [
        max([cell_len(name), *(row[at].cell_len for row in cells)]) for at, name in enumerate(frame.columns)
    ]
    kept = _fitting(
        frame, [min(width, CELL_WIDTH) for width in widths], term.width if term.is_terminal else None
    )
    term.width = max(term.width, sum(min(widths[at], CELL_WIDTH) + _PADDING for at in kept) + _PADDING)
    term.print(_table(frame, cells, kept))
    cut = any(widths[at] > CELL_WIDTH for at in kept)
    for line in _hidden(frame, kept, len(cells), cut=cut):
        term.print(Text(line, style="dim"), soft_wrap=True)


def _table(frame: pl.DataFrame, cells: list[list[Text]], kept: list[int]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for at in kept:
        right = frame.dtypes[at].is_numeric()
        table.add_column(
            Text(safe(frame.columns[at])), justify="right" if right else "left",
            no_wrap=True, overflow="ellipsis", max_width=CELL_WIDTH,
        )  # fmt: skip
    for row in cells:
        table.add_row(*(row[at] for at in kept))
    return table


def _cell(value: Any, null: str) -> Text:
    """A cell; an empty text is shown in quotes, so that it and null differ from a blank."""
    value = plain(value)
    if value is None:
        return Text(null, style="dim")
    if isinstance(value, bool):
        return Text("true" if value else "false")
    if isinstance(value, str):
        return Text(safe(value) or '""')
    if isinstance(value, float):
        return Text(f"{value:.6g}")
    if isinstance(value, dict):
        return Text(safe(", ".join(f"{key}={part}" for key, part in value.items())) or "{}")
    return Text(safe(json.dumps(value)) if isinstance(value, list) else str(value))


def _fitting(frame: pl.DataFrame, widths: list[int], width: int | None) -> list[int]:
    """Columns that fit, in their order: those that nothing was observed for go first, then from the right."""
    kept = list(range(frame.width))
    if width is None:
        return kept
    empty = [at for at in kept if frame.height and frame[:, at].null_count() == frame.height]
    others = [at for at in kept if at not in empty and frame.columns[at] not in _ALWAYS]
    for at in [*reversed(empty), *reversed(others)]:
        if len(kept) == 1 or sum(widths[at] + _PADDING for at in kept) <= width:
            break
        kept.remove(at)
    return kept


def _hidden(frame: pl.DataFrame, kept: list[int], rows: int, *, cut: bool) -> list[str]:
    """What the table does not show, in words."""
    said = []
    columns = [safe(name) for at, name in enumerate(frame.columns) if at not in kept]
    if columns:
        said.append(f"{len(columns)} of {frame.width} columns hidden: {', '.join(columns)}.")
    if rows < frame.height:
        said.append(f"{frame.height - rows} of {frame.height} rows hidden.")
    if cut:
        said.append(f"Cells longer than {CELL_WIDTH} characters are cut.")
    if said:
        said.append("--format csv shows all.")
    return said if frame.height else [*said, "No rows."]
