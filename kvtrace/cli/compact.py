"""kvtrace compact: few sorted files."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - the parser reads annotations

from kvtrace.cli._text import safe
from kvtrace.run import open_run
from kvtrace.sources.spool.finishing import compact as compacted


def compact(run: Path, /) -> None:
    """Rewrite a run as few sorted files, bucketed by request; nothing in it changes its meaning.

    What its spools hold is converted first; those that have ended are kept in RUN/raw/spool.

    Example:
        kvtrace compact run
    """
    done = compacted(open_run(run).origin)
    print(f"{safe(str(run))}: {done.files_before} files, {done.bytes_before} bytes before")
    print(f"{safe(str(run))}: {done.files_after} files, {done.bytes_after} bytes after")
    for table, rows in done.rows.items():
        print(f"    {table:<12} {rows:>12} rows")
