"""Processes of an experiment end with it, and what interrupts their end is not lost."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from kvtrace.errors import RunError
from kvtrace.experiment.running import _building, children
from kvtrace.experiment.running.children import start, stop, undisturbed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvtrace.experiment.running.children import Child


def sleeping(folder: Path) -> Child:
    return start("load", ["sleep", "300"], folder=folder, log=folder / "log", more={})


def test_an_interrupt_while_something_ends_counts_when_all_of_it_has_ended() -> None:
    done = []

    def end() -> None:
        with undisturbed():
            for number in range(2):
                with undisturbed():
                    signal.raise_signal(signal.SIGINT)
                done.append(number)

    with pytest.raises(KeyboardInterrupt):
        end()
    assert done == [0, 1]


def test_a_child_that_an_interrupt_reached_in_the_making_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Child] = []
    popen: Callable[..., object] = children.subprocess.Popen

    def interrupted(*words: object, **more: object) -> object:
        process = popen(*words, **more)
        made.append(process)
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(children.subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sleeping(tmp_path)
    assert made[0].poll() is not None


def test_a_child_of_another_user_is_left_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = sleeping(tmp_path)
    killpg = children.os.killpg

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(children, "GROUP_SECONDS", 0.1)
    monkeypatch.setattr(children.os, "killpg", refused)
    stop(child)
    assert not child.alive()
    monkeypatch.setattr(children.os, "killpg", killpg)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), subprocess.TimeoutExpired("import", 600.0)]
)
def test_an_error_of_the_machine_leaves_what_was_recorded_and_says_where(
    tmp_path: Path, error: Exception
) -> None:
    with pytest.raises(RunError, match="What there is so far lies in") as told, _building(tmp_path / "out"):
        raise error
    (kept,) = tmp_path.iterdir()
    assert str(kept) in str(told.value)


def test_a_fault_of_ours_leaves_what_was_recorded_and_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OverflowError) as told, _building(tmp_path / "out"):
        raise OverflowError
    (kept,) = tmp_path.iterdir()
    assert told.value.__notes__ == [f"What there is so far lies in {kept}."]
    kept.rmdir()
    with pytest.raises(KeyboardInterrupt), _building(tmp_path / "out"):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
