"""Questions name the runs they take: too many and too few are one sentence, whoever asks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import kvtrace
import pytest
from kvtrace.analyses import Takes, questions, takes
from kvtrace.cli import main
from kvtrace.errors import UsageError
from kvtrace.run import open_run

if TYPE_CHECKING:
    from pathlib import Path


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_every_question_names_at_least_one_run() -> None:
    assert [name for name in questions() if not takes(name).names and not takes(name).more] == []
    assert takes("exposure") == Takes(("run",))


def test_what_is_taken_is_said_in_words() -> None:
    assert str(Takes(("run",))) == "one run"
    assert str(Takes(("eager", "lazy"))) == "2 runs (EAGER LAZY)"
    assert str(Takes(("base",), more=True)) == "1 run or more (BASE ...)"


def test_a_question_about_one_run_refuses_two(run_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refusal(["analyze", "exposure", str(run_path), str(run_path)], capsys)
    assert said == "kvtrace: exposure: takes one run, and was given 2.\n"
    with pytest.raises(UsageError, match="takes one run, and was given 2"):
        kvtrace.analyze([run_path, open_run(run_path)], "exposure")


def test_a_question_without_a_run_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "RUN requires an argument" in refusal(["analyze", "exposure"], capsys)


def test_a_path_is_one_run_and_no_list_of_letters(run_path: Path) -> None:
    assert kvtrace.analyze(str(run_path), "exposure").equals(kvtrace.analyze([str(run_path)], "exposure"))


def test_list_says_which_runs_a_question_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"RUN"} <= {row["runs"] for row in rows if row["kind"] == "question"}
    assert {row["runs"] for row in rows if row["kind"] != "question"} == {None}


def test_list_names_both_runs_of_a_question_over_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "eager_vs_lazy" in each]
    assert line.endswith("? (takes 2 runs (EAGER LAZY))")
    assert main(["describe", "eager_vs_lazy"]) == 0
    assert "kvtrace analyze eager_vs_lazy EAGER LAZY\n" in capsys.readouterr().out


def test_a_question_over_two_runs_is_asked_by_name_and_order(
    run_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["analyze", "eager_vs_lazy", str(run_path), str(run_path), "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["difference"] for row in rows} <= {None, 0.0}
    said = refusal(["analyze", "eager_vs_lazy", *[str(run_path)] * 3], capsys)
    assert said == "kvtrace: eager_vs_lazy: takes 2 runs (EAGER LAZY), and was given 3.\n"
