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
    facts = dict(started.facts) | {"ended_ns": time.time_ns(), "exit_code": code}
    living: list[int] = []
    try:
        living = _wait_for_writers(started.run, say)
        draining.stop()
        draining.step(final=True)
        _finish(started, draining, facts, say, whole=not living)
    except KeyboardInterrupt:
        say(f"{started.run}: interrupted; what is not converted yet is when the run is opened.")
    except KvtraceError as error:
        say(str(error))
    finally:
        draining.close()
        if not living:  # else their next child, or a module they load late, needs the folder
            bootstrap.remove(started.folder)


def _wait_for_writers(run: Path, say: Callable[[str], None]) -> list[int]:
    """Wait until no process holds a spool any more; the ids of those that stay."""
    deadline = time.monotonic() + WAIT_SECONDS
    while living := writers(run):
        if time.monotonic() >= deadline:
            say(f"{run}: still being written by {_listed(living)}; the run is closed without them.")
            return living
        time.sleep(_PAUSE_SECONDS)
    return []


def writers(run: Path) -> list[int]:
    """Ids of living processes that have a spool: <boot>-<pid>-<start>."""
    found = []
    for spool in run.joinpath(SPOOL).glob("*.kvspool"):
        parts = spool.stem.rsplit("-", 2)
        if len(parts) == 3 and parts[1].isdigit() and _lives(int(parts[1])):
            found.append(int(parts[1]))
    return sorted(found)


def _lives(pid: int) -> bool:
    from kvtrace.sources.spool.liveness import start_ticks

    return start_ticks(pid) is not None


def _listed(pids: list[int]) -> str:
    return f"process {pids[0]}" if len(pids) == 1 else f"processes {', '.join(map(str, pids))}"


def _finish(
    started: Started, draining: Draining, facts: dict[str, object], say: Callable[[str], None], *, whole: bool
) -> None:
    """The parts that need the converter's libraries; without them run.json says at least how it ended."""
    run = started.run
    if not draining.began:
        directory.write_facts(run, facts)
        say(_nothing(started, draining))
        return
    from kvtrace.launch import summary

    if draining.delivery is not None:
        say(summary.delivered(run, str(facts["run_id"]), draining.delivery))
    directory.write_facts(run, facts)
    if draining.trouble is not None:
        say(f"{run}: not everything is converted ({draining.trouble}); its spools stay.")
    elif whole:
        from kvtrace.sinks.parquet.compact import compact_run

        draining.close()
        compact_run(run)
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
