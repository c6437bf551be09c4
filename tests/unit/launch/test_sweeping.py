"""Folders that killed recordings left behind: gone when nobody needs them, and not a moment before.

kvtrace run --killed      command -----------------------| ends         folder stays
                                                             kvtrace run (another)  -> folder goes
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kvtrace.launch import bootstrap, sweeping
from tests.unit.launch.launched import begin, environment, run, until

PYTHON = sys.executable
WAITING = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.02)"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def left(temporary: Path) -> list[Path]:
    return sorted(temporary.glob("kvtrace-*-*"))


def made_by_another() -> Path:
    """A folder whose maker has ended."""
    code = "from kvtrace.launch import bootstrap; print(bootstrap.make())"
    said = subprocess.run(
        [PYTHON, "-c", code], env=environment(), capture_output=True, text=True, check=True, timeout=60
    )
    return Path(said.stdout.strip())


def swept(temporary: Path) -> bool:
    sweeping.sweep(temporary)
    return not left(temporary)


def test_what_a_killed_run_left_goes_when_its_command_has_ended_and_another_run_starts(
    tmp_path: Path, temporary: Path
) -> None:
    go_on, more = tmp_path / "go on", {"TMPDIR": str(temporary)}
    words = ("--out", tmp_path / "run", "--", PYTHON, "-c", WAITING, go_on)
    with begin(*words, more=more, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as ours:
        until(lambda: [folder for folder in left(temporary) if bootstrap.reached(folder)], "the command")
        (folder,) = left(temporary)
        ours.kill()
        assert ours.wait(timeout=10) == -signal.SIGKILL
    run("--out", tmp_path / "second", "--", "true", more=more)
    assert left(temporary) == [folder]  # the killed run's command still lives
    go_on.touch()
    until(lambda: swept(temporary), "the command's end")
    assert Path(bootstrap.__file__).exists()


def test_another_run_takes_away_what_is_left(tmp_path: Path, temporary: Path) -> None:
    made_by_another()
    run("--out", tmp_path / "run", "--", "sleep", "1", more={"TMPDIR": str(temporary)})
    assert left(temporary) == []


def test_the_folder_of_a_maker_that_lives_stays(temporary: Path) -> None:
    folder = bootstrap.make()
    assert not swept(temporary)
    bootstrap.remove(folder)


def test_the_folder_of_a_maker_whose_number_another_process_has_now_goes(temporary: Path) -> None:
    folder = bootstrap.make()
    maker = (folder / bootstrap.MAKER).read_text().split("\n")
    (folder / bootstrap.MAKER).write_text("\n".join([*maker[:3], str(int(maker[3]) - 1), *maker[4:]]))
    until(lambda: swept(temporary), "its end")


@pytest.mark.parametrize("hidden", [False, True])
def test_a_folder_stays_while_a_process_has_it_on_its_path(hidden: bool, temporary: Path) -> None:  # noqa: FBT001
    """Also one whose environment is overwritten, as a process that renames itself does."""
    folder = made_by_another()
    with subprocess.Popen(
        [PYTHON, "-S", "-c", "print(1, flush=True); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={} if hidden else {"PYTHONPATH": str(folder)},
    ) as user:  # fmt: skip
        assert user.stdout is not None
        assert user.stdout.readline() == b"1\n"
        assert not swept(temporary)
        user.communicate(b"\n", timeout=30)
    until(lambda: swept(temporary), "its end")


def test_a_folder_stays_while_a_process_lives_that_was_there(temporary: Path) -> None:
    folder = made_by_another()
    (folder / bootstrap.REACHED).write_text(f"{os.getpid()}\t3.11.7\t{PYTHON}\n")
    assert not swept(temporary)
    (folder / bootstrap.REACHED).write_text("torn line\n4194305\t3.11.7\tpython\n")
    until(lambda: swept(temporary), "its end")


@pytest.mark.parametrize("line", [0, 1])
def test_a_folder_of_another_machine_or_container_stays(line: int, temporary: Path) -> None:
    folder = made_by_another()
    maker = (folder / bootstrap.MAKER).read_text().split("\n")
    maker[line] = "another"
    (folder / bootstrap.MAKER).write_text("\n".join(maker))
    assert not swept(temporary)


def test_what_is_not_ours_stays(temporary: Path, tmp_path: Path) -> None:
    """A folder that has no maker, a file, a link to one of ours, and a maker that is nonsense."""
    ours = made_by_another()
    away = tmp_path / "away"
    ours.rename(away)
    names = [f"kvtrace-{n}-0123456789ab" for n in range(4194305, 4194309)]
    (temporary / names[0]).mkdir()
    (temporary / names[1]).touch()
    (temporary / names[2]).symlink_to(away)
    nonsense = temporary / names[3]
    nonsense.mkdir()
    (nonsense / bootstrap.MAKER).write_text("\x00\xff not a maker")
    (temporary / "kvtrace-view-x").mkdir()
    sweeping.sweep(temporary)
    assert sorted(path.name for path in temporary.iterdir()) == [*names, "kvtrace-view-x"]
    assert (away / "sitecustomize.py").exists()


def test_a_temporary_folder_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    sweeping.sweep(tmp_path / "missing")
