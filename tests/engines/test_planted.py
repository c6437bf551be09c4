"""A regression planted in a real engine, which `kvtrace diff` finds and names; and none where none is.

Minutes: `pytest -m engine`. Copies of 50 ms for some of 5 ms, which no noise of this machine hides; what is
found of 8 ms is a number of tests/bench/planted.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kvtrace.diff.comparing import compare
from kvtrace.diff.gates import default_gates
from tests.engines import planted

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.diff.findings import Finding
    from kvtrace.run import Run
    from tests.engines.planted import Rounds

pytestmark = pytest.mark.engine

BEFORE_S, AFTER_S = 0.005, 0.05
LONGER_NS = (AFTER_S - BEFORE_S) * 1e9


@pytest.fixture(scope="module")
def rounds(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Rounds:
    return planted.play(BEFORE_S, AFTER_S, python=python, folder=tmp_path_factory.mktemp("planted"))


def exposed(base: list[Run], head: list[Run]) -> tuple[int, Finding]:
    compared = compare(base, head, default_gates())
    (found,) = (each for each in compared.findings if each.metric == "exposed_transfer_ns")
    return compared.code, found


def test_every_round_has_its_requests_and_lost_nothing(rounds: Rounds) -> None:
    for run in (*rounds.before, *rounds.after):
        assert run.sql("SELECT count(*) FROM request").item() == planted.REQUESTS
        assert run.sql("SELECT count(*) FROM transfer WHERE op = 'load'").item() == planted.REQUESTS
        assert run.sql("SELECT count(*) FROM loss").item() == 0


def test_slower_copies_are_found_and_named(rounds: Rounds) -> None:
    code, found = exposed(rounds.before[::2], rounds.after)
    assert code == 1
    assert (found.verdict, found.paired, found.runs) == ("worse", True, "5+5")
    assert found.change is not None
    assert LONGER_NS / 2 < found.change < LONGER_NS * 2
    assert "host->gpu" in found.because, found.because


def test_the_other_way_round_it_is_no_regression(rounds: Rounds) -> None:
    code, found = exposed(rounds.after, rounds.before[1::2])
    assert found.verdict == "better", found
    assert code != 1


def test_of_rounds_of_one_thing_no_more_gate_files_fail_than_alpha_allows(rounds: Rounds) -> None:
    """Every way to call five of the ten rounds the base: the test is exact, whatever the noise is."""
    ways, failed = planted.relabelled(rounds.before)
    assert ways == 252
    assert failed <= 0.05 * ways
