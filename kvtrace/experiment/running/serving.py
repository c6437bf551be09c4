"""One engine start of a group: its backend first, then the engine, each under `kvtrace run`."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.experiment.running import children, pages
from kvtrace.experiment.running.commands import filled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.experiment.plan import Group, Plan
    from kvtrace.experiment.running.children import Child

START_SECONDS = 600.0
READY = "/health"
KVTRACE = (sys.executable, "-m", "kvtrace")


@dataclass(frozen=True)
class Serving:
    """A group that serves; `recorded` is where its runs lie: `engine`, and `backend` where there is one."""

    group: str
    settings: Group
    folder: Path
    recorded: Path
    port: int
    engine: Child
    backend: Child | None
    values: dict[str, str]


@contextmanager
def serving(plan: Plan, name: str, folder: Path, *, start: int) -> Iterator[Serving]:
    """Start a group, yield when it answers, and end what was started, the engine first.

    Raises:
        UsageError: a command cannot be started, ends, or is not ready in time.
    """
    group, recorded = plan.groups[name], folder / "recorded" / f"{name}-{start}"
    port, backend_port, backend_http_port = pages.free_ports(3)
    values = {
        "base_url": f"http://{pages.HOST}:{port}", "port": str(port), "backend_port": str(backend_port),
        "backend_http_port": str(backend_http_port), "group": name, "folder": str(folder),
        "request_id_prefix": plan.load.request_id_prefix, "python": sys.executable,
        "clock_offset_ns": str(time.time_ns() - time.monotonic_ns()),
    }  # fmt: skip
    seconds = group.start_s or START_SECONDS
    started: list[Child] = []

    def begin(which: str, command: str) -> Child:
        words = filled(f"[group.{name}] {which}", command, values)
        recording = [*KVTRACE, "run", "--group", name, "--out", str(recorded / which), "--"]
        log = folder / "logs" / f"{name}-{start}-{which}.log"
        child = children.start(
            f"{name} {which}", [*recording, *words], folder=folder, log=log, more=group.environment
        )
        started.append(child)
        return child

    try:
        backend = None
        if group.backend is not None:
            backend = begin("backend", group.backend)
            if group.backend_ready is None:
                pages.wait_until_ready(backend, backend_port, None, seconds=seconds)
            else:
                pages.wait_until_ready(backend, backend_http_port, group.backend_ready, seconds=seconds)
        engine = begin("engine", group.engine or "")
        pages.wait_until_ready(engine, port, group.ready or READY, seconds=seconds)
        yield Serving(name, group, folder, recorded, port, engine, backend, values)
    finally:
        with children.undisturbed():
            for child in reversed(started):
                children.stop(child)
