"""Who and where this process is: what the header of its spool says."""

from __future__ import annotations

import os
import sys
import time

from kvtrace import __version__
from kvtrace.schema import VERSION
from kvtrace.schema.frames import FORMAT


def first_line(path: str) -> str:
    """First line of a small file, empty when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


def clock_pair() -> tuple[int, int]:
    """(monotonic ns, unix ns) of one instant: of three readings the one that took least."""
    best: tuple[int, int, int] | None = None
    for _ in range(3):
        before = time.monotonic_ns()
        unix = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = (after - before, (before + after) // 2, unix)
    assert best is not None
    return best[1], best[2]


def given_anchor() -> tuple[int, int] | None:
    """The anchor that `kvtrace run` hands to every process, KVTRACE_ANCHOR = monotonic ns:unix ns."""
    try:
        monotonic, unix = os.environ["KVTRACE_ANCHOR"].split(":")
        return int(monotonic), int(unix)
    except (KeyError, ValueError):
        return None


def boot_id() -> str:
    """Boot id of the machine, as the kernel writes it; "unknown" where there is none."""
    return first_line("/proc/sys/kernel/random/boot_id") or "unknown"


def host() -> str:
    """`host.name` of OTEL_RESOURCE_ATTRIBUTES: a container's own name says little; else the machine's."""
    for pair in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        name, _, value = pair.partition("=")
        if name.strip() == "host.name" and value.strip():
            return value.strip()
    return os.uname().nodename


def header(*, boot: str, start_ns: int, prefix: int) -> dict[str, object]:
    """The header of a spool (schema.frames.HEADER_FIELDS)."""
    anchor = given_anchor()
    return {
        "format": FORMAT,
        "schema": VERSION,
        "kvtrace": __version__,
        "run_id": os.environ.get("KVTRACE_RUN_ID"),
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "start_ticks": _start_ticks(),
        "pid_namespace": _link("/proc/self/ns/pid"),
        "time_namespace": _link("/proc/self/ns/time"),
        "boot_id": boot,
        "host": host(),
        "start_ns": start_ns,
        "anchor": anchor or clock_pair(),
        "anchor_source": "run" if anchor else "own",
        "prefix": prefix,
        "program": os.path.basename((getattr(sys, "argv", None) or [""])[0]),
        "python": sys.version.split()[0],
    }


def _link(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _start_ticks() -> int | None:
    """The command name, field 2, may hold spaces and brackets: fields are counted behind its last one."""
    try:
        return int(first_line("/proc/self/stat").rpartition(")")[2].split()[19])
    except (IndexError, ValueError):
        return None
