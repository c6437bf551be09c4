"""kvtrace compare: groups side by side for a person, rows for a program, exit code 3 for what differs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from kvtrace.cli import main
from kvtrace.experiment.groups import COLUMNS
from tests.unit.experiment.drawn import draw_round

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "::set-env\x1b[31m<b>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    draw_round(folder / "n", "no_reuse", [100.0, 200.0])
    draw_round(folder / "t", "tiered", [50.0, 100.0], stored=0)
    draw_round(folder / "e", EVIL, [50.0, 100.0])
    draw_round(folder / "slo", "gpu_prefix", [50.0, 100.0], slo={"ttft_ns": 1})
    draw_round(folder / "slo2", "tiered", [50.0, 100.0], slo={"ttft_ns": 2})
    (folder / "plan.toml").write_text("[fixed]\nslo = { ttft_ns = 150_000_000 }\n")
    (folder / "typo.toml").write_text("[fixed]\nsol = 1\n")
    return folder


def test_groups_stand_side_by_side_and_the_steps_below(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(folder / "t"), str(folder / "n"), "--plan", str(folder / "plan.toml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["95%", "no_reuse", "(1", "run)", "tiered", "(1", "run)"]
    (mean, step) = [line.split() for line in lines if line.startswith("first token mean")]
    assert mean == ["first", "token", "mean", "150", "ms", "75", "ms"]
    assert step == ["first", "token", "mean", "-75", "ms"]
    (slo, _) = [line.split() for line in lines if line.startswith("in time first token")]
    assert slo[4:] == ["50.0", "%", "100.0", "%"]
    assert any(line.startswith("bytes stored") and "not observed" in line for line in lines)
    assert lines[-1].startswith(("One run a side", "No ", "Nothing", "Observed"))


def test_rows_come_out_with_the_columns_of_the_contract(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(folder / "n"), str(folder / "t"), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {tuple(row) for row in rows} == {tuple(COLUMNS)}
    (mean,) = [row for row in rows if (row["group"], row["metric"]) == ("tiered", "ttft_mean_ns")]
    assert (mean["value"], mean["change"], mean["change_low"]) == (75e6, -75e6, None)


def test_what_differs_is_exit_code_3_and_names_the_factor(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(folder / "slo"), str(folder / "slo2")]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kvtrace: slo differs: ")


def test_bad_usage_is_exit_code_2(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare"]) == 2
    assert main(["compare", str(folder / "n"), "--plan", str(folder / "typo.toml")]) == 2
    assert "sol is not known; did you mean slo?" in capsys.readouterr().err


def test_a_groups_name_stays_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(folder / "n"), str(folder / "e")]) == 0
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.split("\n"))
    assert not any(line.lstrip().startswith("::") for line in out.split("\n"))
