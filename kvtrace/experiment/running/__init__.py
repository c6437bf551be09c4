"""kvtrace experiment: starts what the plan names, drives the load, cuts the rounds into runs.

    commands.py    the plan's commands with their placeholders filled in
    children.py    processes: started, watched, ended by their id, and whatever they started with them
    pages.py       ports, pages that answer, counters, resets
    serving.py     one engine start of a group: its backend, the engine, until both are ended
    rounds.py      reset, warm-up, pause, measured load; the backend cut off midway
    finishing.py   each round with what backend and client recorded, in run.json what the plan says of it

    start ─► reset ─ warm-up ─ settle ─ measured ─► reset ─ warm-up ─ settle ─ measured ─► end ─► cut
             └───────── round 1 ─────────────────┘  └───────── round 2 ─────────────────┘

Everything is built in a hidden folder beside OUT and renamed when it is whole. Traffic is on 127.0.0.1 alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from kvtrace.errors import KvtraceError, RunError, RunExistsError, UsageError
from kvtrace.experiment.running import finishing
from kvtrace.experiment.running.children import undisturbed
from kvtrace.experiment.running.rounds import Played, play
from kvtrace.experiment.running.serving import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kvtrace.experiment.plan import Plan
    from kvtrace.experiment.running.serving import Serving

__all__ = ["experiment"]

RUNS = "runs"


def experiment(plan: Plan, out: Path, *, text: str, say: Callable[[str], None]) -> list[Path]:
    """Make every round of every group, and return the runs, in the order of groups and rounds.

    text: the plan file as it is, which goes with the runs. An error leaves the hidden folder with its logs
    and says where; an interrupt leaves nothing.

    Raises:
        UsageError: the plan lacks a command or names a placeholder that does not exist, or a command fails.
        RunExistsError: `out` exists.
        RunError: `out` cannot be made.
    """
    _check(plan)
    with _building(out) as folder:
        (folder / "plan.toml").write_text(text, encoding="utf-8")
        played = _interleaved(plan, folder, say) if plan.load.interleaved else _in_turn(plan, folder, say)
        order = list(plan.groups)
        rounds = sorted(played, key=lambda each: (order.index(each.group), each.number))
        names = [finishing.finish(each, _until(each, rounds), plan, folder, say) for each in rounds]
        with undisturbed():
            shutil.rmtree(folder / "cut", ignore_errors=True)
            folder.replace(out)
    return [out / RUNS / name for name in names]


def _until(played: Played, rounds: list[Played]) -> int | None:
    """When the next round of the same engine start began."""
    later = [each.began_ns for each in rounds if each.recorded == played.recorded]
    return min((began for began in later if began > played.began_ns), default=None)


def _check(plan: Plan) -> None:
    if not plan.groups:
        raise UsageError("experiment: the plan names no group; add a [group.NAME] with an engine.")
    if plan.load.command is None:
        raise UsageError("experiment: [load] has no command, so nothing would drive the load.")
    for name, group in plan.groups.items():
        if group.engine is None:
            raise UsageError(f"experiment: [group.{name}] has no engine to start.")
        if group.disconnect_at is not None and group.backend is None:
            raise UsageError(f"experiment: [group.{name}] has no backend that could be disconnected.")
        if group.disconnect_at and plan.load.requests is None:
            raise UsageError(
                f"experiment: [group.{name}] is disconnected midway; [load] must say how many requests."
            )


def _in_turn(plan: Plan, folder: Path, say: Callable[[str], None]) -> Iterator[Played]:
    """One engine after the other: all its rounds, then the next."""
    if len(plan.groups) > 1:
        say("one engine at a time; where all fit side by side, [load] interleaved = true alternates.")
    for name in plan.groups:
        if _alone(plan, name):
            for number in range(1, _rounds(plan, name) + 1):
                with serving(plan, name, folder, start=number) as served:
                    yield play(plan, served, number, say)
            continue
        with serving(plan, name, folder, start=1) as served:
            for number in range(1, _rounds(plan, name) + 1):
                yield play(plan, served, number, say)


def _interleaved(plan: Plan, folder: Path, say: Callable[[str], None]) -> Iterator[Played]:
    """All engines beside each other: round 1 of every group, then round 2 of every group."""
    with ExitStack() as ending:
        engines: dict[str, Serving] = {
            name: ending.enter_context(serving(plan, name, folder, start=1))
            for name in plan.groups
            if not _alone(plan, name)
        }
        for number in range(1, max(_rounds(plan, name) for name in plan.groups) + 1):
            for name in plan.groups:
                if number > _rounds(plan, name):
                    continue
                if name in engines:
                    yield play(plan, engines[name], number, say)
                    continue
                with serving(plan, name, folder, start=number) as served:
                    yield play(plan, served, number, say)


def _alone(plan: Plan, name: str) -> bool:
    """A group whose backend is cut off starts anew for every round: what is cut off does not come back."""
    return plan.groups[name].disconnect_at is not None


def _rounds(plan: Plan, name: str) -> int:
    return plan.groups[name].rounds or plan.load.rounds


@contextmanager
def _building(out: Path) -> Iterator[Path]:
    """A hidden folder beside OUT; it goes with an interrupt, and stays with its logs after an error."""
    if os.path.lexists(out):
        raise RunExistsError(f"{out}: exists already; choose another --out, nothing is written over.")
    folder = out.absolute().with_name(f".{out.name}.experiment-{os.getpid()}")
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise RunError(f"{out}: cannot be made ({error.strerror or error}); choose another --out.") from error
    try:
        yield folder
    except KvtraceError as error:
        raise type(error)(f"{str(error).rstrip('.')}. What there is so far lies in {folder}.") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise RunError(f"experiment: {error}. What there is so far lies in {folder}.") from error
    except Exception as error:
        error.add_note(f"What there is so far lies in {folder}.")
        raise
    except BaseException:
        with undisturbed():
            shutil.rmtree(folder, ignore_errors=True)
        raise
