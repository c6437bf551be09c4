"""Pictures of when state is reusable, what lies where, and what became of forecasts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.errors import UsageError
from kvtrace.panels import four_events, panel, predicted_reported, residency, store_lag
from tests.rows import write_run
from tests.unit.analyses.exposure.drawing import request, scheduler, store
from tests.unit.analyses.test_four_events import asked, block, drawn, keys, route
from tests.unit.panels.drawn import HOSTILE

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

MS = 1_000_000
NAMES = ("store_lag", "residency", "predicted_reported", "four_events")


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_run_says_why_there_is_nothing(tmp_path: Path, name: str) -> None:
    module = panel(name)
    frames = module.data(write_run(tmp_path / "run"))
    assert "would fill this" in frames.empty
    assert module.draw(frames).layout.annotations[0].text
    assert module.notes(frames) == ()
    assert module.table(frames) is None


def lagging(tmp_path: Path) -> Run:
    """Reusable 10 ms before the finish, 30 ms after it, never twice; one still open, one had nothing to do.

    100 % |-10--- 75 % |30--------- 50 %
    """
    rows = []
    for number, end in enumerate((90, 130)):
        rows += [request(0, 100 * MS, request_id=f"r{number}")]
        rows += [store(60 * MS, end * MS, tokens=16, request_id=f"r{number}")]
    rows += [request(0, 100 * MS, request_id=name) for name in ("n0", "n1", "open", "below")]
    rows.append(store(60 * MS, None, request_id="open"))
    rows.append(store(60 * MS, 61 * MS, op="drop", reason="no_room", tokens=48, request_id="n0"))
    rows.append(scheduler("lookup", 0, 1, found_tokens=0, reason="below_chunk", request_id="below"))
    return drawn(tmp_path, *rows)


def test_the_curve_falls_at_each_lag_and_stays_at_those_never_stored(tmp_path: Path) -> None:
    frames = store_lag.data(lagging(tmp_path))
    assert frames.curve.rows() == [(-10 * MS, 3), (30 * MS, 2)]
    assert (frames.stored, frames.never, frames.open, frames.nothing) == (2, 2, 1, 1)
    figure = store_lag.draw(frames)
    (line,) = figure.data
    assert list(line.y) == [100.0, 75.0, 50.0, 50.0]
    assert list(line.x)[1:3] == [-10.0, 30.0]
    assert line.line.shape == "hv"
    assert figure.layout.shapes[0].y0 == 50.0


def test_the_sentences_name_the_plateau_and_who_is_not_in_the_curve(tmp_path: Path) -> None:
    said = store_lag.notes(store_lag.data(lagging(tmp_path)))
    assert said[0] == "2 requests stored what they could; half of all were reusable 30 ms after their finish."
    assert said[1].startswith("2 requests (50.0 %) finished and stored nothing")
    assert said[2].startswith("Of 1 request it cannot be told")
    assert said[3].startswith("1 request had nothing to store: ")


def test_the_table_has_reasons_and_unknown_tokens_are_not_0(tmp_path: Path) -> None:
    table = store_lag.table(store_lag.data(lagging(tmp_path)))
    assert table is not None
    assert table.rows == (
        ("never stored", "no_room", "1", "48"),
        ("never stored", "not observed", "1", "not observed"),
        ("nothing to store", "below_chunk", "1", "not observed"),
    )


def test_a_run_in_which_all_was_lost_is_all_plateau(tmp_path: Path) -> None:
    rows = [request(), store(60, 61, op="drop", reason="no_room", tokens=48)]
    figure = store_lag.draw(store_lag.data(drawn(tmp_path, *rows)))
    assert figure.layout.shapes[0].y0 == 100.0


def test_residency_is_a_line_a_tier_and_part(tmp_path: Path) -> None:
    rows = [block(10, "a"), block(20, "b"), block(30, "a", "removed"), block(10, "a", tier="gpu")]
    frames = residency.data(drawn(tmp_path, block=rows))
    gpu, host = residency.draw(frames).data
    assert (gpu.name, host.name) == ("gpu: engine.gpu", "host: engine.host")
    assert list(host.y) == [1, 2, 1]
    assert list(host.x) == [0.0, 1e-8, 2e-8]
    table = residency.table(frames)
    assert table is not None
    assert table.rows[1] == (
        "host", "engine.host", "events of keys", "2", "1", "not observed", "not observed",
    )  # fmt: skip


def test_tokens_that_no_event_says_break_the_line(tmp_path: Path) -> None:
    frames = residency.data(
        drawn(tmp_path, block=[block(10, "a"), block(20, "b", tokens=16)]), shown="tokens"
    )
    assert list(residency.draw(frames).data[0].y) == [None, None]
    assert residency.notes(frames)[0].startswith("2 points without tokens")


def test_a_page_without_a_time_is_in_the_table_alone(tmp_path: Path) -> None:
    name = "lmcache_status.storage_manager.l1_manager.total_object_count"
    frames = residency.data(drawn(tmp_path, metric=[{"name": name, "value": 35.0, "process": "p"}]))
    assert "Only pages without a time" in residency.draw(frames).layout.annotations[0].text
    table = residency.table(frames)
    assert table is not None
    assert table.rows[0][:5] == ("host", "lmcache.l1", "status page", "not observed", "35")


@pytest.mark.parametrize("options", [{"shown": "bytes"}, {"most": 99}, {"most": 20_001}])
def test_options_of_residency_are_checked(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="residency:"):
        residency.data(write_run(tmp_path / "run"), **options)


def test_forecast_and_report_are_a_point_each_request_off_the_diagonal_is_said(tmp_path: Path) -> None:
    """As recorded of Dynamo 1.6.1: 396 forecast of 528 host tokens reported."""
    rows = [asked(528, 396, request_id="a"), asked(528, 396, request_id="b"), asked(16, 16, request_id="c")]
    rows += [asked(0, 48, request_id="d"), asked(16, None, request_id="e"), asked(None, 16, request_id="f")]
    rows.append(route(request_id="g", predicted_tokens=5))
    rows.append(asked(7, None, request_id="g"))
    frames = predicted_reported.data(drawn(tmp_path, *rows))
    assert sorted(frames.points.select("predicted", "reported", "requests").rows()) == [
        (5, 7, 1), (16, 16, 1), (48, 0, 1), (396, 528, 2),
    ]  # fmt: skip
    diagonal, points = predicted_reported.draw(frames).data
    assert list(diagonal.x) == list(diagonal.y) == [0, 528]
    assert sorted(points.y) == [0, 7, 16, 528]
    said = predicted_reported.notes(frames)
    assert said[0].startswith("3 requests of 5 had more cached tokens than forecast")
    assert said[1].startswith("1 request of 5 had less than forecast")
    assert said[2] == "Without a point: 1 request with a forecast alone, 1 with a report alone."
    table = predicted_reported.table(frames)
    assert table is not None
    assert table.rows[0] == ("a", "2", "396", "528", "132")


def test_what_existed_elsewhere_and_was_computed_again_is_said(tmp_path: Path) -> None:
    copies = [block(40, "a", engine="w1"), block(1, "z", tier="gpu", engine="w1")]
    run = drawn(
        tmp_path,
        asked(0),
        route(said={"best_available_blocks": "0"}),
        block=copies,
        request_key=keys("a", "b"),
    )
    frames = four_events.data(run)
    assert [(bar.name, list(bar.x)) for bar in four_events.draw(frames).data] == [
        ("exists", [16]), ("visible", [0]), ("selected", [0]), ("loaded", [0]),
    ]  # fmt: skip
    (said,) = four_events.notes(frames)
    assert said.startswith("16 tokens existed, as was recorded or follows, only on another engine")
    table = four_events.table(frames)
    assert table is not None
    assert table.rows == (("r0", "host, remote", "no (native)", "no (native)", "0", "16"),)


def test_what_nobody_watched_is_in_no_bar_and_is_said(tmp_path: Path) -> None:
    run = drawn(tmp_path, asked(None), block=[block(40, "a")], request_key=keys("a"))
    said = four_events.notes(four_events.data(run))
    assert "Of 16 tokens nobody watched whether they were loaded." in said


def test_hostile_names_are_text(tmp_path: Path) -> None:
    rows = [asked(16, 8, request_id=name) for name in HOSTILE]
    blocks = [block(10 + n, "a", component=name) for n, name in enumerate(HOSTILE)]
    run = drawn(
        tmp_path, *rows, block=blocks, request_key=[key for name in HOSTILE for key in keys("a", name=name)]
    )
    for name in NAMES:
        module = panel(name)
        text = module.draw(module.data(run)).to_json()
        assert "<b>bold" not in text
        assert json.loads(text)
