"""Whether a run is still being recorded, and whether somebody saw its end.

kvtrace run    started, no engine yet | spools grow | ended                 killed, engine lives | engine ends
                      recording         recording      over (nothing said)     recording            cut off
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.run import open_run
from kvtrace.run.lasting import Lasting, lasting
from tests.rows import write_run
from tests.spools import Drawn, living_header, run_file

if TYPE_CHECKING:
    from pathlib import Path

STEP = {"start_ns": 2_000, "end_ns": 2_500}


def begun(folder: Path, *, recorder: Any = None, **meta: Any) -> Path:
    """A run.json as kvtrace run writes it before the command starts."""
    return run_file(folder, kind="run", ended_ns=None, recorder=recorder, **meta)


def spool(run: Path, **header: Any) -> Drawn:
    return Drawn(run / "spool", **header).facts(engine="e0").rows("span", "whole", [STEP], op="step")


def found(run: Path) -> Lasting | None:
    return lasting(open_run(run))


def test_a_run_whose_processes_write_goes_on(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    spool(run, **living_header())
    assert found(run) == Lasting(goes_on=True, writers=1)


def test_a_run_that_no_engine_writes_to_yet_goes_on_while_whoever_started_it_lives(tmp_path: Path) -> None:
    assert found(begun(tmp_path / "run", recorder=living_header())) == Lasting(goes_on=True, writers=0)


@pytest.mark.parametrize("ended", [{"start_ticks": 1}, {"boot_id": "another"}, {"pid": 4194305}])
def test_a_run_whose_starter_has_ended_without_a_word_was_cut_off(
    tmp_path: Path, ended: dict[str, Any]
) -> None:
    run = begun(tmp_path / "run", recorder=living_header() | ended)
    spool(run).aged()
    assert found(run) == Lasting(goes_on=False, writers=0)


def test_a_run_that_outlives_its_command_goes_on(tmp_path: Path) -> None:
    run = run_file(tmp_path / "run", kind="run", ended_ns=7)
    spool(run, **living_header())
    spool(run, pid=99, prefix=6).aged()
    assert found(run) == Lasting(goes_on=True, writers=1)


def test_a_run_that_ended_is_over_and_so_is_one_that_was_made_of_files(tmp_path: Path) -> None:
    run = run_file(tmp_path / "run", kind="run", ended_ns=7)
    spool(run).aged()
    assert found(run) is None
    assert lasting(write_run(tmp_path / "imported", span=[])) is None
    assert lasting(write_run(tmp_path / "collected", {"kind": "collect"}, span=[])) is None


@pytest.mark.parametrize(
    "recorder",
    [None, 7, {}, {"pid": "x"}, {"boot_id": 1, "pid": 10**30}, {"boot_id": "other", "host": "other"}],
)
def test_of_a_starter_that_cannot_be_looked_up_nothing_is_said(tmp_path: Path, recorder: Any) -> None:
    """That of another machine may be at work or not; an older kvtrace did not say who it was."""
    assert found(begun(tmp_path / "run", recorder=recorder)) is None
