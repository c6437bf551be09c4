"""kvtrace experiment: the groups of a plan, started, loaded, recorded, compared."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from kvtrace.cli._text import safe, sentence
from kvtrace.cli.compare import show
from kvtrace.errors import KvtraceError
from kvtrace.experiment.groups import groups
from kvtrace.experiment.plan import read_plan
from kvtrace.experiment.running import experiment as run_all
from kvtrace.report import shipped, write_report
from kvtrace.run import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = "report.html"


def experiment(
    plan: Path,
    /,
    *,
    out: Annotated[
        Path | None, Parameter(help="The folder to make; it must not exist. Default: experiment-<time>.")
    ] = None,
) -> None:
    """Run the groups of a plan and compare them: engines, load, rounds, a backend cut off midway, one page.

    Starts each group's backend and engine under `kvtrace run`, one engine start a group (a group whose
    backend is cut off starts anew for every round), drives the plan's own load generator, and makes each
    round a run of its own. OUT/runs has them, OUT/report.html is the comparison, OUT/load what the generator
    wrote. docs/experiment.md says what a plan may hold. Everything it started is ended with it, also by
    Ctrl-C; then nothing is left.

    Example:
        kvtrace experiment plan.toml --out four-groups
    """
    read = read_plan(plan)
    folder = out or Path(time.strftime("experiment-%Y%m%d-%H%M%S"))
    with _ended_by_sigterm():
        runs = [open_run(path) for path in run_all(read, folder, text=plan.read_text("utf-8"), say=_say)]
    page = folder / PAGE
    try:
        show(groups(runs, read))
        write_report(runs, page, dashboard=shipped("experiment.toml"))
    except KvtraceError as error:
        raise type(error)(f"{str(error).rstrip('.')}. The runs are in {folder / 'runs'}.") from error
    print(f"{safe(str(page))}: {page.stat().st_size} bytes; open it in a browser")


def _say(text: str) -> None:
    """A sentence on stderr; if nobody reads it any more, the experiment goes on."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(f"kvtrace: {sentence(text)}", file=sys.stderr, flush=True)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """A supervisor's SIGTERM ends the children as Ctrl-C does; a shell's `&` had SIGINT ignored."""
    before = {
        number: signal.signal(number, signal.default_int_handler)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
