"""kvtrace experiment with real processes that stand in for engine, cache and clients."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from kvtrace.errors import RunExistsError, UsageError
from kvtrace.experiment.plan import read_plan
from kvtrace.experiment.running import _interleaved, _until, experiment
from kvtrace.run import open_run
from tests.unit.launch.launched import environment, until

if TYPE_CHECKING:
    from kvtrace.run import Run

STAND_IN = Path(__file__).with_name("stand_in.py")
ROOT = Path(__file__).parents[3]
WARMUP = f'warmup = "{{python}} {STAND_IN} load {{base_url}} warm- 2"'
COUNT, CUT = 40, 4
"""At 50 ms each what follows the cut takes seconds: it comes midway on a busy machine too."""
PLAN = f"""
[fixed]
slo = {{ ttft_ns = 100_000_000 }}
arrivals = "one after the other"

[load]
command = "{{python}} {STAND_IN} load {{base_url}} {{request_id_prefix}} {COUNT} --out {{out}}"
{WARMUP}
rounds = 2
requests = {COUNT}
progress = "asked"
settle_s = 0
timeout_s = 60

[group.no_reuse]
engine = "{{python}} {STAND_IN} serve {{port}}"
environment = {{ PYTHONPATH = "{ROOT}" }}

[group.cut]
base = "no_reuse"
engine = "{{python}} {STAND_IN} serve {{port}} --pause 0.05 --late 30"
backend = "{{python}} {STAND_IN} cache {{backend_port}}"
disconnect_at = {CUT / COUNT}
rounds = 1
"""


def plan_of(folder: Path, text: str = PLAN) -> Path:
    path = folder / "plan.toml"
    path.write_text(text)
    return path


def play(folder: Path, text: str = PLAN, out: str = "out") -> tuple[list[Path], list[str]]:
    said: list[str] = []
    runs = experiment(read_plan(plan_of(folder, text)), folder / out, text=text, say=said.append)
    return runs, said


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Run], list[str]]:
    folder = tmp_path_factory.mktemp("experiment")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        paths, said = play(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["out", "plan.toml"]
    return [open_run(path) for path in paths], said


def names(run: Run) -> list[str]:
    rows = run.connection().sql("SELECT alias FROM alias WHERE kind = 'client' ORDER BY alias").fetchall()
    return [alias for (alias,) in rows]


def test_every_round_is_a_run_of_its_own_with_the_same_ids(played: tuple[list[Run], list[str]]) -> None:
    runs, _ = played
    assert [run.path.name for run in runs] == ["no_reuse-1", "no_reuse-2", "cut-1"]
    assert [names(run) for run in runs] == [sorted(f"kvx-{number}" for number in range(COUNT))] * 3
    for run in runs:
        counts = run.connection().sql(
            "SELECT (SELECT count(*) FROM request), (SELECT count(*) FROM span WHERE op = 'store')"
        )
        assert counts.fetchall() == [(COUNT, COUNT)], "warm-ups and the other round are in none"


def test_run_json_says_what_the_plan_fixed_and_what_became_of_the_warm_up(
    played: tuple[list[Run], list[str]],
) -> None:
    first, second, cut = (run.meta for run in played[0])
    assert [meta["group"] for meta in (first, second, cut)] == ["no_reuse", "no_reuse", "cut"]
    assert (first["round"], second["round"]) == (1, 2)
    assert first["slo"] == {"ttft_ns": 100_000_000}
    assert first["fixed"]["arrivals"] == "one after the other"
    assert first["workload"] == cut["workload"]
    assert (first.get("base"), cut["base"]) == (None, "no_reuse")
    assert first["warm"] == {
        "stores": 2,
        "unfinished": 0,
        "late_ns": None,
        "open": 0,
        "requests": 2,
        "loads": 0,
    }
    assert first["prefix_cache_reset"]
    assert cut["warm"]["unfinished"] == 2
    assert cut["warm"]["late_ns"] > 25e9
    assert first["disconnected_ns"] is None
    assert first["measured_to_ns"] <= second["measured_from_ns"]


def test_the_backend_is_cut_off_when_its_share_of_the_load_is_answered(
    played: tuple[list[Run], list[str]],
) -> None:
    runs, said = played
    at_ns = runs[2].meta["disconnected_ns"]
    (answered,) = runs[2].connection().sql(
        "SELECT count(*) FROM request WHERE end_ns <= $at", params={"at": at_ns}
    ).fetchall()[0]  # fmt: skip
    assert CUT <= answered < COUNT
    recorded = runs[2].path.parents[1] / "recorded" / "cut-1" / "backend" / "run.json"
    assert json.loads(recorded.read_text())["exit_code"] == 128 + signal.SIGKILL
    assert any("cut: round 1" in line and "its backend disconnected after" in line for line in said)
    assert any("one engine at a time" in line for line in said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("load {base_url} warm- 2", "load {base_url} warm- 2 --fails"), "the load could not be driven"),
        (('serve {port}"\nenv', 'serve {port} --dies-at 1"\nenv'), "no_reuse"),
        (('serve {port}"\nenv', 'nothing {port}"\nenv'), "before it was ready"),
        (("{request_id_prefix}", "{request_prefix}"), "did you mean {request_id_prefix}?"),
        (("{base_url} {r", "'{base_url} {r"), "cannot be split into words"),
    ],
)
def test_what_fails_is_one_sentence_that_names_its_log_and_leaves_no_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], said: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert change[0] in PLAN
    with pytest.raises(UsageError) as refused:
        play(tmp_path, PLAN.replace(*change))
    assert said in str(refused.value)
    assert "What there is so far lies in" in str(refused.value)
    assert not (tmp_path / "out").exists()
    assert not living(tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[load]\ncommand = 'x'", "names no group"),
        ("[group.a]\nengine = 'x'", "[load] has no command"),
        ("[load]\ncommand = 'x'\n[group.a]\n", "has no engine to start"),
        ("[load]\ncommand = 'x'\n[group.a]\nengine = 'x'\ndisconnect_at = 0.5", "has no backend"),
        (
            "[load]\ncommand = 'x'\n[group.a]\nengine = 'x'\nbackend = 'x'\ndisconnect_at = 0.5",
            "must say how many requests",
        ),
    ],
)
def test_a_plan_that_cannot_be_run_starts_nothing(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        play(tmp_path, text)
    assert said in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"]


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(RunExistsError, match="exists already"):
        play(tmp_path)


def test_ctrl_c_ends_everything_and_leaves_nothing(tmp_path: Path) -> None:
    text = PLAN.replace(WARMUP, 'warmup = "sleep 300"')
    assert text != PLAN
    command = [sys.executable, "-m", "kvtrace", "experiment", str(plan_of(tmp_path, text))]
    started = subprocess.Popen(
        [*command, "--out", str(tmp_path / "out")],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    until(lambda: any("sleep 300" in each for each in living(tmp_path)), "the warm-up", seconds=60)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=90)
    assert started.returncode == 130, err
    assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"]
    assert not living(tmp_path)


def living(folder: Path) -> list[str]:
    """Command lines of processes whose current folder lies below this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if (entry / "cwd").readlink().is_relative_to(folder):
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


def test_engines_beside_each_other_take_rounds_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    text = PLAN.partition("[group.cut]")[0].replace("rounds = 2", "rounds = 2\ninterleaved = true")
    plan = read_plan(plan_of(tmp_path, f'{text}\n[group.other]\nbase = "no_reuse"\nrounds = 1\n'))
    said: list[str] = []
    played = list(_interleaved(plan, tmp_path, said.append))
    assert [(each.group, each.number) for each in played] == [
        ("no_reuse", 1), ("other", 1), ("no_reuse", 2),
    ]  # fmt: skip
    assert played[0].recorded == played[2].recorded != played[1].recorded
    assert played[0].to_ns <= played[1].began_ns < played[1].to_ns <= played[2].began_ns
    assert _until(played[0], played) == played[2].began_ns
    assert _until(played[1], played) is None
    assert not living(tmp_path)


def test_the_plan_goes_with_the_runs(played: tuple[list[Run], list[str]]) -> None:
    out = played[0][0].path.parents[1]
    assert (out / "plan.toml").read_text() == PLAN
    assert json.loads((out / "load" / "no_reuse-2.json").read_text()) == {"asked": COUNT}
