from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from kvtrace.run import open_run
from kvtrace.run.lasting import Lasting, lasting
from kvtrace.sources.spool.finishing import is_over
from tests.unit.launch.launched import KVTRACE, STAND_IN, begin, environment, run, until
from tests.unit.sinks.otlp.receivers import http

if TYPE_CHECKING:
    from pathlib import Path

PYTHON = sys.executable


def requests(path: Path) -> list[str]:
    """The request of every request row, sorted; twice where a row is there twice."""
    query = "SELECT request_id FROM span WHERE op = 'request' ORDER BY request_id"
    return [name for (name,) in open_run(path).connection().sql(query).fetchall()]


def names(count: int, prefix: str = "r") -> list[str]:
    return sorted(f"{prefix}-{number}" for number in range(count))


def losses(path: Path) -> dict[str, int]:
    query = "SELECT cause, sum(count)::BIGINT FROM loss GROUP BY cause"
    return dict(open_run(path).connection().sql(query).fetchall())


def test_what_the_command_and_its_children_record_is_in_the_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = run("--out", out, "--", PYTHON, STAND_IN, "50", "--spawn")
    assert done.returncode == 0
    assert requests(out) == sorted(names(50) + names(50, "c"))
    assert f"{out}: 100 requests, 200 rows from 2 processes (2 scheduler).\n" in done.stderr
    assert f"{out}: nothing was lost.\n" in done.stderr
    assert done.stderr.endswith(f"Next: kvtrace report {out}\n")
    facts = json.loads((out / "run.json").read_text())
    assert facts["engines"] == {"stand-in-0": {"product": "stand-in", "version": "1.0"}}
    assert facts["exit_code"] == 0
    shown = open_run(out).sql("SELECT DISTINCT run_id, engine, op, reason FROM span ORDER BY op").rows()
    run_id = facts["run_id"]
    assert shown == [(run_id, "stand-in-0", "queue", "capacity"), (run_id, "stand-in-0", "request", None)]


def test_times_are_those_of_the_machine(tmp_path: Path) -> None:
    before = time.time_ns()
    run("--out", tmp_path / "run", "--", PYTHON, STAND_IN, "5")
    first, last = open_run(tmp_path / "run").sql("SELECT min(start_ns), max(end_ns) FROM span").row(0)
    slack = 50_000_000  # the wall clock may be slewed while the monotonic one is followed
    assert before - slack <= first <= last <= time.time_ns() + slack


def test_the_run_is_readable_while_it_lasts(tmp_path: Path) -> None:
    out, go_on = tmp_path / "run", tmp_path / "go on"
    with begin("--out", out, "--", PYTHON, STAND_IN, "50", "--wait-for", go_on) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == "recorded\n"
        assert requests(out) == names(50)
        assert open_run(out).sql("SELECT count(*) FROM request").item() == 50
        assert open_run(out).meta["exit_code"] is None
        assert lasting(open_run(out)) == Lasting(goes_on=True, writers=1)
        go_on.touch()
        assert ours.wait(timeout=60) == 0
    assert requests(out) == names(50)
    assert lasting(open_run(out)) is None


def test_a_run_is_recorded_before_its_engine_writes_anything(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with begin("--out", out, "--", "sleep", "60") as ours:
        until(lambda: (out / "run.json").exists(), "the run")
        assert lasting(open_run(out)) == Lasting(goes_on=True, writers=0)
        ours.terminate()
        ours.communicate(timeout=60)
    assert lasting(open_run(out)) is None


@pytest.mark.parametrize("after_seconds", [0.0, 1.3, 2.1])
def test_if_we_are_killed_the_command_goes_on_and_every_row_is_there_once(
    after_seconds: float, tmp_path: Path
) -> None:
    out, go_on, more = tmp_path / "run", tmp_path / "go on", {"TMPDIR": str(tmp_path)}
    words = ("--out", out, "--", PYTHON, STAND_IN, "400", "--seconds", "3", "--wait-for", go_on, "--spawn")
    with begin(*words, more=more, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as ours:
        until(lambda: list((out / "spool").glob("*.kvspool")), "a spool")
        time.sleep(after_seconds)
        ours.kill()
        assert ours.wait(timeout=10) == -signal.SIGKILL
    go_on.touch()
    until(lambda: len(requests(out)) >= 800, "all rows")
    assert requests(out) == sorted(names(400) + names(400, "c"))
    assert not losses(out)
    assert open_run(out).meta["exit_code"] is None  # nobody was there to see it
    until(lambda: lasting(open_run(out)) == Lasting(goes_on=False, writers=0), "the last process's end")


def test_a_command_that_exits_at_once_without_an_end_is_recorded(tmp_path: Path) -> None:
    done = run("--out", tmp_path / "run", "--", PYTHON, STAND_IN, "20", "--die")
    assert done.returncode == 3
    assert requests(tmp_path / "run") == names(20)
    assert "lost: 1 unclean_end; kvtrace info says where.\n" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["true"], "no Python of the command found kvtrace"),
        ([PYTHON, "-I", "-c", "pass"], "no Python of the command found kvtrace"),
        (["env", "-i", PYTHON, "-c", "pass"], "no Python of the command found kvtrace"),
        ([PYTHON, "-c", "pass"], "found kvtrace, and loaded no engine that it knows"),
    ],
)
def test_a_command_that_records_nothing_is_told_why(words: list[str], sentence: str, tmp_path: Path) -> None:
    done = run("--out", tmp_path / "run", "--", *words)
    assert done.returncode == 0
    assert f"{tmp_path / 'run'}: nothing was recorded" in done.stderr
    assert sentence in done.stderr
    assert "kvtrace doctor --python" in done.stderr
    assert requests(tmp_path / "run") == []


def test_the_folder_on_pythonpath_goes_when_the_command_is_over(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    run("--out", tmp_path / "run", "--", PYTHON, STAND_IN, "5", more={"TMPDIR": str(temporary)})
    assert list(temporary.glob("kvtrace-*/kvtrace")) == []


def test_a_process_that_outlives_the_command_keeps_recording_and_the_rest_comes_later(tmp_path: Path) -> None:
    out, go_on, temporary = tmp_path / "run", tmp_path / "go on", tmp_path / "tmp"
    temporary.mkdir()
    hurried = "import sys, kvtrace.launch.closing as c; c.WAIT_SECONDS = 1.5; " + KVTRACE[2]
    script = f'"{PYTHON}" "{STAND_IN}" 50 --wait-for "{go_on}" > "{tmp_path}/log" 2>&1 & sleep 1'
    done = subprocess.run(
        [PYTHON, "-c", hurried, "run", "--out", str(out), "--", "sh", "-c", script],
        env=environment(TMPDIR=str(temporary)), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "still records; the rest is converted when the run is opened later." in done.stderr
    assert requests(out) == names(50)
    assert len(list(temporary.glob("kvtrace-*/kvtrace"))) == 1
    go_on.touch()
    until(lambda: is_over(out), "the end of the process")
    assert requests(out) == names(50)
    assert not losses(out)


def test_a_full_disk_is_a_counted_loss_and_the_command_goes_on(tmp_path: Path) -> None:
    limited = [
        "sh",
        "-c",
        'ulimit -f 128; exec "$@"',
        "sh",
    ]  # no file beyond 64 KiB, as on a full disk
    done = subprocess.run(
        [*limited, *KVTRACE, "--out", str(tmp_path / "run"), "--", PYTHON, str(STAND_IN), "20000"],
        env=environment(), capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout == "recorded\n"
    assert "Traceback" not in done.stderr
    known = requests(tmp_path / "run")
    assert len(known) == len(set(known)) < 20_000


def test_a_run_directory_that_is_taken_away_harms_nobody(tmp_path: Path) -> None:
    out, go_on = tmp_path / "run", tmp_path / "go on"
    ours = begin("--out", out, "--", PYTHON, STAND_IN, "50", "--seconds", "2", "--wait-for", go_on)
    until(lambda: list((out / "spool").glob("*.kvspool")), "a spool")
    subprocess.run(["rm", "-rf", str(out)], check=True)
    go_on.touch()
    printed, err = ours.communicate(timeout=60)
    assert (ours.returncode, printed) == (0, "recorded\n")
    assert "Traceback" not in err
    assert "cannot be written" in err


def test_rows_go_to_a_collector_while_the_run_is_made(tmp_path: Path) -> None:
    with http() as received:
        done = run("--out", tmp_path / "run", "--otlp", received.url, "--", PYTHON, STAND_IN, "50")
    assert f"100 spans sent to {received.url}.\n" in done.stderr
    assert received.bodies
    assert not losses(tmp_path / "run")


def test_what_a_collector_did_not_get_is_said_and_is_no_loss_of_the_run(tmp_path: Path) -> None:
    more = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    words = ("--otlp", "http://127.0.0.1:9/v1/traces", "--", PYTHON, STAND_IN, "50")
    done = run("--out", tmp_path / "run", *words, more=more)
    assert done.returncode == 0
    assert "0 spans sent to http://127.0.0.1:9/v1/traces; 100 not delivered" in done.stderr
    assert requests(tmp_path / "run") == names(50)
    assert losses(tmp_path / "run") == {}  # the run has every row
    told = json.loads((tmp_path / "run" / "run.json").read_text())["otlp"]
    assert (told["sent"], told["failed"]) == (0, 100)
    assert told["reason"]


def test_without_the_libraries_that_convert_the_spools_are_kept_for_later(tmp_path: Path) -> None:
    out = tmp_path / "run"
    without = "import sys; sys.modules['pyarrow'] = None; " + KVTRACE[2]
    done = subprocess.run(
        [PYTHON, "-c", without, "run", "--out", str(out), "--", PYTHON, str(STAND_IN), "50"],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert "recorded, but not converted" in done.stderr
    assert requests(out) == names(50)


@pytest.mark.parametrize("stderr", ["2>&-", "2> >(true)"])
def test_a_closed_stderr_harms_neither_the_output_nor_the_recording(stderr: str, tmp_path: Path) -> None:
    words = [*KVTRACE, "--out", str(tmp_path / "run"), "--", PYTHON, str(STAND_IN), "20"]
    done = subprocess.run(
        ["bash", "-c", f'"$@" {stderr}', "bash", *words],
        env=environment(), stdout=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "recorded\n")
    assert requests(tmp_path / "run") == names(20)
