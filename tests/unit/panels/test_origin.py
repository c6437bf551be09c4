"""Axes of a run in which some rows have dates and others count from a clock's own start, at 1970."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.panels import held_share, lock_contract, residency, transfers
from tests.rows import write_run
from tests.unit.panels.drawn import START_NS, request, span

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

HOST = {"tier_from": "host", "tier_to": "gpu", "bytes": 7, "outcome": "ok"}
DATELESS = {**span("r1", "load", 0, None, 3), **HOST, "start_ns": 1_000_000_000, "end_ns": 2_000_000_000}


def both(folder: Path) -> Run:
    dated = span("r0", "load", 1000, 3000, 2) | HOST
    return write_run(folder / "run", span=[request("r0", 0, 10, 9000), dated, DATELESS])


def test_axes_begin_with_the_first_date_where_there_is_one(tmp_path: Path) -> None:
    run = both(tmp_path)
    assert transfers.data(run).start_ns == START_NS
    assert held_share.data(run).start_ns == START_NS
    assert residency.data(run).start_ns == START_NS
    assert lock_contract.data(run).start_ns == START_NS


def test_a_transfer_without_a_date_is_counted_and_not_drawn_beside_dates(tmp_path: Path) -> None:
    frames = transfers.data(both(tmp_path))
    assert frames.sample["start_ns"].to_list() == [START_NS + 1_000_000_000]
    assert frames.paths["transfers"].to_list() == [2]
    assert transfers.notes(frames) == ("Transfers of a clock without a date are in the table alone.",)


def test_where_nothing_has_a_date_the_first_of_all_begins_the_axis(tmp_path: Path) -> None:
    frames = transfers.data(write_run(tmp_path / "run", span=[DATELESS]))
    assert (frames.start_ns, frames.sample.height) == (1_000_000_000, 1)
    assert transfers.notes(frames) == ()
