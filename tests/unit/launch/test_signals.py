"""Who gets which signal, how often.

terminal ──Ctrl-C──► process group: kvtrace (takes note), command (gets it once)
somebody ──kill────► kvtrace ──forwards──► command
"""

from __future__ import annotations

import os
import pty
import select
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.unit.launch.launched import KVTRACE, begin, environment, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COUNTING = """
import signal, sys, time
seen = []
def note(number, _):
    seen.append(number)
    print("got", signal.Signals(number).name, flush=True)
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), note)
print("ready", flush=True)
while len(seen) < int(sys.argv[1]):
    time.sleep(0.05)
time.sleep(0.3)
sys.exit(40 + len(seen))
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"])
def test_what_is_sent_to_us_reaches_the_command_once(name: str, tmp_path: Path) -> None:
    ours = begin("--out", tmp_path / "run", "--", sys.executable, "-c", COUNTING, "1")
    assert ours.stdout is not None
    assert ours.stdout.readline() == "ready\n"
    ours.send_signal(getattr(signal, name))
    out, _ = ours.communicate(timeout=60)
    assert (out, ours.returncode) == (f"got {name}\n", 41)


def test_a_signal_that_ends_the_command_ends_us_with_its_number(tmp_path: Path) -> None:
    ours = begin("--out", tmp_path / "run", "--", "sleep", "60")
    until(lambda: (tmp_path / "run" / "run.json").exists(), "the run")
    until(lambda: _children(ours.pid), "the command")
    ours.terminate()
    _, err = ours.communicate(timeout=60)
    assert ours.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in err


def _children(pid: int) -> list[str]:
    with open(f"/proc/{pid}/task/{pid}/children") as stream:  # noqa: PTH123 - /proc is no place for Path
        return stream.read().split()


class Terminal:
    """kvtrace run in the foreground of a terminal of its own."""

    def __init__(self, *words: str) -> None:
        self.pid, self.keyboard = pty.fork()
        if not self.pid:
            os.execve(KVTRACE[0], [*KVTRACE, *words], environment())
        self.shown = b""

    def see(self, text: bytes, times: int = 1) -> None:
        def seen() -> bool:
            if select.select([self.keyboard], [], [], 0.1)[0]:
                with suppress(OSError):  # the other side is closed
                    self.shown += os.read(self.keyboard, 4096)
            return self.shown.count(text) >= times

        until(seen, f"{text!r} on the terminal")

    def type(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def code(self) -> int:
        ended: list[int] = []

        def over() -> bool:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            ended.extend([status] if pid else [])
            return bool(pid)

        until(over, "the end of kvtrace run")
        return os.waitstatus_to_exitcode(ended[0])


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    started = Terminal("--out", str(tmp_path / "run"), "--", sys.executable, "-c", COUNTING, "2")
    started.see(b"ready")
    yield started
    with suppress(ProcessLookupError):
        os.kill(started.pid, signal.SIGKILL)
    os.close(started.keyboard)


def test_ctrl_c_reaches_the_command_once_and_a_second_one_does_too(terminal: Terminal) -> None:
    terminal.type(b"\x03")
    terminal.see(b"got SIGINT")
    terminal.type(b"\x03")
    terminal.see(b"got SIGINT", times=2)
    assert terminal.code() == 42
    assert terminal.shown.count(b"got SIGINT") == 2


def test_ctrl_backslash_reaches_the_command_once(terminal: Terminal) -> None:
    terminal.type(b"\x1c")
    terminal.see(b"got SIGQUIT")
    terminal.type(b"\x03")
    assert terminal.code() == 42


def test_signals_that_the_command_blocks_or_ignores_are_its_own_again(tmp_path: Path) -> None:
    code = (
        "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGPIPE))"
    )
    ours = begin("--out", tmp_path / "run", "--", sys.executable, "-c", code)
    out, _ = ours.communicate(timeout=60)
    assert out == f"set() {signal.getsignal(signal.SIGPIPE)}\n"
