"""Reading a run whose processes still write, or died: its spools hold what its files do not.

    recording over, run can be written ──► converted in place, once; spools go to raw/spool
    else ──────────────────────────────► a view of this moment in a temporary folder, removed with the process

Nothing of this is imported for a run without spools.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.errors import RunError
from kvtrace.schema.layout import SPOOL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.run.opening import Run

KEPT_VIEWS = 8
"""So many views are kept after their runs are gone: a relation may outlive the run it was made from."""
_views: list[Path] = []
_unused: deque[Path] = deque()


def settle(run: Path) -> bool:
    """Convert a run in place whose recording is over; whether anything was done.

    A run that cannot be written, or that another process is converting, stays as it is.
    """
    if not _spools(run) or not os.access(run, os.W_OK):
        return False
    from kvtrace.sources.spool.finishing import finish, is_over

    try:
        return is_over(run) and finish(run, wait_seconds=0.0)
    except RunError:
        return False


def moment(run: Path) -> Path | None:
    """The folder in which this moment of a run can be read; None when its own files hold all of it.

    Raises:
        RunError: one of the run's files is torn, or there is no room for temporary files.
    """
    if not _spools(run):
        return None
    from kvtrace.sources.spool.view import view

    try:
        folder = Path(tempfile.mkdtemp(prefix="kvtrace-view-")) / run.name
        if not _views:
            atexit.register(_remove_all, os.getpid())
        _views.append(folder.parent)
        folder.mkdir(mode=0o700)
        view(run, folder)
    except OSError as error:
        raise RunError(
            f"{run}: is being recorded, and there is no room to read it ({error.strerror or error}); "
            "free space in the folder of temporary files."
        ) from error
    return folder


def watch(run: Run) -> Run:
    """Remove the view of a run some time after the run is gone."""
    if run.path != run.origin:
        weakref.finalize(run, _let_go, run.path.parent, os.getpid()).atexit = False
    return run


def _let_go(folder: Path, process: int) -> None:
    """Nobody reads a view any more."""
    if process == os.getpid():
        _unused.append(folder)
        while len(_unused) > KEPT_VIEWS:
            shutil.rmtree(_unused.popleft(), ignore_errors=True)


def _remove_all(process: int) -> None:
    """The process ends; a forked one leaves its parent's views alone."""
    if process == os.getpid():
        for folder in _views:
            shutil.rmtree(folder, ignore_errors=True)


def _spools(run: Path) -> bool:
    """Whether spools lie in the run's folder of spools."""
    return any(_visible(run / SPOOL))


def _visible(folder: Path) -> Iterator[Path]:
    try:
        yield from (file for file in folder.iterdir() if not file.name.startswith("."))
    except OSError:
        return
