"""counters: what grew between the pages of a process, and what began anew."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.counters import COLUMNS, counters
from kvtrace.importer.arrowing import arrow_rows
from kvtrace.run import open_run
from kvtrace.sinks.parquet.compact import compact_run
from kvtrace.sources.prometheus import decode
from tests.rows import write_run
from tests.samples import SAMPLES

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl
    from kvtrace.run import Run

Row = dict[str, Any]


def rows(pages: dict[str, str]) -> list[Row]:
    """Rows of `metric` as an import of these files has them."""
    found: list[Row] = []
    for source, text in pages.items():
        lines = [line.strip().encode() for line in text.splitlines()]
        for part in decode([lines], source):
            if part.tables:
                found += arrow_rows(part.tables["metric"], "metric").to_pylist()
    return found


def grown(tmp_path: Path, pages: dict[str, str]) -> dict[str, tuple[Any, ...]]:
    """Series -> (first, last, increase, resets, samples), rows of the pages written in any order."""
    drawn = rows(pages)
    random.Random(7).shuffle(drawn)
    return answer(write_run(tmp_path / "run", metric=drawn))


def answer(run: Run) -> dict[str, tuple[Any, ...]]:
    frame: pl.DataFrame = counters(run)
    assert frame.schema == COLUMNS
    keys = [f"{row['name']}{{{row['labels']}}}" for row in frame.to_dicts()]
    assert len(set(keys)) == len(keys)
    return dict(zip(keys, frame.select("first", "last", "increase", "resets", "samples").rows(), strict=True))


def pages(*values: str) -> str:
    """Pages of one counter, one after the other."""
    return "".join(f"# TYPE c_total counter\nc_total {value}\n" for value in values)


def test_a_counter_grows_by_what_was_counted_between_its_pages(tmp_path: Path) -> None:
    found = grown(tmp_path, {"p.txt": pages("3", "5", "10")})
    assert found == {'c_total{kvtrace.source="p.txt"}': (3.0, 10.0, 7.0, 0, 3)}


@pytest.mark.parametrize(
    ("values", "increase", "resets"),
    [
        (["10", "4"], 4.0, 1),  # fell to 4: 4 were counted since it began anew
        (["10", "12", "1", "6", "2"], 2.0 + 1.0 + 5.0 + 2.0, 2),
        (["10", "0"], 0.0, 1),
        (["10", "10"], 0.0, 0),
        (["10", "NaN", "12"], 2.0, 0),  # what is no number never counts, and is no reset
        (["10", "+Inf", "12"], 2.0, 0),
        (["10"], None, 0),
        (["10", "NaN"], None, 0),
    ],
)
def test_a_reset_counts_from_zero(
    tmp_path: Path, values: list[str], increase: float | None, resets: int
) -> None:
    ((_, _, found, times, samples),) = grown(tmp_path, {"p.txt": pages(*values)}).values()
    assert (found, times) == (increase, resets)
    assert samples == sum(value not in ("NaN", "+Inf") for value in values)


def test_a_created_time_that_moves_is_a_reset_though_the_value_grew(tmp_path: Path) -> None:
    text = "# TYPE c counter\nc_total {}\n# TYPE c_created gauge\nc_created {}\n"
    found = grown(tmp_path, {"p.txt": text.format(5, 100) + text.format(8, 100) + text.format(9, 200)})
    assert found == {'c_total{kvtrace.source="p.txt"}': (5.0, 9.0, 3.0 + 9.0, 1, 3)}


def test_a_process_that_started_anew_resets_its_counters(tmp_path: Path) -> None:
    text = "# TYPE c_total counter\nc_total {}\n# TYPE process_start_time_seconds gauge\n"
    text += "process_start_time_seconds {}\n"
    found = grown(tmp_path, {"p.txt": text.format(5, 100) + text.format(8, 200)})
    assert found == {'c_total{kvtrace.source="p.txt"}': (5.0, 8.0, 8.0, 1, 2)}


HISTOGRAM = """
# TYPE h histogram
h_bucket{{le="1"}} {0}
h_bucket{{le="+Inf"}} {0}
h_sum {1}
h_count {0}
"""


def test_a_sum_that_falls_while_its_count_grows_is_no_reset(tmp_path: Path) -> None:
    # engines/vllm.md 7: vLLM has observed -894 s
    found = grown(tmp_path, {"p.txt": HISTOGRAM.format(5, 100.0) + HISTOGRAM.format(6, -794.0)})
    assert found['h_sum{kvtrace.source="p.txt"}'] == (100.0, -794.0, -894.0, 0, 2)
    assert found['h_count{kvtrace.source="p.txt"}'] == (5.0, 6.0, 1.0, 0, 2)
    assert found['h_bucket{le="+Inf",kvtrace.source="p.txt"}'] == (5.0, 6.0, 1.0, 0, 2)


def test_a_sum_is_reset_with_its_count_though_it_grew(tmp_path: Path) -> None:
    found = grown(tmp_path, {"p.txt": HISTOGRAM.format(5, 1.0) + HISTOGRAM.format(2, 7.0)})
    assert found['h_sum{kvtrace.source="p.txt"}'] == (1.0, 7.0, 7.0, 1, 2)


def test_gauges_quantiles_and_untyped_samples_do_not_count(tmp_path: Path) -> None:
    text = """
        # TYPE g gauge
        g 1
        # TYPE s summary
        s{quantile="0.5"} 1
        s_sum 2
        s_count 3
        # TYPE u untyped
        u 4
    """
    assert [key.split("{")[0] for key in grown(tmp_path, {"p.txt": text})] == ["s_count", "s_sum"]


def test_series_are_told_apart_by_their_labels_written_as_a_page_writes_them(tmp_path: Path) -> None:
    text = '# TYPE c counter\nc{b="2",a="x\\"\\\\y"} 1\nc{a="1"} 2\n'
    assert [*grown(tmp_path, {"p.txt": text})] == [
        'c{a="1",kvtrace.source="p.txt"}', 'c{a="x\\"\\\\y",b="2",kvtrace.source="p.txt"}',
    ]  # fmt: skip


def started(value: int, second: int) -> str:
    return (
        pages(str(value)) + f"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {second}\n"
    )


def test_files_that_show_the_same_start_are_pages_of_one_process(tmp_path: Path) -> None:
    found = grown(
        tmp_path,
        {"scrape-10.txt": started(7, 100), "scrape-9.txt": started(5, 100), "other.txt": started(1, 200)},
    )
    assert found == {
        'c_total{kvtrace.source="scrape-10.txt"}': (5.0, 7.0, 2.0, 0, 2),  # 9 comes before 10
        'c_total{kvtrace.source="other.txt"}': (1.0, 1.0, None, 0, 1),
    }


def test_files_that_differ_in_a_moment_alone_are_pages_of_one_process(tmp_path: Path) -> None:
    # two workers' files do not show when they started: their numbers may be ports, so they stay apart
    found = grown(
        tmp_path,
        {
            "w-1-after.txt": pages("9"),
            "w-1.txt": pages("4"),
            "w-1-before.txt": pages("3"),
            "w-2-before.txt": pages("1"),
        },
    )
    assert found == {
        'c_total{kvtrace.source="w-1-after.txt"}': (3.0, 9.0, 6.0, 0, 3),
        'c_total{kvtrace.source="w-2-before.txt"}': (1.0, 1.0, None, 0, 1),
    }


def test_a_restart_between_two_files_is_a_reset(tmp_path: Path) -> None:
    found = grown(tmp_path, {"v-before.txt": started(5, 100), "v.txt": started(8, 200)})
    assert found == {'c_total{kvtrace.source="v.txt"}': (5.0, 8.0, 8.0, 1, 2)}


def test_a_file_that_shows_two_starts_ties_the_files_of_both(tmp_path: Path) -> None:
    found = grown(
        tmp_path,
        {"a.txt": started(5, 100), "b.txt": started(8, 200), "c.txt": started(6, 100) + started(9, 200)},
    )
    assert len(found) == 1


def test_times_go_before_names(tmp_path: Path) -> None:
    text = "# TYPE c counter\nc_total {} {}\n# EOF\n"
    found = grown(tmp_path, {"p.txt": text.format(9, 300) + text.format(4, 100) + text.format(6, 200)})
    assert found == {'c_total{kvtrace.source="p.txt"}': (4.0, 9.0, 5.0, 0, 3)}


def test_rows_of_no_file_are_series_of_their_process(tmp_path: Path) -> None:
    base = {"name": "c", "kind": "counter", "labels": None}
    run = write_run(
        tmp_path / "run",
        metric=[
            {**base, "time_ns": 2, "value": 7.0, "process": "p"},
            {**base, "time_ns": 1, "value": 5.0, "process": "p"},
            {**base, "time_ns": 1, "value": 1.0, "process": "q"},
        ],
    )
    assert counters(run).select("labels", "process", "increase").rows() == [("", "p", 2.0), ("", "q", None)]


def test_compacting_changes_nothing(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run", metric=rows({"p-before.txt": pages("3", "9"), "p.txt": pages("1", "4")})
    )
    before = answer(run)
    assert before == {'c_total{kvtrace.source="p.txt"}': (3.0, 4.0, 6.0 + 1.0 + 3.0, 1, 4)}
    compact_run(run.path)
    assert answer(open_run(run.path)) == before


def test_the_tokens_of_a_recorded_run_are_what_its_pages_say(tmp_path: Path) -> None:
    raw = SAMPLES / "l2-loads" / "raw"
    found = grown(tmp_path, {file.name: file.read_text() for file in sorted(raw.glob("*-metrics*.txt"))})
    mine = 'model_name="tiny-llama",kvtrace.source="vllm-metrics.txt"'
    assert found[f'vllm:prompt_tokens_total{{engine="0",{mine}}}'] == (0.0, 15000.0, 15000.0, 0, 2)
    assert found[f'vllm:external_prefix_cache_hits_total{{engine="0",{mine}}}'] == (0.0, 4480.0, 4480.0, 0, 2)
    # the cache server's page is another process, of which there is one page
    assert found['process_cpu_seconds_total{kvtrace.source="lmcache-metrics.txt"}'][2:] == (None, 0, 1)
