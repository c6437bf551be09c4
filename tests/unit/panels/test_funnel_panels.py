"""The funnel, hit ratios and the ledger as pictures and tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from kvtrace.errors import UsageError
from kvtrace.panels import hit_funnel, hit_ratio, ledger
from kvtrace.panels._text import NONE
from kvtrace.report import Entry, page
from tests.rows import write_run
from tests.unit.analyses.serving import PROMPT, asked, decode, loaded, lookup, prefill, store, written
from tests.unit.panels.drawn import HOSTILE

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run


def two(folder: Path) -> Run:
    """r0 loads 1,152 of 1,200 found, r1 was seen by nobody but its front end."""
    return written(
        folder, asked(0, 1152), lookup(1200), loaded(1152, component="lmcache.l1"), prefill(1152, 384),
        decode(70), asked(None, None, "r1", first_token_ns=None), store(100, 130),
    )  # fmt: skip


def test_the_funnel_names_what_was_lost_between_its_stages(tmp_path: Path) -> None:
    frames = hit_funnel.data(two(tmp_path))
    (bars,) = hit_funnel.draw(frames).data
    assert dict(zip(bars.y, bars.x, strict=True)) == {
        "existed in some tier": 0, "visible to the router": 0, "found by the lookup": 1200,
        "filled no block": 48, "selected to be loaded": 1152, "loaded and used": 1152,
    }  # fmt: skip
    assert list(bars.text)[:3] == ["not observed", "not observed", ""]


def test_the_funnel_says_of_how_many_requests_a_stage_is_known(tmp_path: Path) -> None:
    frames = hit_funnel.data(two(tmp_path))
    partly, never = hit_funnel.notes(frames)
    assert "found by the lookup (1); selected to be loaded (1); loaded and used (1)" in partly
    assert never == "Not observed of any request: existed in some tier; visible to the router."
    table = hit_funnel.table(frames)
    assert table is not None
    assert table.rows[4] == ("found by the lookup", "1,200", "39.1 %", "1", "1")
    assert table.rows[0] == ("existed in some tier", "not observed", "not observed", "0", "2")


def test_a_run_that_saw_nothing_of_a_cache_says_why_there_is_no_funnel(tmp_path: Path) -> None:
    run = written(tmp_path, asked(None, None))
    assert "kvtrace run" in str(hit_funnel.data(run).empty)
    assert "lookup" in str(hit_ratio.data(run).empty)
    assert ledger.data(run).empty is None


def test_a_run_without_rows_draws_sentences(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for panel in (hit_funnel, hit_ratio, ledger):
        frames = panel.data(run)
        assert frames.empty
        assert panel.draw(frames).data == ()


def test_a_tier_has_what_it_had_and_what_was_used(tmp_path: Path) -> None:
    frames = hit_ratio.data(two(tmp_path))
    table = hit_ratio.table(frames)
    assert table is not None
    nobody = "not observed"
    assert table.rows == (
        ("gpu", NONE, "1,536", "1,536", "0", "0", "0.0 %", "0.0 %", NONE),
        ("host", "lmcache.l1", "1,536", nobody, nobody, "1,152", "75.0 %", nobody, nobody),
        ("unknown", NONE, "1,536", nobody, "1,200", "0", "0.0 %", nobody, "0.0 %"),
    )
    found, used = hit_ratio.draw(frames).data
    assert sum(found.x) == 1200
    assert sum(used.x) == 1152
    assert hit_ratio.notes(frames) == ()


def test_a_split_that_nobody_knows_is_said(tmp_path: Path) -> None:
    answer = lookup(1280, found_by_tier=[("host", 512), ("disk", 768)])
    frames = hit_ratio.data(written(tmp_path, asked(640, 640), answer, prefill(1280, 256)))
    assert "Used tokens of host, disk: not observed" in hit_ratio.notes(frames)[0]
    _, used = hit_ratio.draw(frames).data
    assert list(used.text) == ["", "not observed", "not observed"]


def test_the_ledger_has_those_without_a_first_token_first_and_then_the_slowest(tmp_path: Path) -> None:
    rows = [asked(0, 0, f"r{number}", first_token_ns=10 * number) for number in range(1, 9)]
    rows += [asked(0, 0, f"x{number}", first_token_ns=None) for number in range(3)]
    frames = ledger.data(written(tmp_path, *rows), top=4)
    assert frames.rows["request_id"].to_list() == ["x0", "r8", "r7", "r6", "r5"]
    assert ledger.notes(frames) == (
        "5 requests of 11 are shown: the 4 slowest to their first token, and 1 of 3 that have none.",
    )


def test_a_ledger_with_every_request_says_nothing_more(tmp_path: Path) -> None:
    frames = ledger.data(two(tmp_path))
    assert (frames.rows.height, ledger.notes(frames)) == (2, ())


def test_every_cell_of_the_ledger_sorts_by_its_number(tmp_path: Path) -> None:
    table = ledger.table(ledger.data(two(tmp_path)))
    assert table is not None
    cells = dict(zip(table.head, zip(table.rows[1], table.keys[1], strict=True), strict=True))
    assert cells["request"] == ("r0", None)
    assert cells["verdict"] == ("loaded", None)
    assert cells["first token"] == ("60 ns", 60.0)
    assert cells["external hit, tokens"] == ("1,152", 1152.0)
    assert cells["network"] == ("not observed", None)
    assert cells["stored after"] == ("130 ns", 130.0)


def test_the_page_has_a_head_to_click_and_a_number_to_sort_by(tmp_path: Path) -> None:
    text = page([two(tmp_path)], [Entry("ledger")])
    assert '<table class="sortable">' in text
    assert '<th class="name"><button type="button">request</button></th>' in text
    assert '<td data-key="60.0">60 ns</td>' in text
    assert re.search(r'<td class="null">not observed</td>', text)


def test_the_dots_of_the_ledger_are_times_that_were_observed(tmp_path: Path) -> None:
    traces = ledger.draw(ledger.data(two(tmp_path))).data
    assert {trace.name: list(trace.y) for trace in traces} == {
        "to first token": [1], "lookups": [1], "host to GPU": [1], "GPU to host": [1],
        "between tokens, p99": [1],
    }  # fmt: skip


@pytest.mark.parametrize("top", [0, 1001])
def test_the_number_of_rows_is_bounded(tmp_path: Path, top: int) -> None:
    with pytest.raises(UsageError, match="ledger: top"):
        ledger.data(write_run(tmp_path / "run"), top=top)


@pytest.mark.parametrize("name", HOSTILE)
def test_names_from_outside_stay_text(tmp_path: Path, name: str) -> None:
    run = written(
        tmp_path,
        asked(0, 256, name),
        lookup(256, request_id=name, component=name),
        prefill(256, PROMPT - 256, name=name),
    )
    text = page([run], [Entry("hit_funnel"), Entry("hit_ratio"), Entry("ledger")])
    for raw in ("<script>alert", "<img src=x", "<b>bold</b>&lt;", "\u202e", "\x1b"):
        assert raw not in text
