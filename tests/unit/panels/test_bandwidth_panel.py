"""The picture of measured bandwidths."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from kvtrace.errors import UsageError
from kvtrace.panels import bandwidth
from tests.rows import write_run
from tests.unit.analyses.exposure.drawing import drawn
from tests.unit.analyses.test_bandwidth import GIB, MIB, copy
from tests.unit.panels.drawn import HOSTILE

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run


def measured(tmp_path: Path) -> Run:
    """1 ms and 2 ms a MiB; three wholes; two that are left out."""
    rows = [copy(number * 100, 1 + 2 * number, number * MIB) for number in range(1, 11)]
    rows += [
        copy(number * 100 + 50, 9, MIB, request_id=f"w{number}", observer="scheduler") for number in (1, 2, 3)
    ]
    rows += [{**copy(0, 1, MIB), "outcome": "failed"}, {**copy(0, 1, MIB), "end_ns": None}]
    return drawn(tmp_path, *rows)


def test_a_point_is_a_transfer_and_the_line_is_the_bandwidth(tmp_path: Path) -> None:
    figure = bandwidth.draw(bandwidth.data(measured(tmp_path)))
    points = [trace for trace in figure.data if trace.mode == "markers"]
    assert [(len(trace.x), trace.marker.symbol) for trace in points] == [(10, None), (3, "circle-open")]
    assert (points[0].x[0], points[0].y[0]) == (3.0, 1.0)
    line = next(trace for trace in figure.data if trace.name.endswith(": fit"))
    assert line.x == pytest.approx((3.0, 21.0))
    assert line.y == (1.0, 10.0)


def test_the_wedge_holds_the_line(tmp_path: Path) -> None:
    rows = [copy(number * 100, 1 + 2 * number + number * 7 % 5, number * MIB) for number in range(1, 20)]
    figure = bandwidth.draw(bandwidth.data(drawn(tmp_path, *rows)))
    wedge, line = (next(t for t in figure.data if (t.fill == "toself") is filled) for filled in (True, False))
    slow, fast = wedge.x[1], wedge.x[2]
    assert fast < line.x[1] < slow
    assert wedge.x[0] < line.x[0] < wedge.x[3]  # they cross at the middle size


def test_the_table_names_units_and_what_is_not_known(tmp_path: Path) -> None:
    table = bandwidth.table(bandwidth.data(measured(tmp_path)))
    assert table is not None
    first, second = table.rows
    assert first[:5] == ("host → gpu (c)", "copy", "10", "55 MiB", "0.488")
    assert first[6:] == ("1 ms", "1.00")
    assert second[1:3] == ("with queue", "3")
    assert second[5:7] == ("too few", "–")  # noqa: RUF001


def test_the_sentences_say_what_is_left_out_and_what_includes_a_queue(tmp_path: Path) -> None:
    said = bandwidth.notes(bandwidth.data(measured(tmp_path)))
    assert said[0].startswith("Includes queue: ")
    assert said[1] == "Left out: 1 not ok, 1 open."


def test_overlapping_transfers_are_told(tmp_path: Path) -> None:
    rows = [copy(number * 5, 10, MIB, request_id=f"r{number}") for number in range(40)]
    (said,) = bandwidth.notes(bandwidth.data(drawn(tmp_path, *rows)))
    assert said.startswith("1 path moved several transfers at a time")


def test_of_many_transfers_evenly_many_are_drawn_and_all_are_counted(tmp_path: Path) -> None:
    rows = [copy(number * 10, 1 + number % 7, MIB, request_id=f"r{number}") for number in range(700)]
    frames = bandwidth.data(drawn(tmp_path, *rows), most=100)
    assert (frames.points.height, frames.transfers) == (100, 700)
    assert bandwidth.notes(frames)[-1] == "100 of 700 transfers are drawn, evenly by size."


def test_a_run_whose_transfers_are_all_left_out_says_why(tmp_path: Path) -> None:
    frames = bandwidth.data(drawn(tmp_path, copy(0, 1, None)))
    assert frames.empty is not None
    assert frames.empty.endswith("Left out: 1 bytes not observed.")
    assert bandwidth.table(frames) is None


def test_an_empty_run_says_what_would_fill_it(tmp_path: Path) -> None:
    frames = bandwidth.data(write_run(tmp_path / "run"))
    assert "would fill this" in frames.empty
    assert bandwidth.notes(frames) == ()


def test_a_component_from_outside_stays_text(tmp_path: Path) -> None:
    rows = [{**copy(0, 160, GIB), "component": name} for name in HOSTILE]
    text = json.dumps(json.loads(bandwidth.draw(bandwidth.data(drawn(tmp_path, *rows))).to_json()))
    assert "<script" not in text
    assert "<img" not in text


@pytest.mark.parametrize("most", [99, 20_001])
def test_too_few_or_too_many_points_are_refused(tmp_path: Path, most: int) -> None:
    with pytest.raises(UsageError, match="most must be between"):
        bandwidth.data(write_run(tmp_path / "run"), most=most)
