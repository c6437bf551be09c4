"""What transfers cost in GPU blocks, and the share of the pool over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.held_share import COLUMNS, held_share
from kvtrace.analyses.hold import hold
from tests.rows import write_run
from tests.unit.analyses.exposure.drawing import scheduler

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

S = 1_000_000_000


def held(name: str, start: float, end: float | None, blocks: int | None, **more: Any) -> dict[str, Any]:
    """Seconds."""
    stop = None if end is None else round(end * S)
    more = {"request_id": name, "blocks": blocks, "reason": "store", "span_id": 1, **more}
    return scheduler("hold", round(start * S), stop, **more)


def three(tmp_path: Path, meta: dict[str, Any] | None = None) -> Run:
    """Seconds.

    a 8   [0--------------------- open, its process last recorded at 7
    b 8        [1-----5)
    c 4               [5-6)
    """
    rows = [held("a", 0, None, 8), held("b", 1, 5, 8, transfer_id="t"), held("c", 5, 6, 4, reason="load")]
    rows.append(scheduler("queue", 6 * S, 7 * S, reason="policy"))
    return write_run(tmp_path / "run", meta, span=rows)


def test_a_hold_costs_blocks_times_seconds_and_an_open_one_to_its_process_s_last_record(
    tmp_path: Path,
) -> None:
    rows = hold(three(tmp_path)).to_dicts()
    assert [(row["request_id"], row["block_seconds"], row["end_ns"]) for row in rows] == [
        ("a", 56.0, None),
        ("b", 32.0, 5 * S),
        ("c", 4.0, 6 * S),
    ]
    assert (rows[1]["reason"], rows[1]["transfer_id"]) == ("store", "t")


def test_unknown_blocks_or_an_unknown_last_record_cost_nobody_knows_what(tmp_path: Path) -> None:
    rows = [held("a", 0, 5, None), held("b", 1, None, 3, process=None)]
    assert hold(write_run(tmp_path / "run", span=rows))["block_seconds"].to_list() == [None, None]


def test_a_hold_that_ends_before_it_starts_is_set_aside(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", span=[held("a", 5, 4, 3)])
    assert (hold(run).height, held_share(run).height) == (0, 0)


def test_the_share_changes_when_a_hold_begins_or_ends(tmp_path: Path) -> None:
    """B ends and c begins at 5: one row."""
    meta = {"engines": {"e0": {"config": {"num_gpu_blocks": "40"}}}}
    rows = held_share(three(tmp_path, meta)).to_dicts()
    assert [(row["time_ns"] // S, row["blocks"]) for row in rows] == [
        (0, 8),
        (1, 16),
        (5, 12),
        (6, 8),
        (7, 0),
    ]
    assert [row["share"] for row in rows] == pytest.approx([0.2, 0.4, 0.3, 0.2, 0.0])
    assert {row["pool_blocks"] for row in rows} == {40}


def test_while_a_hold_lasts_that_nobody_counted_the_number_is_null(tmp_path: Path) -> None:
    rows = [held("a", 0, 9, 8), held("b", 2, 4, None)]
    found = held_share(write_run(tmp_path / "run", span=rows)).to_dicts()
    assert [(row["time_ns"] // S, row["blocks"]) for row in found] == [(0, 8), (2, None), (4, 8), (9, 0)]


@pytest.mark.parametrize(
    ("engines", "pool"),
    [
        (None, None),
        ({}, None),
        ({"vllm": "0.32.0"}, None),
        ({"e0": {"config": {"num_gpu_blocks": 40}}}, 40),
        ([{"engine": "e0", "num_gpu_blocks": "40"}], 40),
        ([{"name": "e0", "config": {"pool_blocks": 40}}], 40),
        ([{"engine": "e0", "num_gpu_blocks": 40}, {"engine": "e1", "num_gpu_blocks": 50}], 40),
        ([{"engine": "e0", "num_gpu_blocks": "many"}], None),
        ([{"engine": "another", "num_gpu_blocks": 40}], 40),  # the only pool and the only engine
    ],
)
def test_the_pool_is_that_of_the_engines_that_hold(tmp_path: Path, engines: Any, pool: int | None) -> None:
    rows = held_share(three(tmp_path, {"engines": engines}))
    assert rows["pool_blocks"].unique().to_list() == [pool]
    assert rows["share"].is_null().all() == (pool is None)


def test_engines_are_summed_unless_one_is_asked_for(tmp_path: Path) -> None:
    rows = [held("a", 0, 2, 3), held("b", 0, 2, 5, engine="e1")]
    meta = {"engines": {"e0": {"num_gpu_blocks": 10}, "e1": {"num_gpu_blocks": 30}}}
    run = write_run(tmp_path / "run", meta, span=rows)
    assert held_share(run).row(0) == (0, 8, 40, 0.2)
    assert held_share(run, engine="e1").row(0) == (0, 5, 30, 5 / 30)


def test_an_empty_run_has_the_columns(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert hold(run).height == held_share(run).height == 0
    assert held_share(run).schema == COLUMNS
