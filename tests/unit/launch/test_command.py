from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from kvtrace import schema
from kvtrace.launch import directory
from tests.unit.launch.launched import KVTRACE, environment, run

if TYPE_CHECKING:
    from pathlib import Path

PYTHON = sys.executable


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)]
)
def test_the_exit_code_is_the_commands(script: str, code: int, tmp_path: Path) -> None:
    assert run("--out", tmp_path / "run", "--", "sh", "-c", script).returncode == code


def test_the_command_gets_its_words_exactly_and_its_output_stays_its_own(tmp_path: Path) -> None:
    code = "import sys; print(sys.argv[1:])"
    words = ["a b", "--", "--out", "x", "", "-h", "--help"]
    done = run("--out", tmp_path / "a run", "--", PYTHON, "-c", code, *words)
    assert done.stdout == f"{words!r}\n"
    assert (tmp_path / "a run" / "run.json").is_file()


def test_without_two_dashes_the_first_word_that_is_no_option_begins_the_command(tmp_path: Path) -> None:
    done = run(f"--out={tmp_path / 'run'}", "sh", "-c", "echo $0", "--help")
    assert done.stdout == "--help\n"


def test_the_command_reads_our_standard_input(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("hello\n")
    with (tmp_path / "in").open() as stream:
        assert run("--out", tmp_path / "run", "--", "cat", stdin=stream).stdout == "hello\n"


def test_a_run_is_there_before_the_command_starts_and_says_afterwards_how_it_ended(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    done = run("--out", out, "--group", "tiered", "--", "sh", "-c", 'cat "$KVTRACE_OUT/run.json"; exit 3')
    before, after = json.loads(done.stdout), json.loads((out / "run.json").read_text())
    assert before["schema_version"] == schema.VERSION
    assert (before["kind"], before["group"], before["command"]) == ("run", "tiered", "sh")
    assert (before["ended_ns"], before["exit_code"]) == (None, None)
    assert after["exit_code"] == 3
    assert after["ended_ns"] > after["started_ns"]
    assert {name: before[name] for name in ("run_id", "created")} == {
        name: after[name] for name in ("run_id", "created")
    }
    assert out.stat().st_mode & 0o777 == 0o700


def test_arguments_of_the_command_are_not_kept(tmp_path: Path) -> None:
    run("--out", tmp_path / "run", "--", "sh", "-c", ": --api-key secret")
    assert "secret" not in (tmp_path / "run" / "run.json").read_text()


def test_the_environment_names_the_run_its_clock_and_its_id(tmp_path: Path) -> None:
    done = run("--out", "run", "--", "env", cwd=tmp_path)
    told = dict(line.split("=", 1) for line in done.stdout.splitlines() if line.startswith("KVTRACE_"))
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert told["KVTRACE_OUT"] == str(tmp_path / "run")
    assert told["KVTRACE_RUN_ID"] == facts["run_id"]
    assert told["KVTRACE_ANCHOR"] == f"{facts['anchor']['monotonic_ns']}:{facts['anchor']['unix_ns']}"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--", "no-such-command"], "no-such-command: no such command"),
        (["--", "./nothing"], "./nothing: no such file"),
        (["--", "/etc/passwd"], "/etc/passwd: is not executable"),
        (["--", "./no-interpreter"], "cannot be started"),
        (["--"], "name the command to start"),
        ([], "name the command to start"),
        (["--oot", "x", "--", "true"], "Did you mean --out?"),
        (["--otlp", "--", "true"], "--otlp: needs a value"),
        (["--otlp", "ftp://x:1", "--", "true"], "is no http:// or https:// URL"),
        (["--group", "a", "--group", "b", "--", "true"], "--group: given twice"),
    ],
)  # fmt: skip
def test_what_cannot_start_is_one_sentence_exit_code_2_and_nothing_left_behind(
    words: list[str], sentence: str, tmp_path: Path
) -> None:
    script, temporary = tmp_path / "no-interpreter", tmp_path / "tmp"
    script.write_text("neither a program nor a script")
    script.chmod(0o755)
    temporary.mkdir()
    done = run("--out", tmp_path / "run", *words, cwd=tmp_path, more={"TMPDIR": str(temporary)})
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert left_behind(tmp_path) == ["no-interpreter", "tmp"]
    assert left_behind(temporary) == []


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    done = run("--out", tmp_path / "run", "--", "true")
    assert (done.returncode, done.stderr.count("exists already; choose another --out")) == (2, 1)
    assert left_behind(tmp_path / "run") == []


@pytest.mark.parametrize("place", ["a-file/run", "/proc/run"])
def test_a_place_that_cannot_be_written_is_one_sentence(place: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    done = run("--out", place, "--", "sh", "-c", "echo started", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "choose an --out you can write" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_forbidden_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert run("--out", tmp_path / "locked" / "run", "--", "true").returncode == 2


def test_a_full_disk_at_the_start_is_one_sentence_and_nothing_left_behind(tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh"]  # no file may grow: what a full disk does to us

    done = subprocess.run(
        [*limited, *KVTRACE, "--out", str(tmp_path / "run"), "--", "echo", "started"],
        env=environment(PYTHONDONTWRITEBYTECODE="1"), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert left_behind(tmp_path) == []


def test_a_second_run_in_the_same_second_gets_a_name_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(directory.time, "strftime", lambda _form: "kvtrace-run-20261129-201346")
    first = directory.default_out()
    first.mkdir()
    assert (first.name, directory.default_out().name) == (
        "kvtrace-run-20261129-201346", "kvtrace-run-20261129-201346-2",
    )  # fmt: skip


def test_starting_a_command_imports_no_library(tmp_path: Path) -> None:
    code = (
        "import sys; from kvtrace.cli import main; main(['run', '--out', sys.argv[1], '--', 'true']); "
        "heavy = {'pyarrow', 'polars', 'duckdb', 'numpy', 'msgspec', 'cyclopts', 'opentelemetry'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )

    subprocess.run([PYTHON, "-c", code, str(tmp_path / "run")], check=True, env=environment(), timeout=60)


def test_to_be_one_of_lmcaches_device_plugins_has_to_be_asked_for(tmp_path: Path) -> None:
    """The flag takes no value, stands anywhere before the command, and may be given twice."""
    script = 'cat "${PYTHONPATH%%:*}"/*.dist-info/entry_points.txt'
    done = run("--attach-lmcache", "--out", tmp_path / "a", "--attach-lmcache", "--", "sh", "-c", script)
    assert "[lmcache.device_plugins]" in done.stdout
    done = run("--out", tmp_path / "b", "--", "sh", "-c", script, "--attach-lmcache")
    assert "[vllm.general_plugins]" in done.stdout
    assert "lmcache.device_plugins" not in done.stdout
