r"""Rows out: --format table|csv|json|parquet and -o FILE, the same for every command.

json     a list of objects, one a line; integers as integers, null as null, maps as objects; text exactly
parquet  as it is; needs -o FILE
csv      every text in quotes, null empty without quotes, maps and lists as JSON in quotes. A CSV ends in
         spreadsheets and CI logs, and request ids come from the outside: control characters are written
         as escapes (\n), so that no line can begin with a workflow command, and a text that a spreadsheet
         would compute (`=...`, `@...`, `+` or `-` not followed by a plain number) gets an apostrophe
         before it, since spreadsheets ignore the quotes. json and parquet hold such a text unchanged.
table    for a person: see _table.py
"""

from __future__ import annotations

import json
import math
import re
import sys
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from kvtrace.cli._text import escaped
from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

Format = Literal["table", "csv", "json", "parquet"]
FormatOption = Annotated[
    Format | None,
    Parameter(name="--format", help="How rows come out; default: by the name of -o, else table."),
]
OutputOption = Annotated[
    Path | None, Parameter(name=["--output", "-o"], help="File to write instead of printing.")
]

_SUFFIXES: dict[str, Format] = {".csv": "csv", ".json": "json", ".parquet": "parquet"}
_FORMULA = re.compile(r"[=@]|[+-](?!\d+(\.\d+)?$)")


def write(
    frame: pl.DataFrame,
    form: Format | None,
    output: Path | None,
    *,
    inapplicable: frozenset[str] = frozenset(),
) -> None:
    """Print rows, or write them to a file; `inapplicable`: see _table.show.

    Raises:
        UsageError: parquet without -o, or a file that cannot be written.
    """
    form = form or (_SUFFIXES.get(output.suffix, "table") if output else "table")
    if form == "parquet" and output is None:
        raise UsageError("--format parquet: is no text; name a file with -o FILE.parquet.")
    if output is None:
        _write_text(frame, form, sys.stdout, inapplicable)
        return
    try:
        if form == "parquet":
            frame.write_parquet(output)
        else:
            with output.open("w", encoding="utf-8", newline="") as stream:
                _write_text(frame, form, stream, inapplicable)
    except OSError as error:
        raise UsageError(
            f"{output}: cannot be written ({error.strerror or error}); choose another -o."
        ) from error
    print(f"{output}: {frame.height} rows as {form}", file=sys.stderr)


def _write_text(frame: pl.DataFrame, form: Format, out: IO[str], inapplicable: frozenset[str]) -> None:
    if form == "table":
        from kvtrace.cli._table import show  # rich, which csv and json need not load

        show(frame, out, inapplicable=inapplicable)
        return
    for line in json_lines(frame) if form == "json" else csv_lines(frame):
        out.write(f"{line}\n")


def json_lines(frame: pl.DataFrame) -> Iterator[str]:
    """A list of objects, one a line."""
    yield "["
    for number, row in enumerate(frame.iter_rows(named=True), start=1):
        yield json.dumps(plain(row), allow_nan=False) + ("," if number < frame.height else "")
    yield "]"


def csv_lines(frame: pl.DataFrame) -> Iterator[str]:
    """Header and rows; see the module for what is quoted and escaped."""
    yield ",".join(_quoted(name) for name in frame.columns)
    for row in frame.iter_rows():
        yield ",".join(_csv_cell(value) for value in row)


def plain(value: Any) -> Any:
    """A cell as what JSON knows; NaN and infinity are null there."""
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        entries = [plain(part) for part in value]
        is_map = bool(entries) and all(
            isinstance(part, dict) and part.keys() == {"key", "value"} for part in entries
        )
        return {str(part["key"]): part["value"] for part in entries} if is_map else entries
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _csv_cell(value: Any) -> str:
    value = plain(value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    return _quoted(value if isinstance(value, str) else json.dumps(value))


def _quoted(text: str) -> str:
    shown = escaped(text)
    guarded = f"'{shown}" if _FORMULA.match(shown) else shown
    return '"' + guarded.replace('"', '""') + '"'
