"""Where a run is built: beside its final place, so that it is whole or not there at all."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.errors import RunError, RunExistsError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def building(out: Path, doing: str) -> Iterator[Path]:
    """A private folder `.<run>.<doing>-*` beside `out`; the caller renames what it made there.

    Whatever ends the block otherwise removes the folder, and the parents that were made for it.

    Raises:
        RunExistsError: `out` exists; nothing is ever written over.
        RunError: no folder can be made there, or the disk is full or read-only.
    """
    _free(out)
    folder, made = _place(out, doing)
    try:
        yield folder
    except OSError as error:
        _remove(made)
        raise RunError(
            f"{out}: cannot be written ({error.strerror or error}); nothing was kept. Free space, or choose "
            "another --out."
        ) from error
    except BaseException:
        _remove(made)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _free(out: Path) -> None:
    try:
        taken = out.exists() or out.is_symlink()
    except OSError as error:
        raise RunError(
            f"{out}: cannot be reached ({error.strerror or error}); choose an --out you can write."
        ) from error
    if taken:
        raise RunExistsError(f"{out}: exists already; choose another --out, nothing is written over.")


def _place(out: Path, doing: str) -> tuple[Path, list[Path]]:
    """The folder, and the parents made for it."""
    parent = out.absolute().parent
    missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{out.name}.{doing}-", dir=parent)), missing
    except OSError as error:
        _remove(missing)
        raise RunError(
            f"{out}: cannot be made ({error.strerror or error}); choose an --out in a folder you can write."
        ) from error


def _remove(made: list[Path]) -> None:
    """Remove the parents that were made for a run that came to nothing, the innermost first."""
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)
