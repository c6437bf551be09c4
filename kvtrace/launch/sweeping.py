"""Folders on PYTHONPATH (bootstrap.py) that nobody needs any more: of recordings that were killed.

    made ──► command starts ──► maker killed ──► last process of the command ends ──► swept by a later start
                                       └── needed: its next child, a module loaded late ──┘

A folder goes only when its maker and whoever may look into it have ended, as far as this user can see: on
this machine, in this process namespace, of this user. Where there is any doubt it stays.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvtrace.launch import bootstrap
from kvtrace.sources.spool.liveness import own_boot_id, own_pid_namespace, start_ticks

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAME = re.compile(r"kvtrace-\d+-[0-9a-f]{12}")
_PROC = Path("/proc")


class _Maker(NamedTuple):
    """Who made a folder: the process, and when it started, in ticks since boot."""

    pid: int
    ticks: int


def sweep(parent: Path) -> None:
    """Remove what recordings that were killed left in a folder of temporary files; never raises."""
    try:
        found = {folder: maker for folder in _folders(parent) if (maker := _dead_maker(folder)) is not None}
        if found:
            for folder in found.keys() - _needed(found):
                bootstrap.remove(folder)
    except (OSError, ValueError):  # ours are no reason for anybody to fail
        return


def _folders(parent: Path) -> Iterator[Path]:
    """Folders of this user that have the name of ours."""
    with os.scandir(parent) as entries:
        for entry in entries:
            try:
                if (
                    _NAME.fullmatch(entry.name)
                    and entry.is_dir(follow_symlinks=False)
                    and entry.stat(follow_symlinks=False).st_uid == os.geteuid()
                ):
                    yield Path(entry.path)
            except OSError:  # gone meanwhile
                continue


def _dead_maker(folder: Path) -> _Maker | None:
    """Who made a folder, if that process ran here and has ended; None otherwise, or when nobody says."""
    try:
        boot_id, namespace, *numbers = (folder / bootstrap.MAKER).read_text().split("\n")
        pid, ticks, end = numbers
        maker = _Maker(int(pid), int(ticks))
    except (OSError, ValueError):
        return None
    here = boot_id == own_boot_id() and namespace == own_pid_namespace()
    return maker if here and end == "" and start_ticks(maker.pid) != maker.ticks else None


def _needed(found: dict[Path, _Maker]) -> set[Path]:
    """Folders that a living process has on its path, was in, or may have: it hides what it has."""
    needed = {
        folder for folder in found if any(start_ticks(pid) is not None for pid in bootstrap.visitors(folder))
    }
    for pid in (int(entry) for entry in os.listdir(_PROC) if entry.isdecimal()):  # noqa: PTH208 - no Path each
        ticks = start_ticks(pid)
        if ticks is None or pid == os.getpid():
            continue
        environment, hides = _environment(pid)
        for folder, maker in found.items():
            if os.fsencode(folder) in environment or (hides and ticks >= maker.ticks):
                needed.add(folder)
    return needed


def _environment(pid: int) -> tuple[bytes, bool]:
    """The environment of a process as it started, and whether a Python of this user keeps its own from us.

    A process that gives itself a title (setproctitle, as engines do) writes over the memory that shows it.
    """
    place = _PROC / str(pid)
    try:
        if place.stat().st_uid != os.geteuid():
            return b"", False  # cannot enter a folder that is private to this user
        shown = (place / "environ").read_bytes()
        if b"=" in shown or not (place / "cmdline").read_bytes():
            return shown, False
        return b"", b"python" in (place / "maps").read_bytes()
    except ProcessLookupError:
        return b"", False
    except OSError:
        return b"", place.exists()
