"""kvtrace info: what a run holds, and what it does not."""

from __future__ import annotations

import textwrap
from pathlib import Path  # noqa: TC003 - the parser reads annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from kvtrace.analyses.coverage import coverage
from kvtrace.analyses.inventory import inventory
from kvtrace.cli._rows import json_lines
from kvtrace.cli._text import safe
from kvtrace.run import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

_HEADINGS = {
    "run": "Run", "input": "Inputs (rows, format, remarks)", "engine": "Engines",
    "product": "Products", "time": "Time (UTC)", "requests": "Requests",
    "spans": "Operations", "spans_without_op": "Spans without an operation", "aliases": "Names joined",
    "rows": "Rows", "losses": "Losses", "content_dropped": "Content dropped at the door",
    "instrument": "Instruments",
}  # fmt: skip
_WIDTH = 28
_LINE_WIDTH = 110

InfoFormat = Annotated[
    Literal["table", "json"], Parameter(name="--format", help="Words, or both tables as JSON.")
]


def info(run: Path, /, *, form: InfoFormat = "table") -> None:
    """Say what a run holds: engines, versions, counts, times, losses - and what nobody observed.

    The words of the questions inventory and coverage; `kvtrace analyze inventory` and `kvtrace analyze
    coverage` give their rows in any format.

    Example:
        kvtrace info run
    """
    opened = open_run(run)
    holds, observed = inventory(opened), coverage(opened)
    if form == "json":
        print('{"inventory":', *json_lines(holds), sep="\n", end=',\n"coverage":\n')
        print(*json_lines(observed), sep="\n", end="}\n")
        return
    print(f"{safe(str(opened.origin))}")
    state = holds.filter(what="run", name="state")
    for row in state.to_dicts():
        writing = f" (processes that write: {row['value']})" if row["value"] else ""
        print(f"{row['detail']}{writing}")
    holds = holds.join(state, on=["what", "name"], how="anti", maintain_order="left")
    for what, heading in _HEADINGS.items():
        rows = holds.filter(what=what).to_dicts()
        print(f"\n{heading}{'' if rows else ': none'}")
        for row in rows:
            print(textwrap.indent(_line(row), "    "))
    for line in _coverage_lines(observed):
        print(line)


def _line(row: dict[str, Any]) -> str:
    name, value, detail = row["name"], row["value"], row["detail"]
    label = "(no name)" if name is None else safe(name)
    if row["what"] == "time":
        return f"{label:<{_WIDTH}} {detail or f'{value} ns'}"
    said = [] if value is None else [f"{value:>10}"]
    said += [] if detail is None else [safe(detail)]
    if row["what"] == "product" and detail is None:
        said.append("version not observed")
    if row["what"] == "losses" and name == "duplicate":
        said.append("(counted once; no information is lost)")
    line = f"{label:<{_WIDTH}} {'  '.join(said)}".rstrip()
    indent = " " * (_WIDTH + 1)
    return textwrap.fill(
        line, _LINE_WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _coverage_lines(observed: pl.DataFrame) -> Iterator[str]:
    """What was seen, in part, and not; then what would fill it and what is unknown without it."""
    facts = observed.to_dicts()
    yield "\nObserved"
    for row in facts:
        if row["observed"]:
            partly = "" if row["of_rows"] is None else f" of {row['of_rows']}"
            yield f"    {row['fact']:<{_WIDTH}} {row['rows']:>10}{partly}"
    for heading, chosen in (
        (
            "Observed in part",
            [row for row in facts if row["observed"] and (row["of_rows"] or 0) > row["rows"]],
        ),
        ("Not observed", [row for row in facts if not row["observed"]]),
    ):
        yield f"\n{heading}{'' if chosen else ': none'}"
        for row in chosen:
            missing = (
                f": {row['of_rows'] - row['rows']} of {row['of_rows']} lack it" if row["observed"] else ""
            )
            yield f"    {row['fact']}{missing}"
            yield f"        {row['consequence']}"
            yield f"        would fill it: {row['instrument']}"
    yield "\nAny OTLP span with kvtrace.op fills its noun, whoever sends it (attributes: kvtrace schema)."
