"""Runs that hold their own warm-up: only the measured phase is compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kvtrace.errors import InputError, NotComparableError
from kvtrace.experiment.groups import groups
from kvtrace.experiment.groups.phase import begins, measured_part
from kvtrace.experiment.plan import Load, Plan
from tests.rows import write_run
from tests.unit.experiment.drawn import MS, START, draw_round

if TYPE_CHECKING:
    from pathlib import Path

TIMES = [100.0, 200.0, 300.0, 400.0]
"""Requests kvx-0 to kvx-3, asked one second apart."""
LATER = Plan(load=Load(request_id_prefix="kvx-2"))


def test_the_measured_phase_begins_with_the_first_request_of_the_plans_prefix(tmp_path: Path) -> None:
    run = draw_round(tmp_path / "r", "mine", TIMES)
    assert begins(run, LATER) == START + 2000 * MS
    assert begins(run, Plan()) == START
    assert begins(run, Plan(load=Load(request_id_prefix="other-"))) is None
    assert begins(draw_round(tmp_path / "s", "mine", TIMES, measured_from_ns=7), LATER) == 7


def test_only_what_was_measured_is_compared(tmp_path: Path) -> None:
    run = draw_round(tmp_path / "r", "mine", TIMES)
    found = {row["metric"]: row["value"] for row in groups([run], LATER).to_dicts()}
    assert found["completed"] == 2
    assert found["ttft_mean_ns"] == 350 * MS
    assert found["itl_p50_ns"] == 5 * MS


def test_a_run_without_a_warm_up_is_taken_as_it_is(tmp_path: Path) -> None:
    run = draw_round(tmp_path / "r", "mine", TIMES)
    folder = tmp_path / "work"
    folder.mkdir()
    assert measured_part(run, START, folder) is run
    assert measured_part(run, None, folder) is run
    kept = measured_part(run, START + 1000 * MS, folder)
    assert (kept.origin.name, kept.meta) == ("r", run.meta)
    assert kept.connection().sql("SELECT count(*) FROM request").fetchall() == [(3,)]


def test_a_tier_that_its_own_warm_up_had_not_filled_yet_is_refused(tmp_path: Path) -> None:
    """All stores end 5 ms after the last request began; two of them are of the warm-up."""
    run = draw_round(tmp_path / "r", "tiered", TIMES, stored=5)
    with pytest.raises(NotComparableError, match="2 of 2 stores of the warm-up were not over"):
        groups([run], LATER)


@pytest.mark.parametrize("said", [2**62, 10**25, -1, True, "soon"])
def test_a_measured_phase_without_requests_is_a_sentence(tmp_path: Path, said: object) -> None:
    run = draw_round(tmp_path / "r", "mine", TIMES, measured_from_ns=said)
    with pytest.raises(InputError, match="measured_from_ns"):
        groups([run])


def test_what_belongs_to_no_request_is_cut_to_the_measured_phase_too(tmp_path: Path) -> None:
    mine = {"engine": "e", "process": "p"}
    rows = [
        {"op": "store", "start_ns": begin, "end_ns": begin + 1, "tier_from": "gpu", "tier_to": "host",
         "bytes": 1000, "outcome": "ok", "evidence": "shim", **mine}
        for begin in (START - 5, START + 5)
    ]  # fmt: skip
    request = {"op": "request", "request_id": "m", "start_ns": START, "end_ns": START + 9, **mine}
    run = write_run(tmp_path / "r", {"group": "mine", "measured_from_ns": START}, span=[request, *rows])
    found = {row["metric"]: row["value"] for row in groups([run]).to_dicts()}
    assert found["stored_bytes"] == 1000
