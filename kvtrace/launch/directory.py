"""The run directory and its run.json: written before the command starts, replaced atomically at the end."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace import __version__, schema
from kvtrace.errors import RunError, RunExistsError
from kvtrace.schema.layout import PARTIAL, RUN_FILE
from kvtrace.sources.spool.liveness import own_boot_id, own_facts

if TYPE_CHECKING:
    from typing import Any


def default_out() -> Path:
    """`kvtrace-run-<local time>` in the current folder; a second run in the same second gets a number."""
    name = time.strftime("kvtrace-run-%Y%m%d-%H%M%S")
    names = (name if number == 1 else f"{name}-{number}" for number in range(1, 1000))
    return next(path for path in map(Path, names) if not path.exists())


def make(out: Path) -> None:
    """Make the run directory, private to the user.

    Raises:
        RunExistsError: it exists; nothing is ever written over.
        RunError: it cannot be made.
    """
    try:
        if os.path.lexists(out):
            raise RunExistsError(f"{out}: exists already; choose another --out, nothing is written over.")
        out.parent.mkdir(parents=True, exist_ok=True)
        out.mkdir(mode=0o700)
    except OSError as error:
        raise RunError(
            f"{out}: cannot be made ({error.strerror or error}); choose an --out you can write."
        ) from error


def first_facts(*, run_id: str, group: str | None, program: str, clocks: tuple[int, int]) -> dict[str, Any]:
    """What is known before the command starts. Of the command its program alone: arguments hold secrets."""
    monotonic_ns, unix_ns = clocks
    return {
        "schema_version": schema.VERSION,
        "run_id": run_id,
        "kind": "run",
        "group": group,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(unix_ns // 1_000_000_000)),
        "kvtrace_version": __version__,
        "synthetic": None,
        "engines": None,
        "recording": {"captured": f"kvtrace run, from inside the processes of {program}."},
        "command": program,
        "host": os.uname().nodename,
        "boot_id": own_boot_id(),
        "recorder": own_facts(),
        "anchor": {"monotonic_ns": monotonic_ns, "unix_ns": unix_ns},
        "started_ns": unix_ns,
        "ended_ns": None,
        "exit_code": None,
        "content_kept": False,
        "content_dropped": {},
    }


def write_facts(run: Path, facts: dict[str, Any]) -> None:
    """Write run.json as a whole or not at all; its appearance makes the directory a run.

    Raises:
        RunError: the disk is full, or the directory went away.
    """
    partial = run / f"{RUN_FILE}{PARTIAL}"
    try:
        partial.write_text(json.dumps(facts, indent=2) + "\n")
        partial.replace(run / RUN_FILE)
    except OSError as error:
        raise RunError(
            f"{run / RUN_FILE}: cannot be written ({error.strerror or error}). "
            "Free space or choose another --out."
        ) from error
