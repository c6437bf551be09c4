"""kvtrace run: starts an engine's own command instrumented, and turns what it records into a run.

    directory.py      the run directory and run.json, before the command starts and after it ended
    bootstrap.py      the private folder on PYTHONPATH by which an engine finds us (sitecustomize.py)
    environment.py    what the command's environment gets
    child.py          the command: started, signalled, waited for
    summary.py        what a person should know at the end
    sweeping.py       folders that killed recordings left behind
    draining.py       a thread: spools -> Parquet (and OTLP) as they grow
    closing.py        the end: who still writes, the last rows, run.json, few files, a summary

Nothing here is needed for recording: if this process is killed, the command goes on, its spools stay, and
whoever opens the run converts the rest. Start-up is light: no library is imported before the command runs.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, NamedTuple

from kvtrace.launch import bootstrap, child, directory
from kvtrace.launch.environment import anchor, environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["launch"]


def launch(
    command: Sequence[str],
    *,
    out: Path | None,
    otlp: str | None,
    group: str | None,
    say: Callable[[str], None],
    attach_lmcache: bool = False,
) -> int:
    """Run the command, record it into a new run, and return the command's exit code.

    `say` gets sentences for a person: where the run is, and at the end what is in it. `attach_lmcache`: also
    be found as one of LMCache's device plugins.

    Raises:
        UsageError: there is no such command, or --otlp names nothing that we can send to.
        RunExistsError: `out` exists.
        RunError: `out` cannot be made or written.
    """
    child.find(command[0])
    if otlp is not None:
        from kvtrace.sinks.otlp.destination import check

        check(otlp)
    started = _start(command, out or directory.default_out(), group, attach_lmcache=attach_lmcache)
    say(f"{started.run}: recording; kvtrace info {started.run} reads it at any time.")
    from kvtrace.launch.draining import Draining  # the command runs already: from here on imports cost nobody
    from kvtrace.launch.sweeping import sweep

    draining = Draining(started.run, otlp, say)
    draining.start()
    threading.Thread(
        target=sweep, args=(bootstrap.temporary(),), name="kvtrace-sweep", daemon=True
    ).start()  # apart: nothing waits for it
    code = child.wait(started.child)
    child.release(started.child)
    from kvtrace.launch.closing import close

    close(started, draining, code, say)
    return code


class Started(NamedTuple):
    """A command under way: its run, what run.json says so far, and the folder by which it found us."""

    run: Path
    facts: dict[str, object]
    folder: Path
    child: child.Child


def _start(command: Sequence[str], out: Path, group: str | None, *, attach_lmcache: bool) -> Started:
    """Everything that the command needs, then the command; or nothing at all."""
    clocks = anchor()
    facts = directory.first_facts(
        run_id=os.urandom(16).hex(), group=group, program=command[0].rpartition(os.sep)[2], clocks=clocks
    )
    folder = bootstrap.make(attach_lmcache=attach_lmcache)
    try:
        directory.make(out)
        try:
            directory.write_facts(out, facts)
            run_id = str(facts["run_id"])
            surroundings = environment(os.environ, run=out, run_id=run_id, clocks=clocks, bootstrap=folder)
            return Started(out, facts, folder, child.start(command, surroundings))
        except BaseException:
            bootstrap.remove(out)
            raise
    except BaseException:
        bootstrap.remove(folder)
        raise
