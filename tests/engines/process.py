"""One child process in a group of its own, its output in a log file, ended by its id."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TERM_GRACE_S = 20.0
GROUP_GRACE_S = 5.0


@dataclass(frozen=True)
class Child:
    """A running command and where it writes."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def require_alive(self) -> None:
        """Raises with the end of the log when the process is gone."""
        if self.popen.poll() is not None:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self.name} ended with {self.popen.returncode}; {self.log} ends:\n{tail}")


def start(name: str, command: list[str], *, folder: Path, environment: dict[str, str]) -> Child:
    """Starts `command` in `folder`; stdout and stderr go to `<name>.log` there."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        popen = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return Child(name, popen, log)


def stop(child: Child, *, grace_s: float = TERM_GRACE_S) -> None:
    """SIGTERM to the leader, which ends its own children; SIGKILL to what is left of the group.

    The group gets a moment of its own: Python's resource tracker unlinks the engine's shared memory
    only after the leader has gone, and killing it then would leave the segments behind.
    """
    if child.popen.poll() is None:
        child.popen.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.popen.wait(grace_s)
    deadline = time.monotonic() + GROUP_GRACE_S
    while _group_exists(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill(child)


def _group_exists(child: Child) -> bool:
    try:
        os.killpg(child.popen.pid, 0)
    except ProcessLookupError:
        return False
    return True


def kill(child: Child) -> None:
    """SIGKILL to the whole group: what a crash of the machine would leave."""
    with suppress(ProcessLookupError):
        os.killpg(child.popen.pid, signal.SIGKILL)
    child.popen.wait()


def first_line(child: Child, *, timeout_s: float) -> str:
    """The first line a child prints, as soon as it is there."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        child.require_alive()
        text = child.log.read_text(errors="replace")
        if "\n" in text:
            return text.split("\n", 1)[0]
        time.sleep(0.05)
    raise TimeoutError(f"{child.name} printed nothing within {timeout_s} s")
