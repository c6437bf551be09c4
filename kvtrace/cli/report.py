"""kvtrace report: one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvtrace.cli._text import safe
from kvtrace.errors import UsageError
from kvtrace.report import write_report
from kvtrace.run import open_run


def report(
    *runs: Path,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The page to write.")] = Path(
        "report.html"
    ),
    dashboard: Annotated[
        Path | None, Parameter(help="TOML file: which panels, in which order, with which options.")
    ] = None,
) -> None:
    """Write one HTML page of one or several runs, with everything it needs inside.

    It opens from disk, without a network. Several runs stand side by side.

    Example:
        kvtrace report run -o report.html
    """
    if not runs:
        raise UsageError("report: name at least one run, as in kvtrace report run.")
    write_report([open_run(run) for run in runs], output, dashboard=dashboard)
    print(f"{safe(str(output))}: {output.stat().st_size} bytes; open it in a browser")
