"""Several pages in one file, and files that are no pages."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvtrace.sources import prometheus
from kvtrace.sources.decoded import Options
from kvtrace.sources.prometheus import pages
from kvtrace.sources.stream import open_input
from tests.samples import SAMPLES
from tests.unit.sources.prometheus.pages import page

HERE = Path(__file__).parent / "recorded"


def test_a_page_ends_where_its_first_line_comes_again() -> None:
    text = "# HELP a A.\n# TYPE a counter\na {0}\n# HELP b B.\n# TYPE b gauge\nb {0}\n"
    found = page(text.format(1) + text.format(2) + text.format(3))
    assert found.pages() == [("a", "0"), ("b", "0"), ("a", "1"), ("b", "1"), ("a", "2"), ("b", "2")]
    assert [value for _, _, value in found.samples()] == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    assert found.kinds() == {"a": "counter", "b": "gauge"}


def test_a_page_ends_at_its_end_mark() -> None:
    found = page("# TYPE a gauge\na 1\n# EOF\n# TYPE z gauge\nz 1\n# EOF\n")
    assert found.pages() == [("a", "0"), ("z", "1")]
    assert found.losses == []


def test_pages_without_descriptions_end_where_their_first_series_comes_again() -> None:
    found = page('a{x="1"} 1\na{x="2"} 1\nab 1\na{x="1"} 2\na{x="2"} 2\nab 2')
    assert [number for _, number in found.pages()] == ["0", "0", "0", "1", "1", "1"]


def test_a_comment_between_pages_is_no_subject() -> None:
    found = page("# scraped at noon\n# HELP a A.\na 1\n# scraped at one\n# HELP a A.\na 2")
    assert found.pages() == [("a", "0"), ("a", "1")]
    assert found.losses == []


def test_each_page_is_judged_alone() -> None:
    found = page("a 1 1795988236\n# EOF\na 2 1795988236158")
    assert [row["time_ns"] for row in found.rows] == [1_795_988_236_000_000_000, 1_795_988_236_158_000_000]


def test_a_page_longer_than_a_part_is_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PART_BYTES", 40)
    found = page("\n".join(["# UNIT a_s s", *(f"m{i} {i} 1795988236" for i in range(20)), "# EOF"]))
    assert [number for _, number in found.pages()] == ["0"] * 20
    assert {row["time_ns"] for row in found.rows} == {1_795_988_236_000_000_000}
    assert found.losses == []


@pytest.mark.parametrize(
    ("file", "samples", "nan"),
    [("nixl.txt", 145, 3), ("mooncake-master-metrics.txt", 149, 0)],
)
def test_recorded_pages_are_read_whole(file: str, samples: int, nan: int) -> None:
    text = (HERE / file).read_bytes()
    found = page(text)
    assert len(found.rows) == samples == sum(bool(line) and line[:1] != b"#" for line in text.split(b"\n"))
    assert sum(row["value"] is None for row in found.rows) == nan
    assert None not in {row["kind"] for row in found.rows}
    assert {row["labels"]["kvtrace.page"] for row in found.rows} == {"0"}
    assert found.losses == []


@pytest.mark.parametrize(
    "file", sorted(SAMPLES.glob("*/raw/*metrics*.txt")), ids=lambda file: str(file)[-40:]
)
def test_the_pages_of_the_samples_are_read_whole(file: Path) -> None:
    found = page(file.read_bytes(), file.name)
    assert len(found.rows) == sum(line[:1] != "#" for line in file.read_text().splitlines())
    assert None not in {row["kind"] for row in found.rows}
    assert found.losses == []
    assert found.notes == []


def test_of_all_recorded_files_only_pages_look_like_pages() -> None:
    files = [path for path in (*SAMPLES.glob("*/raw/*"), *HERE.iterdir()) if path.is_file()]
    found = set()
    for path in files:
        with open_input(path) as stream:
            if prometheus.looks_like(stream.peek(1 << 16)):
                found.add(path)
    named = {path for path in files if "metrics" in path.name and path.suffix == ".txt"} | {HERE / "nixl.txt"}
    assert found == {path for path in named if "summary" not in path.name}
    assert len(files) - len(found) > 40


@pytest.mark.parametrize(
    "text",
    [
        "", "\n", "<html><pre># TYPE a gauge\na 1\n</pre>", '{"a": 1}', '{"resourceSpans":[]}\n', "[1, 2]",
        "Total Read: 8.00 MB\n", "hello 1\nworld 2\n", "# a comment\n", "# Title\n\nText 1\n",
        "# TYPE a gauge\n" + "prose that goes on\n" * 9, "a{b} c\n",
    ],
)  # fmt: skip
def test_other_texts_are_no_pages(text: str) -> None:
    assert not prometheus.looks_like(text.encode())


@pytest.mark.parametrize(
    "text",
    [
        "# EOF\n", "# TYPE a gauge\na 1", "# HELP a A.\n", 'a{b="c"} 1\n', '{"my.name","a"="x"} 1\n',
        "# TYPE a gauge\nbroken\na 1\na 2\n", 'a{b="c"} +Inf 1795988236158\n', "# TYPE a gauge\na{b=",
    ],
)  # fmt: skip
def test_pages_are_pages_with_a_bad_line_too(text: str) -> None:
    assert prometheus.looks_like(text.encode())


def test_a_file_is_read_in_chunks_and_a_line_too_long_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "page.txt"
    file.write_text("# TYPE a gauge\na 1\nb " + "1" * 20_000 + "\nc 2\n")
    with open_input(file) as stream:
        (part,) = prometheus.read(stream, "page.txt", Options())
    assert part.tables["metric"]["name"].to_list() == ["a", "c"]
    assert [(loss.cause, loss.count) for loss in part.losses] == [("undecodable", 1)]
