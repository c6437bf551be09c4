"""The end of a run: who still writes, the last rows, run.json, few files, and what a person should know.

    command ended ─► who still writes? wait a little ─► last rows, collector ─► run.json ─► few files

Whatever fails here is said and changes nothing: the spools stay, and opening the run converts the rest.
"""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from kvtrace.errors import KvtraceError
from kvtrace.launch import bootstrap, directory
from kvtrace.schema.frames import SUFFIX
from kvtrace.schema.layout import SPOOL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvtrace.launch import Started
    from kvtrace.launch.draining import Draining

WAIT_SECONDS = 10.0
"""So long an engine's other processes may take to end after the command did."""
_PAUSE_SECONDS = 0.1


def close(started: Started, draining: Draining, code: int, say: Callable[[str], None]) -> None:
    """Bring the run to its end; returns in any case, as soon as Ctrl-C if need be."""
    run, facts = started.run, dict(started.facts) | {"ended_ns": time.time_ns(), "exit_code": code}
    over = True
    try:
        draining.stop()
        draining.step()
        over = not draining.began or _wait_for_writers(run, draining, say)
        draining.step(final=True)
        if draining.began:
            _finish(run, draining, facts, say)
        else:
            directory.write_facts(run, facts)
            say(_nothing(started, draining))
    except KeyboardInterrupt:
        say(f"{run}: interrupted; what is not converted yet is converted when the run is opened.")
    except KvtraceError as error:
        say(f"{error} Its spools stay.")
    finally:
        draining.close()
        if over:  # else their next child, or a module that they load late, needs the folder
            bootstrap.remove(started.folder)


def _wait_for_writers(run: Path, draining: Draining, say: Callable[[str], None]) -> bool:
    """Wait until no process writes a spool any more; whether that is so."""
    from kvtrace.sources.spool.finishing import is_over

    deadline, next_pass = time.monotonic() + WAIT_SECONDS, time.monotonic() + 1.0
    while not is_over(run):
        now = time.monotonic()
        if now >= deadline:
            say(f"{run}: {_writers(run)} still records; the rest is converted when the run is opened later.")
            return False
        if now >= next_pass:
            draining.step()
            next_pass = now + 1.0
        time.sleep(_PAUSE_SECONDS)
    return True


def _writers(run: Path) -> str:
    """Who holds spools, in words: their names are <boot>-<pid>-<start>."""
    from kvtrace.sources.spool.liveness import start_ticks

    named = [spool.stem.split("-")[-2:-1] for spool in run.joinpath(SPOOL).glob(f"*{SUFFIX}")]
    pids = sorted({int(pid) for parts in named for pid in parts if pid.isdecimal()})
    living = [str(pid) for pid in pids if start_ticks(pid) is not None]
    return f"process {', '.join(living)}" if living else "a process"


def _finish(run: Path, draining: Draining, facts: dict[str, object], say: Callable[[str], None]) -> None:
    """The parts that need the converter's libraries."""
    from kvtrace.launch import summary
    from kvtrace.sources.spool.finishing import compact

    if draining.delivery is not None:
        sentence, facts["otlp"] = summary.delivered(run, draining.delivery)
        say(sentence)
    directory.write_facts(run, facts)
    if draining.trouble is not None:
        say(f"{run}: not everything is converted ({draining.trouble}); its spools stay.")
        return
    draining.close()
    compact(run)
    for line in summary.lines(run):
        say(line)
    say(f"Next: kvtrace report {shlex.quote(str(run))}")


def _nothing(started: Started, draining: Draining) -> str:
    """Why nothing was recorded, as far as we know."""
    run = started.run
    if draining.trouble is not None:
        return (
            f"{run}: recorded, but not converted ({draining.trouble}); open it where kvtrace is installed "
            "with all that it needs."
        )
    found = bootstrap.reached(started.folder)
    if not found:
        return (
            f"{run}: nothing was recorded, because no Python of the command found kvtrace: it was started "
            "with -E, -I or -S, with a cleaned environment, or there was none. kvtrace doctor --python PATH "
            "looks at one."
        )
    version, executable = found[-1]
    return (
        f"{run}: nothing was recorded: Python {version} found kvtrace, and loaded no engine that it knows. "
        f"kvtrace doctor --python {shlex.quote(executable)} says which it has."
    )
