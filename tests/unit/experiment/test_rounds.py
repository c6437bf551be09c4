"""A round that was not what its group says it is no round; what is written of it into run.json."""

from __future__ import annotations

import json
import math
import sys
from typing import TYPE_CHECKING

import pytest
from kvtrace.errors import UsageError
from kvtrace.experiment.plan import Group, Load, Plan
from kvtrace.experiment.running import children, pages
from kvtrace.experiment.running.finishing import _say_what_it_is
from kvtrace.experiment.running.rounds import Played, _answered, play
from kvtrace.experiment.running.serving import Serving
from tests.unit.experiment.drawn import MS, START, draw_round

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvtrace.experiment.running.children import Child


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Child]:
    child = begun(tmp_path, "engine", "sleep", "300")
    yield child
    children.stop(child)


def begun(folder: Path, name: str, *command: str) -> Child:
    return children.start(name, command, folder=folder, log=folder / name, more={})


def served(folder: Path, engine: Child, backend: Child, group: Group) -> Serving:
    return Serving(
        "tiered", group, folder, folder / "recorded", 1, engine, backend, {"python": sys.executable}
    )


def test_a_backend_that_ended_by_itself_makes_no_round(tmp_path: Path, engine: Child) -> None:
    backend = begun(tmp_path, "backend", "false")
    backend.process.wait()
    plan = Plan(load=Load(command="true", timeout_s=60))
    with pytest.raises(UsageError, match="backend: ended with 1 in round 1"):
        play(plan, served(tmp_path, engine, backend, Group()), 1, print)


def test_a_load_that_is_over_before_the_cut_makes_no_round(
    tmp_path: Path, engine: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(_: Child) -> int:
        (driving,) = loads
        driving.process.wait()
        return 1

    loads: list[Child] = []
    start = children.start

    def kept(name: str, *words: object, **more: object) -> Child:
        loads.append(start(name, *words, **more))
        return loads[-1]

    monkeypatch.setattr(children, "cut_off", late)
    monkeypatch.setattr(children, "start", kept)
    plan = Plan(load=Load(command="true", requests=1, timeout_s=60))
    with pytest.raises(UsageError, match="was over before the backend was disconnected"):
        play(plan, served(tmp_path, engine, engine, Group(disconnect_at=0.0)), 1, print)


def test_a_page_of_metrics_that_fails_once_is_asked_again_and_what_is_no_number_counts_nothing(
    tmp_path: Path, engine: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b'asked{a="1"} 3\nasked{a="2"} NaN\nasked{a="3"} x\nasked{a="4"} +Inf\n'
    answers = iter([None, (500, b""), (200, text)])
    monkeypatch.setattr(pages, "asked", lambda *_: next(answers))
    there = served(tmp_path, engine, engine, Group())
    assert [_answered(there, "asked", 3, math.inf) for _ in range(3)] == [False, False, True]
    answers = iter([None])
    with pytest.raises(UsageError, match="does not answer"):
        _answered(there, "asked", 3, -math.inf)


def written(folder: Path, load: Load) -> dict[str, object]:
    """run.json of a round whose engine start recorded two stores, over 3 ms after the load began."""
    recorded = folder / "recorded"
    draw_round(recorded / "engine", "tiered", [100.0, 200.0], stored=5)
    draw_round(folder / "run", "tiered", [100.0])
    from_ns = START + 1002 * MS
    played = Played(
        "tiered", 2, recorded, folder / "none", START, from_ns, from_ns + MS, None, was_reset=True
    )
    _say_what_it_is(folder / "run", played, Plan(load=load, groups={"tiered": Group()}))
    return dict(json.loads((folder / "run" / "run.json").read_bytes()))


def test_stores_of_the_round_before_count_as_those_of_a_warm_up(tmp_path: Path) -> None:
    assert written(tmp_path, Load(command="x"))["warm"] == {
        "stores": 2, "unfinished": 2, "late_ns": 3 * MS, "open": 0, "loads": 0, "requests": 2,
    }  # fmt: skip


def test_the_same_load_more_often_is_the_same_work(tmp_path: Path) -> None:
    loads = (Load(command="x"), Load(command="x", rounds=5, timeout_s=9, settle_s=1), Load(command="y"))
    one, other, another = (
        written(tmp_path / str(place), load)["workload"] for place, load in enumerate(loads)
    )
    assert one == other != another
