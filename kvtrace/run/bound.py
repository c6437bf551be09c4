"""The nouns, bound once a process: DuckDB binds a view when it is created, a dozen of ours cost it 0.1 s.

    first connection     CREATE VIEW span, ... then CREATE VIEW request, ... (sql/)
    second               the same, and what it then holds is kept: a file of views alone, private, temporary
    all further ones     ATTACH it, COPY FROM DATABASE, DETACH: 0.01 s, the same views and comments

What is kept has the tables of an empty run: whoever copies it points them at the files of a run of its own.
A process that opens one connection, as most commands do, pays nothing for this.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

_NAME = "kvtrace_nouns"
_lock = threading.Lock()
_kept: dict[int, Path] = {}
"""Process -> its file, which goes with the process; a forked child keeps its own."""
_seen: set[int] = set()


def copied(connection: duckdb.DuckDBPyConnection) -> bool:
    """Put the kept views into an empty database; False when none are kept, and then nothing was done."""
    file = _kept.get(os.getpid())
    if file is None:
        return False
    import duckdb

    try:
        connection.execute(f"ATTACH {_quoted(file)} AS {_NAME} (READ_ONLY)")
    except duckdb.IOException:  # somebody cleaned the temporary folder: bind again
        _kept.pop(os.getpid(), None)
        return False
    connection.execute(f"COPY FROM DATABASE {_NAME} TO memory (SCHEMA)")
    connection.execute(f"DETACH {_NAME}")
    return True


def keep(connection: duckdb.DuckDBPyConnection) -> None:
    """Keep the views of a database that holds nothing else, from a process's second one on.

    Where there is no temporary folder to write, nothing is kept and every connection binds its own.
    """
    with _lock:
        process = os.getpid()
        if process not in _seen:
            _seen.add(process)
        elif process not in _kept:
            with suppress(OSError):
                folder = Path(tempfile.mkdtemp(prefix="kvtrace-"))
                atexit.register(_remove, process, folder)
                if _written(connection, folder / "nouns"):
                    _kept[process] = folder / "nouns"


def _written(connection: duckdb.DuckDBPyConnection, file: Path) -> bool:
    import duckdb

    try:
        connection.execute(f"ATTACH {_quoted(file)} AS {_NAME}")
    except duckdb.Error:
        return False
    try:
        connection.execute(f"COPY FROM DATABASE memory TO {_NAME} (SCHEMA)")
    except duckdb.Error:
        return False
    else:
        return True
    finally:
        connection.execute(f"DETACH {_NAME}")


def _remove(process: int, folder: Path) -> None:
    """A forked child that ends leaves its parent's folder."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _quoted(file: Path) -> str:
    return "'" + str(file).replace("'", "''") + "'"
