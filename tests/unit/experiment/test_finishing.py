"""A round becomes a run: what its run.json says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kvtrace.errors import NotComparableError
from kvtrace.experiment.groups import groups
from kvtrace.experiment.plan import Fixed, Group, Load, Plan
from kvtrace.experiment.running.finishing import finish
from kvtrace.experiment.running.rounds import Played
from kvtrace.run import open_run
from tests.unit.experiment.drawn import MS, START, draw_round

if TYPE_CHECKING:
    from kvtrace.run import Run

LATER = START + 1500 * MS
"""Of three requests, a second apart, the first two are of an earlier round."""
PLAN = Plan(
    Fixed(may_differ=("block_size",)),
    Load(command="x"),
    {"tiered": Group(base="no_reuse"), "no_reuse": Group()},
)


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Round 2 of a plan without a warm-up, in which stores of round 1 still run."""
    folder = tmp_path_factory.mktemp("finish")
    draw_round(folder / "recorded" / "tiered-1" / "engine", "tiered", [100.0, 200.0, 300.0], stored=5)
    (folder / "logs").mkdir()
    played = Played(
        group="tiered", number=2, recorded=folder / "recorded" / "tiered-1", results=folder / "none.json",
        began_ns=LATER, from_ns=LATER, to_ns=START + 3000 * MS, cut_ns=None, was_reset=True,
    )  # fmt: skip
    name = finish(played, None, PLAN, folder, lambda _: None)
    return open_run(folder / "runs" / name)


def test_without_a_warm_up_the_round_before_is_what_must_be_over(second: Run) -> None:
    warm = second.meta["warm"]
    assert (warm["stores"], warm["unfinished"], warm["requests"]) == (2, 2, 2)
    with pytest.raises(NotComparableError, match="2 of 2 stores of the warm-up were not over"):
        groups([second])


def test_run_json_repeats_the_order_of_the_groups_their_bases_and_what_may_differ(second: Run) -> None:
    assert list(second.meta["groups"].items()) == [("tiered", "no_reuse"), ("no_reuse", None)]
    assert second.meta["may_differ"] == ["block_size"]
