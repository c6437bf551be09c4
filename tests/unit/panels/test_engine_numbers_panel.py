"""The engine's own numbers beside the measured ones, as bars and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.panels import engine_numbers
from tests.unit.analyses.serving import written
from tests.unit.analyses.test_engine_numbers import HITS, PARTIAL, QUERIES, SOURCE, VLLM, page

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run


def drawn(folder: Path) -> Run:
    """Hits of which a part was not loaded, queries that agree, a source that nobody can explain."""
    metrics = [
        *page(HITS, 0, 1280), *page(QUERIES, 0, 1536), *page("vllm:prefix_cache_hits_total", 0, 9000),
        *page(SOURCE, 0, 300, source="local_compute"),
    ]  # fmt: skip
    return written(folder, *PARTIAL, process=[VLLM], metric=metrics)


def test_bars_are_the_differences_by_whether_they_are_explained(tmp_path: Path) -> None:
    figure = engine_numbers.draw(engine_numbers.data(drawn(tmp_path)))
    bars = {bar.name: dict(zip(bar.y, bar.x, strict=True)) for bar in figure.data}
    assert bars == {
        "agrees": {QUERIES: 0},
        "differs, explained": {HITS: 100 * engine_numbers.MOST},
        "differs, unexplained": {
            "vllm:prefix_cache_hits_total": 100 * engine_numbers.MOST,
            f'{SOURCE}{{source="local_compute"}}': -76.5625,
        },
    }


def test_notes_say_how_many_agree_and_which_nobody_can_explain(tmp_path: Path) -> None:
    agree, unexplained, missing = engine_numbers.notes(engine_numbers.data(drawn(tmp_path)))
    assert agree == "1 number of 4 agrees."
    assert unexplained == (
        f'Unexplained, in part or whole: vllm:prefix_cache_hits_total and {SOURCE}{{source="local_compute"}}.'
    )
    assert missing.startswith("Not told or not measured: gen_ai.latency.time_in_model_prefill")


def test_a_story_says_what_a_difference_consists_of(tmp_path: Path) -> None:
    found = {
        story.name: story.sentences for story in engine_numbers.stories(engine_numbers.data(drawn(tmp_path)))
    }
    assert found[HITS] == (
        "Reported 1,280, measured 256 (loaded_tokens of hit_funnel).",
        "1,024 tokens of 1 failed load stay counted and were not used.",
    )
    assert QUERIES not in found


def test_the_table_has_both_numbers_and_what_would_have_recorded_one_that_is_missing(tmp_path: Path) -> None:
    table = engine_numbers.table(engine_numbers.data(drawn(tmp_path)))
    assert table is not None
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows[HITS] == ("loaded_tokens of hit_funnel", "1,280", "256", "1,024", "1")
    missing = rows["vllm:request_queue_time_seconds_sum"]
    assert "was not reported: kvtrace collect --metrics" in missing[0]
    assert missing[1:4] == ("not observed", "not observed", "not observed")


def test_without_pages_a_sentence_says_what_would_fill_it(tmp_path: Path) -> None:
    frames = engine_numbers.data(written(tmp_path, *PARTIAL, process=[VLLM]))
    assert "--metrics" in str(frames.empty)
    shown = (engine_numbers.notes(frames), engine_numbers.stories(frames), engine_numbers.table(frames))
    assert shown == ((), (), None)
