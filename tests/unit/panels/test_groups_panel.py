"""The groups side by side: all runs of a page in one picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
import pytest
from kvtrace import report
from kvtrace.errors import NotComparableError
from kvtrace.experiment.groups import groups
from kvtrace.experiment.plan import Fixed, Group, Plan
from kvtrace.panels import groups as panel
from tests.rows import write_run
from tests.unit.experiment.drawn import ENGINE, draw_round

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        draw_round(folder / "n1", "no_reuse", [100.0, 200.0]),
        draw_round(folder / "n2", "no_reuse", [102.0, 202.0]),
        draw_round(folder / "t1", "tiered<b>", [50.0, 100.0], stored=5),
    ]


@pytest.fixture(scope="module")
def frames(runs: list[Run]) -> panel.Groups:
    return panel.data(*runs)


def test_a_trace_a_group_on_each_side_with_whiskers_where_an_end_is_known(frames: panel.Groups) -> None:
    figure = panel.draw(frames)
    assert [trace.name for trace in figure.data] == ["no_reuse", "tiered&lt;b&gt;"] * 2
    left = figure.data[0]
    place = list(left.y).index("first token mean")
    assert left.x[place] == 151.0
    assert left.error_x.array[place] == pytest.approx(12.706 * 1, rel=1e-3)
    assert figure.data[1].error_x.array[place] == 0
    assert left.x[list(left.y).index("whole request mean")] == 161.0


def test_no_whisker_reaches_below_0(frames: panel.Groups) -> None:
    assert frames.rows is not None
    left = panel.draw(panel.Groups(frames.rows.with_columns(ci_low=pl.lit(-1e9)))).data[0]
    seen = [value is not None for value in left.x]
    assert any(seen)
    assert [low for low, told in zip(left.error_x.arrayminus, seen, strict=True) if told] == [
        value for value in left.x if value is not None
    ]


def test_a_step_is_a_sentence_and_a_column(frames: panel.Groups) -> None:
    said = panel.notes(frames)
    assert said[0].startswith("no_reuse → tiered<b>: first token mean -76 ms (")
    shown = panel.table(frames)
    assert shown is not None
    assert shown.head == ("", "no_reuse (2 runs)", "tiered<b> (1 run)", "no_reuse → tiered<b>")
    stored = next(row for row in shown.rows if row[0] == "bytes stored")
    assert stored[1:] == ("not observed", "1.95 KiB", "not observed")


def test_the_page_shows_it_once_before_the_runs(runs: list[Run], tmp_path: Path) -> None:
    output = tmp_path / "page.html"
    entries = [report.Entry("groups"), report.Entry("lookups")]
    output.write_text(report.page(runs, entries))
    text = output.read_text()
    assert text.count(f"<h2>{panel.TITLE}</h2>") == 1
    assert text.index(panel.TITLE) < text.index('id="run0-facts"')
    assert text.count('id="all-0-data"') == 1
    assert text.count('<article class="card" id="run1-0"') == 1
    assert "tiered<b>" not in text


def test_the_dashboard_of_the_experiment_begins_with_it() -> None:
    entries = report.read_dashboard(report.shipped("experiment.toml"))
    assert entries[0].name == "groups"
    assert [report.takes_all(report.panel(entry.name)) for entry in entries] == [True, False, False]


def test_runs_that_may_not_stand_side_by_side_give_no_page(runs: list[Run], tmp_path: Path) -> None:
    other = draw_round(tmp_path / "o", "tiered", [1.0, 2.0], slo={"ttft_ns": 2})
    first = draw_round(tmp_path / "p", "gpu_prefix", [1.0, 2.0], slo={"ttft_ns": 1})
    with pytest.raises(NotComparableError, match="slo differs"):
        panel.data(*runs, first, other)


def test_a_run_without_a_request_is_no_group(runs: list[Run], tmp_path: Path) -> None:
    empty = write_run(tmp_path / "empty")
    assert panel.data(empty).empty
    assert panel.data(runs[0], empty).cells().keys() == panel.data(runs[0]).cells().keys()


def test_the_page_compares_as_the_command_did_with_its_plan(tmp_path: Path) -> None:
    plan = Plan(
        Fixed(may_differ=("block_size",)), groups={"tiered": Group(), "no_reuse": Group(), "a": Group()}
    )
    told = {"may_differ": ["block_size"], "groups": {"tiered": None, "no_reuse": None, "a": None}}

    def run(name: str, group: str, **more: object) -> Run:
        size = {"e": ENGINE | {"block_size": name}}
        return draw_round(tmp_path / name, group, [100.0, 200.0], **told | {"engines": size} | more)

    runs = [run("16", "no_reuse"), run("32", "tiered")]
    assert groups(runs, plan).equals(panel.data(*runs).rows)
    assert panel.data(*runs).cells()["no_reuse", "completed"]["against"] == "tiered"
    with pytest.raises(NotComparableError, match="block_size differs"):
        panel.data(*runs, run("64", "a", may_differ=[]))
    with pytest.raises(NotComparableError, match="block_size differs"):
        panel.data(*runs, run("128", "a", may_differ="block_size", groups=["x"]))
