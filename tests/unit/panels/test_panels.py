"""Every panel: its contract, its empty state, and names from outside that stay text."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from kvtrace.errors import UsageError
from kvtrace.panels import lookups, overlap, panel, panels, slowest, transfers
from kvtrace.panels._lanes import lanes, longest
from tests.rows import write_run
from tests.unit.panels.drawn import HOSTILE, request, small, span

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvtrace.run import Run

    Shared = Callable[[str], Run]

MS = 1_000_000


def drawn(trace_list: object, name: str) -> list[object]:
    return [trace for trace in trace_list if trace.name == name]  # type: ignore[attr-defined]


OF_KEYS = (
    "compatibility", "engine_numbers", "four_events", "miss_ratio_curve", "predicted_reported", "residency",
)  # fmt: skip
"""Panels of what key events, routers and pages of metrics tell: the drawn run has none."""


@pytest.mark.parametrize("name", panels())
def test_a_panel_states_its_question_and_how_to_read_it(name: str) -> None:
    module = panel(name)
    assert module.TITLE.endswith("?")
    assert module.READING.endswith(".")


@pytest.mark.parametrize("name", panels())
def test_an_empty_run_gives_a_sentence_that_names_an_instrument(name: str, shared: Shared) -> None:
    module = panel(name)
    frames = module.data(shared("empty"))
    assert re.search(r"--[a-z]|kvtrace\.op", frames.empty)
    figure = module.draw(frames)
    assert len(figure.data) == 0
    assert len(figure.layout.annotations) == 1


@pytest.mark.parametrize("name", panels())
@pytest.mark.parametrize("steps", [True, False])
def test_a_figure_is_drawn_without_markup_from_outside(name: str, steps: bool, shared: Shared) -> None:  # noqa: FBT001
    module = panel(name)
    figure = module.draw(module.data(shared("steps" if steps else "no steps")))
    text = json.dumps(json.loads(figure.to_json()))
    for hostile in HOSTILE:
        assert hostile not in text or "<" not in hostile
    assert not re.search(r"<(?!/?(b|br|span|extra)\b)", text)


@pytest.mark.parametrize("name", panels())
def test_the_same_run_is_drawn_the_same_way_twice(name: str, tmp_path: Path) -> None:
    module, run = panel(name), write_run(tmp_path / "run", **small(steps=True))
    assert module.draw(module.data(run)).to_json() == module.draw(module.data(run)).to_json()


@pytest.mark.parametrize("name", panels())
def test_every_axis_of_numbers_says_what_it_measures(name: str, shared: Shared) -> None:
    module = panel(name)
    figure = module.draw(module.data(shared("hold")))
    assert bool(figure.data) == (name not in OF_KEYS), "an empty panel has a sentence instead of axes"
    layout = figure.layout
    titles = [layout[key].title.text for key in layout.to_plotly_json() if key.startswith("xaxis")]
    titles = [title for title in titles if figure.data or title]
    assert bool(titles) == bool(figure.data)
    unit = r"\(%\)|\((s|ms)\)|^ms |, ms$|^seconds |tokens|^requests$|^time \(UTC\)$"
    assert all(re.search(unit, title) for title in titles)


def test_hidden_transfer_time_is_told_from_waited_for(tmp_path: Path) -> None:
    frames = overlap.data(write_run(tmp_path / "run", **small(steps=True)))
    lines = {(row["class"], row["hop"]): row for row in frames.sums.iter_rows(named=True)}
    load = lines["load", "host->gpu"]
    assert 0 < load["exposed_ns"] < load["total_ns"]
    assert load["exposed_ns"] + sum(load[column] for column in overlap.HIDDEN) == load["total_ns"]


def test_without_steps_what_compute_hid_is_not_observed(tmp_path: Path) -> None:
    figure = overlap.draw(overlap.data(write_run(tmp_path / "run", **small(steps=False))))
    (hidden,) = drawn(figure.data, "hidden behind compute: not observed")
    assert hidden.x == (None,)  # type: ignore[attr-defined]


def test_overlap_refuses_a_window_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no window itl; there are ttft, decode, e2e"):
        overlap.data(write_run(tmp_path / "run"), window="itl")


#  arrival 0        10            40    first token 50         end 90
#  queue   |--------|   lookup |--|  load |-----|      store        |------ (no end seen)
def test_lanes_run_from_the_path_down_and_start_at_the_arrival(tmp_path: Path) -> None:
    rows = [
        request("r0", 0, 50, 90, prompt_tokens=7),
        span("r0", "queue", 0, 10, 1, reason="capacity"),
        span("r0", "lookup", 10, 20, 2, requested_tokens=8, found_tokens=4),
        span("r0", "load", 20, 40, 3, tier_from="host", tier_to="gpu", tokens=4),
        span("r0", "store", 60, None, 4, tier_from="gpu", tier_to="host"),
    ]
    frames = slowest.data(write_run(tmp_path / "run", span=rows))
    ((_, found),) = lanes(frames.requests, (frames.path, frames.spans))
    assert list(found) == [
        "critical path",
        "request",
        "queue",
        "lookup",
        "load host → gpu",
        "store gpu → host",
    ]
    assert [(bar.kind, bar.start_ns, bar.end_ns) for bar in found["critical path"]][:3] == [
        ("queue_capacity", 0, 10 * MS),
        ("lookup", 10 * MS, 20 * MS),
        ("load", 20 * MS, 40 * MS),
    ]
    assert [bar.end_ns for bar in found["store gpu → host"]] == [None]


#  exact |--- queue ---|--- step ---|      upper |--- queue ---|--- (no step names it) ---|
def bounded_run(tmp_path: Path, *names: str) -> slowest.Slowest:
    rows = [span(None, "step", 10, 90, 9, members=[{"request_id": "exact", "scheduled_tokens": 1}])]
    for name in names:
        rows += [request(name, 0, 50, 90), span(name, "queue", 0, 10, 1, reason="capacity")]
    return slowest.data(write_run(tmp_path / "run", span=rows))


def path_hovers(frames: slowest.Slowest) -> list[str]:
    said = [text for trace in slowest.draw(frames).data for text in trace.customdata]
    return [when for what, when in said if what.startswith("critical path")]


def test_parts_of_a_path_that_are_upper_bounds_say_so_and_exact_ones_do_not(tmp_path: Path) -> None:
    frames = bounded_run(tmp_path, "exact", "upper")
    assert dict(frames.requests.select("request_id", "bound").rows()) == {"exact": "exact", "upper": "upper"}
    assert sorted(path_hovers(frames)) == [
        "&lt;= 10 ms, from 0 ns to 10 ms",
        "&lt;= 80 ms, from 10 ms to 90 ms",
        "10 ms, from 0 ns to 10 ms",
        "80 ms, from 10 ms to 90 ms",
    ]
    (note,) = slowest.notes(frames)
    assert note.startswith("The critical path of 1 of the 2 requests shown is an upper bound")


def test_a_picture_of_exact_paths_has_no_note_about_bounds(tmp_path: Path) -> None:
    frames = bounded_run(tmp_path, "exact")
    assert slowest.notes(frames) == ()
    assert not [said for said in path_hovers(frames) if "&lt;" in said]


def test_what_was_recorded_of_a_request_with_an_upper_bound_is_measured(tmp_path: Path) -> None:
    frames = bounded_run(tmp_path, "upper")
    assert slowest.notes(frames)[0].startswith("The critical path of every request shown")
    ((_, found),) = lanes(frames.requests, (frames.path, frames.spans))
    assert {bar.bound for bar in found["critical path"]} == {"upper"}
    assert [bar.when() for bar in found["queue"]] == ["10 ms, from 0 ns to 10 ms"]


def test_an_open_span_is_a_mark_and_never_a_bar(tmp_path: Path) -> None:
    rows = [request("r0", 0, 50, 90), span("r0", "store", 60, None, 4, tier_from="gpu", tier_to="host")]
    figure = slowest.draw(slowest.data(write_run(tmp_path / "run", span=rows)))
    (mark,) = [trace for trace in figure.data if trace.type == "scatter"]
    assert list(mark.x) == [60]
    assert "its end was not observed" in mark.customdata[0][1]


def test_the_slowest_are_ranked_by_their_end_and_by_their_first_token(tmp_path: Path) -> None:
    rows = [request("slow-end", 0, 1, 100), request("late-token", 0, 60, 61), request("quick", 0, 1, 2)]
    run = write_run(tmp_path / "run", span=rows)
    both = slowest.data(run, top=1).requests
    assert both.select("request_id", "e2e_place", "ttft_place").rows() == [
        ("slow-end", 1, None),
        ("late-token", None, 1),
    ]
    assert slowest.data(run, by="e2e", top=2).requests["request_id"].to_list() == ["slow-end", "late-token"]
    assert slowest.data(run, by="ttft", top=1).requests["request_id"].to_list() == ["late-token"]


def test_an_unfinished_request_is_ranked_by_how_long_it_was_open(tmp_path: Path) -> None:
    rows = [request("hung", 0, None, None), request("r1", 0, 5, 10), span(None, "step", 0, 500)]
    frames = slowest.data(write_run(tmp_path / "run", span=rows))
    table = slowest.table(frames)
    assert table is not None
    assert table.rows[0][2:5] == ("hung", "not observed", "open, >= 500 ms")


def test_what_nobody_recorded_reads_not_observed_and_never_0(tmp_path: Path) -> None:
    table = slowest.table(slowest.data(write_run(tmp_path / "run", span=[request("r0", 0, 5, 10)])))
    assert table is not None
    assert table.rows[0][5:] == (
        "not observed",
        "not observed",
        "not observed",
        "none seen",
        "not observed",
        "not observed",
    )


def test_long_lanes_keep_their_longest_bars_and_say_so(tmp_path: Path) -> None:
    steps = [
        span(
            None,
            "step",
            at,
            at + 0.5 + at / 10_000,
            at,
            members=[{"request_id": "r0", "scheduled_tokens": 1}],
        )
        for at in range(3000)
    ]
    frames = slowest.data(write_run(tmp_path / "run", span=[request("r0", 0, 5, 3000), *steps]))
    kept, left_out = longest(lanes(frames.requests, (frames.path, frames.spans)), slowest.MOST_BARS)
    assert sum(len(bars) for bars in kept[0].values()) <= slowest.MOST_BARS
    assert left_out > 0
    assert max(bar.start_ns for bar in kept[0]["step"]) == 2999 * MS
    assert "are left out" in slowest.notes(frames)[-1]


@pytest.mark.parametrize(
    ("option", "said"), [({"by": "size"}, "by must be one of"), ({"top": 0}, "between 1 and 50")]
)
def test_slowest_refuses_options_that_mean_nothing(
    option: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        slowest.data(write_run(tmp_path / "run"), **option)  # type: ignore[arg-type]


def test_few_transfers_are_all_drawn_and_drops_are_crosses(tmp_path: Path) -> None:
    frames = transfers.data(write_run(tmp_path / "run", **small(steps=True)))
    assert transfers.notes(frames) == ()
    assert frames.sample.height == int(frames.paths["transfers"].sum())
    (drops,) = drawn(transfers.draw(frames).data, "stored nothing (drop)")
    assert drops.marker.symbol == "x-thin"  # type: ignore[attr-defined]


def test_many_transfers_are_sampled_and_the_largest_and_longest_stay(tmp_path: Path) -> None:
    rows = [
        span(f"r{number}", "load", number, number + 1, number, tier_from="host", tier_to="gpu", bytes=100)
        for number in range(3000)
    ]
    rows[1234] |= {"bytes": 10**9}
    rows[2345] |= {"end_ns": rows[2345]["start_ns"] + 10**9}
    rows[77] |= {"end_ns": None}
    frames = transfers.data(write_run(tmp_path / "run", span=rows), most=400)
    kept = set(frames.sample["request_id"].to_list())
    assert {"r1234", "r2345", "r77"} <= kept
    assert frames.sample.height <= 400
    assert frames.paths["transfers"].to_list() == [3000]
    (note,) = transfers.notes(frames)
    assert note.startswith(f"Sampled: {frames.sample.height} of 3,000 are drawn (limit 400)")
    table = transfers.table(frames)
    assert table is not None
    assert table.rows[0][1] == "3,000"


def test_bytes_that_were_not_recorded_are_no_zero(tmp_path: Path) -> None:
    rows = [span("r0", "load", 0, 1, tier_from="host", tier_to="gpu", tokens=5)]
    frames = transfers.data(write_run(tmp_path / "run", span=rows))
    table = transfers.table(frames)
    assert table is not None
    assert table.rows[0][:4] == ("load host → gpu", "1", "5", "not observed")
    assert "bytes not observed" in transfers.draw(frames).data[0].customdata[0][1]


def outcomes_of(tmp_path: Path, *outcomes: str | None) -> str:
    """The cell "not ok" over loads with these outcomes."""
    rows = [
        span(f"r{n}", "load", n, n + 1, tier_from="host", tier_to="gpu", outcome=outcome)
        for n, outcome in enumerate(outcomes)
    ]
    table = transfers.table(transfers.data(write_run(tmp_path / "run", span=rows)))
    assert table is not None
    assert table.head[-1] == "not ok"
    return table.rows[0][-1]


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        ((None, None), "not observed"),
        (("ok", None), "0 (1 without)"),
        (("ok", "failed", None, None), "1 (2 without)"),
        (("ok", "failed"), "1"),
        (("ok", "ok"), "0"),
    ],
)
def test_an_outcome_that_nobody_recorded_is_not_counted_as_ok(
    outcomes: tuple[str | None, ...], said: str, tmp_path: Path
) -> None:
    assert outcomes_of(tmp_path, *outcomes) == said


def test_sums_too_large_for_64_bits_are_shown_and_raise_nothing(tmp_path: Path) -> None:
    huge = {"tokens": 1 << 62, "bytes": 1 << 62, "tier_from": "host", "tier_to": "gpu"}
    asked = {"requested_tokens": 1 << 62, "found_tokens": 1 << 62, "outcome": "hit"}
    rows = [request("r0", 0, 5, 10)]
    for number in range(3):
        rows.append(span("r0", "load", number, number + 1, number, **huge))
        rows.append(span("r0", "lookup", number, number + 1, 10 + number, **asked))
    run = write_run(tmp_path / "run", span=rows)
    moved, found, slow = (module.table(module.data(run)) for module in (transfers, lookups, slowest))
    assert moved is not None
    assert found is not None
    assert slow is not None
    total = f"{3 << 62:,}"
    assert moved.rows[0][2:4] == (total, "12,288 PiB")
    assert found.rows[0][2:5] == (total, total, "100.0 %")
    assert slow.rows[0][slow.head.index("loaded to the GPU")] == total


def test_a_longest_possible_transfer_has_a_median(tmp_path: Path) -> None:
    rows = [
        span("r0", op, 0, 1, place, start_ns=0, end_ns=(1 << 63) - 1)
        for place, op in enumerate(("load", "lookup"))
    ]
    run = write_run(tmp_path / "run", span=rows)
    assert transfers.data(run).paths["median_ns"].to_list() == [2.0**63]
    assert lookups.data(run).outcomes["median_ns"].to_list() == [2.0**63]


def test_lookups_with_the_same_answer_are_one_bubble(tmp_path: Path) -> None:
    rows = [
        span(f"r{n}", "lookup", n, n + 1, requested_tokens=512, found_tokens=256, outcome="partial")
        for n in range(5)
    ]
    frames = lookups.data(write_run(tmp_path / "run", span=rows))
    assert frames.cells.select("requested_tokens", "found_tokens", "lookups").rows() == [(512, 256, 5)]
    assert lookups.draw(frames).data[0].name == "everything found"


def test_a_lookup_without_an_answer_is_in_the_table_and_in_no_bubble(tmp_path: Path) -> None:
    rows = [
        span("r0", "lookup", 0, 5000, requested_tokens=512, outcome="timeout", reason="timeout"),
        span("r1", "lookup", 0, 1, requested_tokens=512, found_tokens=0, outcome="miss"),
    ]
    frames = lookups.data(write_run(tmp_path / "run", span=rows))
    assert frames.cells["outcome"].to_list() == ["miss"]
    assert lookups.notes(frames) == (
        "1 lookup did not say what was found: in the table, not in the picture.",
    )
    table = lookups.table(frames)
    assert table is not None
    assert table.rows == (
        ("miss", "1", "512", "0", "0 %", "1 ms"),
        ("timeout: timeout", "1", "512", "not observed", "not observed", "5 s"),
    )


def test_many_different_answers_are_binned_and_say_so(tmp_path: Path) -> None:
    rows = [
        span(f"r{n}", "lookup", n, n + 1, n, requested_tokens=n, found_tokens=n // 2, outcome="partial")
        for n in range(2000)
    ]
    frames = lookups.data(write_run(tmp_path / "run", span=rows))
    assert frames.cells.height <= lookups.MOST_POINTS
    assert frames.step == 16
    assert "multiples of 16 tokens" in lookups.notes(frames)[0]
    assert frames.cells["lookups"].sum() == 2000
