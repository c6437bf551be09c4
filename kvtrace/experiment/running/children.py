"""Processes of an experiment: each in a session of its own, its output in a log, ended by its id.

A session of its own: the keys of a terminal (Ctrl-C) reach the experiment alone, which then ends what it
started in order, last first. Every wait is bounded.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TERM_SECONDS = 60.0
"""So long an engine may take to end, and kvtrace run to bring its run to its end."""
GROUP_SECONDS = 5.0
_PAUSE_SECONDS = 0.05
_TAIL = 300
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Child:
    """A command under way."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def failure(self, what: str) -> UsageError:
        """What went wrong, with the end of what it printed."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
        return UsageError(f"{self.name}: {what}; {self.log} ends: {last[:_TAIL]}")


def start(name: str, command: Sequence[str], *, folder: Path, log: Path, more: Mapping[str, str]) -> Child:
    """Start a command.

    Raises:
        UsageError: it cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    process = None
    try:
        with undisturbed(), log.open("ab") as output:
            process = subprocess.Popen(  # noqa: S603 - the plan's own command, without a shell
                list(command), cwd=folder, env={**os.environ, **more}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{name}: {command[0]} cannot be started ({reason}).") from error
    except KeyboardInterrupt:
        # It came while the process was being made: nobody else knows of it.
        if process is not None:
            stop(Child(name, process, log))
        raise
    return Child(name, process, log)


def stop(child: Child) -> None:
    """SIGTERM to the process; SIGKILL to what is left of its session after a while.

    What runs as another user (sudo) may be out of reach; then it is left, and the next one ended.
    """
    with undisturbed():
        if child.alive():
            with suppress(PermissionError):
                child.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(TERM_SECONDS)
        deadline = time.monotonic() + GROUP_SECONDS
        while _group_exists(child) and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(GROUP_SECONDS)


def finish(child: Child, *, seconds: float) -> None:
    """Wait for a command that ends by itself.

    Raises:
        UsageError: it failed, or takes too long; then it is ended.
    """
    try:
        code = child.process.wait(seconds)
    except subprocess.TimeoutExpired:
        stop(child)
        raise child.failure(f"took more than {seconds:g} s and was ended") from None
    if code:
        raise child.failure(f"ended with {code}")


def cut_off(child: Child) -> int:
    """SIGKILL to all that runs below a `kvtrace run`; returns when, unix ns. Its run still ends as one.

    Raises:
        UsageError: nothing runs below it any more.
    """
    pids = list(_below(child.process.pid))
    at_ns = time.time_ns()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if not pids:
        raise child.failure("had ended before it was to be disconnected")
    return at_ns


def _below(pid: int) -> Iterator[int]:
    """Children of a process and theirs, parents first: each is still ours when it is named."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            for each in (task / "children").read_text().split():
                yield int(each)
                with suppress(OSError):
                    yield from _below(int(each))


def _group_exists(child: Child) -> bool:
    try:
        os.killpg(child.process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@contextmanager
def undisturbed() -> Iterator[None]:
    """What is begun goes to its end; a Ctrl-C or SIGTERM meanwhile counts when it is over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []
    before = {number: signal.signal(number, lambda got, _: seen.append(got)) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if seen:
            signal.raise_signal(seen[0])
