"""The picture of loads against computing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from kvtrace.errors import UsageError
from kvtrace.panels import break_even
from tests.rows import write_run
from tests.unit.analyses.break_even_rows import A_TOKEN_MS, copied, loading, others, world
from tests.unit.panels.drawn import HOSTILE

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

MIB = 2**20


def loaded(tmp_path: Path, *waits_ms: float, names: tuple[str, ...] = ()) -> Run:
    """A request a wait, each with 1,000 tokens of a KiB: computing them takes 100 ms."""
    spans = []
    for place, took_ms in enumerate(waits_ms):
        name = names[place] if names else f"r{place}"
        at = 3000.0 * place
        load = copied(1000, 1000 * 1024, at + 10, took_ms, request_id=name)
        spans += loading(1000, load, arrival=at, token=at + 2000, name=name)
    return world(tmp_path, *spans, *others(start=10_000_000))


def test_a_point_is_a_load_in_the_colour_of_its_verdict(tmp_path: Path) -> None:
    figure = break_even.draw(break_even.data(loaded(tmp_path, 20, 60, 400)))
    points = {trace.name: trace for trace in figure.data if trace.mode == "markers"}
    assert sorted(points["worth it"].x) == [20.0, 60.0]
    assert points["not worth it"].x == (400.0,)
    assert points["not worth it"].y == (1000 * 1024 / MIB,)
    assert set(points["worth it"].marker.symbol) == {"circle"}


def test_the_line_is_what_computing_so_many_bytes_takes(tmp_path: Path) -> None:
    figure = break_even.draw(break_even.data(loaded(tmp_path, 20, 400)))
    line = next(trace for trace in figure.data if trace.name == "break-even" and trace.fill is None)
    assert (line.x[0], line.y[0]) == (0.0, 0.0)
    assert line.x[-1] == pytest.approx(1000 * A_TOKEN_MS, rel=1e-6)
    assert line.y[-1] == pytest.approx(1000 * 1024 / MIB)


def test_the_table_sums_what_was_waited_and_what_computing_would_have_taken(tmp_path: Path) -> None:
    table = break_even.table(break_even.data(loaded(tmp_path, 20, 60, 400)))
    assert table is not None
    assert [row[:2] for row in table.rows] == [("worth it", "2"), ("not worth it", "1")]
    assert table.rows[0][4:] == ("80 ms", "200 ms", "120 ms")
    assert table.rows[1][4:] == ("400 ms", "100 ms", "-300 ms")


def test_without_prefill_steps_there_is_no_line_and_the_notes_say_so(tmp_path: Path) -> None:
    run = world(tmp_path, *loading(1000, copied(1000, MIB)))
    frames = break_even.data(run)
    assert not frames.lines
    assert "No line of 1 engine: too few prefill steps" in break_even.notes(frames)[0]


def test_loads_without_bytes_are_counted_and_not_drawn(tmp_path: Path) -> None:
    rows = [*loading(1000, copied(1000, MIB)), *loading(1000, copied(1000, None, request_id="r1"), name="r1")]
    frames = break_even.data(world(tmp_path, *rows, *others()))
    assert frames.points.height == 1
    assert "Not drawn: 1 load of which bytes or waiting are not known." in break_even.notes(frames)


def test_a_run_of_loads_without_bytes_says_so_instead_of_a_picture(tmp_path: Path) -> None:
    frames = break_even.data(world(tmp_path, *loading(1000, copied(1000, None)), *others()))
    assert frames.empty is not None
    assert frames.empty.startswith("1 request loaded, and of none")
    assert break_even.table(frames) is None


def test_of_many_loads_evenly_many_are_drawn_and_all_are_counted(tmp_path: Path) -> None:
    frames = break_even.data(loaded(tmp_path, *range(20, 170)), most=100)
    assert (frames.points.height, frames.drawable) == (100, 150)
    assert break_even.notes(frames)[-1] == "100 of 150 loads are drawn, evenly by size."


def test_names_from_outside_stay_text(tmp_path: Path) -> None:
    run = loaded(tmp_path, *(20 for _ in HOSTILE), names=HOSTILE)
    text = json.dumps(json.loads(break_even.draw(break_even.data(run)).to_json()))
    assert "<script" not in text
    assert "<img" not in text


@pytest.mark.parametrize("most", [99, 20_001])
def test_too_few_or_too_many_points_are_refused(tmp_path: Path, most: int) -> None:
    with pytest.raises(UsageError, match="most must be between"):
        break_even.data(write_run(tmp_path / "run"), most=most)
