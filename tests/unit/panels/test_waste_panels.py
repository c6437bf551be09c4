"""Pictures of what was wasted, what more room would gain and who was served in time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from kvtrace.errors import UsageError
from kvtrace.panels import miss_ratio_curve, panel, slo, waste
from kvtrace.run import open_run
from tests.rows import write_run
from tests.unit.analyses.cache_rows import asked as asked_call
from tests.unit.analyses.cache_rows import event
from tests.unit.analyses.exposure.drawing import drawn
from tests.unit.analyses.test_ideal_hit_ratio import asked
from tests.unit.analyses.test_slo import served
from tests.unit.analyses.test_waste import answer, brought, keys_of, step_of, written
from tests.unit.analyses.test_waste import served as loading
from tests.unit.panels.drawn import HOSTILE

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

NAMES = ("waste", "miss_ratio_curve", "slo")


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_run_says_why_there_is_nothing(tmp_path: Path, name: str) -> None:
    module = panel(name)
    frames = module.data(write_run(tmp_path / "run"))
    assert "would fill this" in frames.empty
    assert module.draw(frames).layout.annotations[0].text
    assert module.notes(frames) == ()
    assert module.table(frames) is None


def wasting(tmp_path: Path) -> Run:
    """One load of 60 tokens, 120 bytes: 30 computed all the same, 4 of rounding. Nobody records reads."""
    spans = [loading(), brought(10, 20, 60), step_of(30, 40, 50, 50)]
    answer(tmp_path, *spans, request_key=keys_of("r0"), block=[written(1), event("accessed", 2)])
    return open_run(tmp_path / "run")


def test_a_bar_is_a_share_and_what_nobody_saw_is_no_share_of_0(tmp_path: Path) -> None:
    frames = waste.data(wasting(tmp_path))
    shares = {trace.name: (trace.x[0], trace.text[0]) for trace in waste.draw(frames).data}
    assert shares == {
        "stored, never read": (0.0, "not observed"),
        "loaded, then recomputed": (50.0, ""),
        "loaded twice": (0.0, ""),
        "moved because chunks are whole": (pytest.approx(100 * 4 / 60), ""),
    }
    (row,) = waste.table(frames).rows
    assert row[2:] == (
        "8 B",
        "not observed",
        "1 load",
        "120 B",
        "1",
        "60 B (50.0 %)",
        "0 B (0 %)",
        "8 B (6.7 %)",
    )
    assert waste.notes(frames) == (
        "Nobody records what is read in host (lmcache.l1): what was never read there is unknown.",
    )


def test_a_curve_begins_at_nothing_and_says_what_its_end_is(tmp_path: Path) -> None:
    keys = [*asked("r0", "abc", 1), *asked("r1", "xy", 2), *asked("r2", "abz", 3)]
    frames = miss_ratio_curve.data(write_run(tmp_path / "run", request_key=keys))
    (line,) = miss_ratio_curve.draw(frames).data
    assert list(line.x) == [0, 30, 40, 60]
    assert list(line.y) == [0.0, 12.5, 25.0, 25.0]
    assert line.line.shape == "hv"
    assert miss_ratio_curve.notes(frames) == (
        "s: at most 25.0 % can be hit; room for 40 tokens reaches nine tenths of it.",
    )
    (row,) = miss_ratio_curve.table(frames).rows
    assert row == ("not observed", "\N{EN DASH}", "s", "6", "60", "not observed", "25.0 %")


def test_keys_without_tokens_are_counted_as_keys(tmp_path: Path) -> None:
    keys = [*asked("r0", "ab", 1, size=None), *asked("r1", "ab", 2, size=None)]
    frames = miss_ratio_curve.data(write_run(tmp_path / "run", request_key=keys))
    figure = miss_ratio_curve.draw(frames)
    assert list(figure.data[0].y) == [0.0, 25.0, 50.0]
    assert figure.layout.xaxis.title.text == "keys that it may hold"


def test_of_many_key_spaces_those_with_the_most_keys_are_drawn(tmp_path: Path) -> None:
    keys = [
        row for n in range(9) for row in asked(f"r{n}", "abcdefghi"[: n + 1], n, space=f"{n}{HOSTILE[0]}")
    ]
    run = write_run(tmp_path / "run", request_key=keys)
    frames = miss_ratio_curve.data(run, lines=2)
    figure = miss_ratio_curve.draw(frames)
    assert sorted(trace.name[0] for trace in figure.data) == ["7", "8"]
    assert "<script" not in json.dumps(json.loads(figure.to_json()))
    assert miss_ratio_curve.notes(frames) == ("Drawn are the 2 of 9 lines with the most keys.",)
    with pytest.raises(UsageError, match="lines"):
        miss_ratio_curve.data(run, lines=0)


def test_requests_are_in_time_late_or_not_known(tmp_path: Path) -> None:
    run = drawn(
        tmp_path, served("a", 0, 50, 90), served("b", 0, 60, 90), served("c", 80, None, None, "open"),
        served("d", 0, 50, 60),
    )  # fmt: skip
    frames = slo.data(run, ttft_ns=50)
    bars = {trace.name: list(trace.x) for trace in slo.draw(frames).data}
    assert bars == {"in time": [50.0, 0.0], "late or failed": [25.0, 0.0], "not known": [25.0, 100.0]}
    first, second = slo.table(frames).rows
    assert first == ("\N{EN DASH}", "first token", "50 ns", "66.7 %", "2", "3", "1")
    assert second[3:] == ("not observed", "not observed", "0", "4")
    assert slo.notes(frames) == (
        "between tokens, p99 within 200 ms: not observed. Nobody recorded what it takes.",
    )


def test_over_losses_what_was_never_read_is_an_upper_bound(tmp_path: Path) -> None:
    block = [written(1, "a"), written(1, "b"), asked_call("accessed", 2, "a")]
    loss = [{"cause": "dropped", "count": 3, "process": "l0"}, {"cause": "duplicate", "count": 9}]
    frames = waste.data(write_run(tmp_path / "run", block=block, loss=loss))
    assert waste.notes(frames) == (
        "3 records were lost, reads perhaps: never read is at most this.",
        "8 B that nobody read lay there still when the recording ended.",
    )
