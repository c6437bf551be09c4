from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from kvtrace import __version__, cli
from kvtrace.cli import main
from kvtrace.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize("words", [["--version"], ["--help"], []])
def test_version_and_help_import_no_database_and_no_data_frames(words: list[str]) -> None:
    code = (
        "import sys; from kvtrace.cli import main; assert main(sys.argv[1:]) == 0; "
        "heavy = {'polars', 'duckdb', 'pyarrow', 'numpy', 'scipy', 'plotly'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_command_names_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["anlyze"]) == 2
    said = capsys.readouterr()
    assert said.err == "kvtrace: anlyze: no such command. Did you mean analyze?\n"
    assert not said.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["info"], "RUN"),
        (["info", "nowhere"], "nowhere: does not exist"),
        (["describe", "hol"], "Did you mean hold?"),
        (["analyze", "covrage", "run"], 'Did you mean "coverage"?'),
        (["analyze", "exposure", "run", "--windw", "ttft"], "--windw"),
        (["analyze", "exposure", "run", "--window", "ttt"], '"ttft"'),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert not said.out


def _raise(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def dispatch(_words: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", dispatch)


def test_a_control_character_in_an_error_stays_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _raise(InputError("a\x1b[2J\n::set-env b"), monkeypatch)
    assert main(["x"]) == 2
    assert capsys.readouterr().err == "kvtrace: a\\x1b[2J ::set-env b\n"


def test_an_interrupt_exits_130_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _raise(KeyboardInterrupt(), monkeypatch)
    assert main(["x"]) == 130
    assert capsys.readouterr().err == ""


def test_a_bug_asks_for_a_report_and_shows_its_traceback_only_on_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KVTRACE_DEBUG", raising=False)
    _raise(ZeroDivisionError("oops"), monkeypatch)
    assert main(["x"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("kvtrace: ZeroDivisionError: oops")
    assert "please report it" in said
    assert "Traceback" not in said
    monkeypatch.setenv("KVTRACE_DEBUG", "1")
    assert main(["x"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error(run_path: Path) -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    query = "SELECT 'x' || a.range AS line FROM range(30000) a"
    for form in ("csv", "json", "table"):
        ours = subprocess.Popen(
            [sys.executable, "-m", "kvtrace", "sql", str(run_path), query, "--format", form],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=buffered,
        )  # fmt: skip
        assert ours.stdout is not None
        assert ours.stderr is not None
        ours.stdout.read(1)
        ours.stdout.close()
        said = ours.stderr.read()
        ours.stderr.close()
        assert ours.wait(timeout=60) in {0, 141}
        assert said == b""


def test_where_the_libraries_are_missing_run_works_and_the_rest_says_what_to_install(tmp_path: Path) -> None:
    without = "import sys; sys.modules['cyclopts'] = None; "
    code = without + "from kvtrace.cli import main; sys.exit(main(sys.argv[1:]))"
    for words, expected in ((["run", "--out", str(tmp_path / "run"), "true"], 0), (["info", "x"], 2)):
        done = subprocess.run(
            [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == expected
        assert "Traceback" not in done.stderr
    assert "only kvtrace run works" in done.stderr
