"""A run whose spools hold more than its files, as one run: for a reader, in a temporary folder.

    RUN/span/part-000.parquet  ◄──link── VIEW/span/part-000.parquet
    RUN/spool/*.kvspool        ──convert► VIEW/span/spool-000007.parquet    what no file covers yet, and what
    RUN/run.json               ──copy──► VIEW/run.json                      is still open, as it stands now

Nothing is written into the run. Files that come into it later are not linked, so that a reader sees one
moment of the recording, however long it asks.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kvtrace import schema
from kvtrace.errors import RunError
from kvtrace.schema.layout import RUN_FILE
from kvtrace.schema.tables import TABLES
from kvtrace.sinks.parquet.covered import Covered, covered
from kvtrace.sources.spool.conversion import Conversion
from kvtrace.sources.spool.drain import run_id, spool_files

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_ATTEMPTS = 5


def view(run: Path, folder: Path) -> None:
    """Make an empty folder a run that shows this moment of another.

    Raises:
        RunError: one of the run's files is torn, or the folder cannot be written.
    """
    for attempt in range(_ATTEMPTS):
        try:
            _fill(run, folder / str(attempt))
        except FileNotFoundError:  # compaction exchanged files, or a finished spool was moved: look again
            continue
        for part in (folder / str(attempt)).iterdir():
            part.rename(folder / part.name)
        return
    raise RunError(
        f"{run}: its files are being exchanged all the time; try again when kvtrace compact has ended."
    )


def _fill(run: Path, folder: Path) -> None:
    folder.mkdir(mode=0o700)
    known = covered(run)
    conversion = Conversion(folder, run_id(run), known, hasty=True)
    conversion.follow(spool_files(run))
    for table, files in known.files.items():
        for file in files:
            inside = file.relative_to(run)
            link = folder / table / inside.relative_to(inside.parts[0])
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.resolve(strict=True))
    for _ in conversion.advance():
        pass
    conversion.show_open()
    conversion.commit()
    (folder / RUN_FILE).write_bytes((run / RUN_FILE).read_bytes())


def converted(spools: Sequence[Path], folder: Path) -> dict[str, dict[str, int]]:
    """Make a folder a run of some spools alone, as if no process wrote any more; rows by spool and table."""
    nothing: Covered = Covered({}, dict.fromkeys(TABLES, ()))
    folder.mkdir(mode=0o700, parents=True)
    conversion = Conversion(folder, None, nothing, hasty=True)
    conversion.follow(spools)
    for _ in conversion.advance(everything_ended=True):
        pass
    conversion.commit()
    (folder / RUN_FILE).write_text(json.dumps({"schema_version": schema.VERSION}))
    return {name: dict(spool.rows) for name, spool in conversion.spools.items()}
