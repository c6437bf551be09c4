"""Who waited for whom, what became of the cache's offers, which blocks are held, and the headline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.errors import UsageError
from kvtrace.panels import blockers, exposure, fallbacks, held_share, slowest
from kvtrace.report import read_dashboard, write_report
from tests.rows import write_run
from tests.unit.analyses import killed
from tests.unit.analyses.exposure.drawing import load, request, scheduler, step, wait
from tests.unit.panels.drawn import HOSTILE

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run


@pytest.fixture(scope="module")
def kill(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("killed") / "run", killed.POOL, **killed.tables())


def held(blocks: int | None) -> list[dict[str, Any]]:
    """r0 lacks 9 blocks in [0, 40); a hold keeps some."""
    rows = [request(0, 100, 60), step(40, 60)]
    rows.append(scheduler("queue", 0, 40, reason="capacity", blocks=9, free_blocks=0))
    rows.append(scheduler("hold", 0, 80, request_id="a", blocks=blocks, reason="store"))
    return rows


def test_the_headline_has_waits_lookups_and_the_held_part_of_the_queue(kill: Run) -> None:
    """5 s of lookup, 13.49 s for held blocks."""
    frames = exposure.data(kill)
    (row,) = frames.headline.filter(window="ttft").to_dicts()
    assert (row["exposed_ns"], row["held_ns"]) == (18_490 * killed.MS, 13_490 * killed.MS)
    assert (row["p50_ns"], row["p90_ns"]) == (0, 13_490 * killed.MS)
    note = exposure.notes(frames)[0]
    assert "the headline: to first token 18.5 s (of it 13.5 s for held GPU blocks); decode 0 ns" in note
    table = exposure.table(frames)
    assert table is not None
    assert table.rows[0] == (
        "to first token", "exposed transfer, the headline", "18.5 s", "95.0 %", "0 ns", "13.5 s", "13.5 s",
    )  # fmt: skip


def test_the_headline_counts_interference_and_not_the_rest_of_the_queue(tmp_path: Path) -> None:
    """Wait of r9 [0, 10), load [10, 25), queue without capacity [25, 40): 10 + 15."""
    rows = [request(0, 100, 60), wait(0, 10, name="r9"), load(10, 25), step(40, 60)]
    rows.append(scheduler("queue", 25, 40, reason="capacity", blocks=3, free_blocks=3))
    rows.append(scheduler("hold", 0, 80, request_id="a", blocks=9, reason="store"))
    frames = exposure.data(write_run(tmp_path / "run", span=rows))
    assert frames.headline.filter(window="e2e")["exposed_ns"].to_list() == [25]


def test_where_no_hold_was_recorded_the_headline_says_so(tmp_path: Path) -> None:
    frames = exposure.data(write_run(tmp_path / "run", span=[request(0, 100, 60), step(40, 60)]))
    assert exposure.notes(frames)[0].endswith(
        "No hold of GPU blocks was recorded: that part is not observed."
    )


def test_where_nobody_counted_the_blocks_the_headline_says_so(tmp_path: Path) -> None:
    frames = exposure.data(write_run(tmp_path / "run", span=held(None)))
    assert "Of 1 holder the part is not observed" in exposure.notes(frames)[0]


def test_who_waited_for_whom(kill: Run) -> None:
    frames = blockers.data(kill)
    assert blockers.notes(frames) == ("1 request waited 13.5 s in all for 3 other requests.",)
    table = blockers.table(frames)
    assert table is not None
    assert table.rows[0] == (
        "cmpl-r0-0-aa", "held GPU blocks (store)", "1", "4.50 s", "cmpl-r3-0-dd", "4.50 s",
    )  # fmt: skip
    (bars,) = blockers.draw(frames).data
    assert list(bars.y) == ["cmpl-r0-0-aa", "cmpl-r2-0-cc", "cmpl-r1-0-bb"]


def test_a_part_that_nobody_knows_is_not_0(tmp_path: Path) -> None:
    frames = blockers.data(write_run(tmp_path / "run", span=held(None)))
    table = blockers.table(frames)
    assert table is not None
    assert table.rows == (
        ("a", "held GPU blocks (store)", "1", "not observed", "not observed", "not observed"),
    )
    assert "not observed" in blockers.notes(frames)[0]


def test_parts_of_upper_bounds_have_the_sign(tmp_path: Path) -> None:
    """No step: the queue may hold compute."""
    rows = [row for row in held(9) if row["op"] != "step"]
    frames = blockers.data(write_run(tmp_path / "run", span=rows))
    assert blockers.notes(frames) == ("1 request waited <= 40 ns in all for 1 other request.",)


@pytest.mark.parametrize("options", [{"window": "all"}, {"top": 0}, {"top": 51}])
def test_options_of_blockers_are_checked(kill: Run, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="blockers:"):
        blockers.data(kill, **options)


def test_verdicts_are_counted_with_their_causes(kill: Run) -> None:
    frames = fallbacks.data(kill)
    table = fallbacks.table(frames)
    assert table is not None
    assert [row[:5] for row in table.rows] == [
        ("recompute after timeout", "timeout", "1", "25.0 %", "5 s"),
        ("recompute degraded", "down", "3", "75.0 %", "0 ns"),
    ]
    assert fallbacks.notes(frames) == ()
    assert [trace.x[0] for trace in fallbacks.draw(frames).data] == [1, 3]


def test_what_has_no_verdict_is_said_and_drawn(tmp_path: Path) -> None:
    unknown = scheduler("lookup", 10, 20, found_tokens=512, outcome="ok")
    frames = fallbacks.data(write_run(tmp_path / "run", span=[request(0, 100, 60), unknown]))
    assert frames.counts["verdict"].to_list() == [None]
    assert fallbacks.notes(frames)[0].startswith("1 request without a verdict: ")
    assert fallbacks.draw(frames).data[0].y == ("verdict not observed",)


def test_held_blocks_stand_against_the_pool(kill: Run) -> None:
    frames = held_share.data(kill)
    assert held_share.notes(frames) == ("At most 36 blocks were held at once, 90.0 % of the pool of 40.",)
    line, pool = held_share.draw(frames).data
    assert line.line.shape == "hv"
    assert list(line.y) == [12, 24, 36, 0]
    assert list(pool.y) == [40, 40]
    table = held_share.table(frames)
    assert table is not None
    assert table.rows[0] == ("cmpl-r0-0-aa", "store", "1", "12", "174.0", "0")


def test_a_hold_that_nobody_counted_breaks_the_line(tmp_path: Path) -> None:
    frames = held_share.data(write_run(tmp_path / "run", span=held(None)))
    assert list(held_share.draw(frames).data[0].y) == [None, 0]
    assert "How many blocks the pool has was not observed." in held_share.notes(frames)


def test_of_many_changes_the_highest_of_each_stretch_stays(tmp_path: Path) -> None:
    """300 holds of one block, ten at once of nine."""
    rows = [scheduler("hold", 10 * n, 10 * n + 5, request_id="a", blocks=1) for n in range(300)]
    rows.append(scheduler("hold", 1501, 1503, request_id="b", blocks=9))
    frames = held_share.data(write_run(tmp_path / "run", span=rows), most=100)
    assert frames.points.height <= 100
    assert frames.points["blocks"].max() == 10
    assert frames.points["blocks"].min() == 0
    assert "602 changes" in held_share.notes(frames)[-1]


def test_the_sentences_stand_beside_the_slowest(kill: Run, tmp_path: Path) -> None:
    stories = slowest.stories(slowest.data(kill))
    assert [story.name.split("  ")[1] for story in stories][:2] == ["cmpl-r3-0-dd", "cmpl-r0-0-aa"]
    assert all(len(story.sentences) == 6 for story in stories)
    page = tmp_path / "page.html"
    write_report([kill], page)
    text = page.read_text(encoding="utf-8")
    assert "that 3 requests held for stores" in text
    assert "Its lookup waited 5 s and timed out; everything was recomputed" in text


def test_hostile_ids_are_text_in_stories_and_bars(tmp_path: Path) -> None:
    rows = [request(0, 100, 60, request_id=name) for name in HOSTILE]
    rows.append(scheduler("queue", 0, 40, request_id=HOSTILE[0], reason="capacity", blocks=9, free_blocks=0))
    rows += [scheduler("hold", 0, 80, request_id=name, blocks=9, reason="store") for name in HOSTILE]
    run = write_run(tmp_path / "run", span=rows)
    write_report([run], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<img src=x" not in text
    assert "<script>alert" not in text
    assert "<b>bold" not in json.loads(blockers.draw(blockers.data(run)).to_json())["data"][0]["y"]


def test_the_overview_shows_all_of_it() -> None:
    names = [entry.name for entry in read_dashboard()]
    assert {"exposure", "slowest", "blockers", "fallbacks", "held_share"} <= set(names)
