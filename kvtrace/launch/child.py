r"""The command as our child: started, signalled, waited for.

It runs in our process group, as a shell would have started it. The keys of a terminal (Ctrl-C, Ctrl-\, a
hang-up) therefore reach it without us: such signals (SI_KERNEL) are only taken note of. What somebody sends
to us (`kill PID`, a supervisor) is forwarded. We are never ended by either while the command runs: whoever
dies first must be the command.

Signals are blocked and fetched (sigwaitinfo), no handlers: the sender is known, and nothing is interrupted.
"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FORWARDED = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
)
_WATCHED = FORWARDED | {signal.SIGCHLD}
_FROM_KERNEL = 0x80  # si_code SI_KERNEL: the terminal's driver, which signals the whole group
_BY_SIGNAL = 128


class Child(NamedTuple):
    """The started command, and which signals we had blocked before."""

    pid: int
    blocked_before: frozenset[int]


def find(program: str) -> str:
    """The path of a program as a shell finds it.

    Raises:
        UsageError: there is none, or it may not be executed.
    """
    if os.sep in program:
        places = [program]
    else:
        places = [os.path.join(folder or ".", program) for folder in os.get_exec_path()]  # noqa: PTH118 - "./x" must stay so
    found = [place for place in places if Path(place).is_file()]
    for place in found:
        if os.access(place, os.X_OK):
            return place
    what = "is not executable" if found else "no such command" if len(places) > 1 else "no such file"
    raise UsageError(f"{program}: {what}; name the engine's own command after --.")


def start(command: Sequence[str], environment: Mapping[str, str]) -> Child:
    """Start the command; from here on signals are ours to forward.

    Raises:
        UsageError: the system cannot run the file.
    """
    path = find(command[0])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # an inherited "ignore" would reap the child behind us
    try:
        pid = os.posix_spawn(
            path, list(command), dict(environment),
            setsigmask=before, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )  # fmt: skip
    except (OSError, ValueError) as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        reason = getattr(error, "strerror", None) or str(error)
        hint = (
            " Does its first line name an interpreter?" if getattr(error, "errno", 0) == errno.ENOEXEC else ""
        )
        raise UsageError(f"{command[0]}: cannot be started ({reason}).{hint}") from error
    return Child(pid, frozenset(before))


def wait(child: Child) -> int:
    """Forward signals until the child ends; returns its exit code, 128 + N when signal N ended it."""
    while True:
        told = signal.sigwaitinfo(_WATCHED)
        if told.si_signo == signal.SIGCHLD:
            for pid, status in _ended():
                if pid == child.pid:
                    code = os.waitstatus_to_exitcode(status)
                    return code if code >= 0 else _BY_SIGNAL - code
        elif told.si_code != _FROM_KERNEL:
            os.kill(child.pid, told.si_signo)


def _ended() -> Iterable[tuple[int, int]]:
    """Every child that ended: as process 1 of a container we are given those of others too."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, status


def release(child: Child) -> None:
    """The command is over: what came for it is forgotten, and signals act on us again, as Ctrl-C does."""
    while signal.sigtimedwait(_WATCHED, 0) is not None:
        pass
    for number in FORWARDED:
        if number == signal.SIGINT or signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, child.blocked_before)
