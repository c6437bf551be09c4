"""Whether the process that writes a spool can still write to it.

Only a process of this machine, seen from the same process namespace, can be looked up. Of any other nothing
is known, so its spool counts as ended when nothing was appended for longer than a living process ever
stays silent: it writes an anchor once a minute. A machine that was started anew has ended all of its own.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

SILENCE_SECONDS = 150.0
_PROC = Path("/proc")


def has_ended(header: Mapping[str, Any], spool: Path) -> bool:
    """Whether nothing more can be appended to the spool of this header."""
    over = ended(header)
    return is_silent(spool) if over is None else over


def own_facts() -> dict[str, Any]:
    """By which facts `ended` finds this process, here or elsewhere."""
    return {
        "boot_id": own_boot_id(), "host": socket.gethostname(), "pid": os.getpid(),
        "pid_namespace": own_pid_namespace(), "start_ticks": start_ticks(os.getpid()),
    }  # fmt: skip


def ended(facts: Any) -> bool | None:
    """Whether a process of these facts (own_facts) has ended; None when it cannot be looked up from here."""
    if not isinstance(facts, Mapping):
        return None
    boot_id, pid = facts.get("boot_id"), facts.get("pid")
    if boot_id and boot_id != own_boot_id() and facts.get("host") == socket.gethostname():
        return True
    same = boot_id == own_boot_id() and facts.get("pid_namespace") == own_pid_namespace()
    if not same or not boot_id or not isinstance(pid, int):
        return None
    ticks = start_ticks(pid)
    began = facts.get("start_ticks")
    return ticks is None or (began is not None and ticks != began)


def is_silent(spool: Path) -> bool:
    """Whether the spool has not grown for longer than any living process is silent."""
    try:
        return time.time() - spool.stat().st_mtime > SILENCE_SECONDS
    except OSError:
        return True


def start_ticks(pid: int) -> int | None:
    """When a process of this namespace started, in clock ticks since boot; None when there is none.

    A zombie has ended: its threads are gone, only its exit code waits to be fetched.
    """
    try:
        rest = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if rest[0] in "ZX" else int(rest[19])


@cache
def own_boot_id() -> str | None:
    """The boot id of this machine."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip() or None
    except OSError:
        return None


@cache
def own_pid_namespace() -> str | None:
    """The process namespace that this process looks processes up in."""
    try:
        return str((_PROC / "self/ns/pid").readlink())
    except OSError:
        return None
