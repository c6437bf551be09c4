"""A bad line costs itself, never its page."""

from __future__ import annotations

import pytest
from kvtrace.sources.prometheus import decode, families
from kvtrace.sources.stream import Undecodable
from tests.unit.sources.prometheus.pages import page

NO_SAMPLE = "lines that are no sample"


@pytest.mark.parametrize(
    "bad",
    [
        "c 1_0",
        "c one",
        "c{",
        'c{a="1} 2',
        "c{a=1} 2",
        "c",
        "1c 5",
        'c{a="1",a="2"} 3',
        "# TYPE c nonsense",
        "# TYPE",
        "\x00\x01",
        "<html><body>503</body></html>",
        "c " + "9" * 400,
    ],
)
def test_a_bad_line_of_a_classic_page_costs_itself(bad: str) -> None:
    found = page(f"# TYPE a gauge\na 1\n# TYPE c counter\nc 2\n{bad}\nc 3\n# TYPE z gauge\nz 4")
    assert [value for _, _, value in found.samples()] == [1.0, 2.0, 3.0, 4.0]
    assert found.lost() == {NO_SAMPLE: 1}


@pytest.mark.parametrize(
    "bad",
    [
        "c_total x",
        'c_total{a="1"',
        "c_total 1 # {",
        's{a="1"} {count:x}',
        'c_total 1 # {a="1"} x y z 1 2 3',
        "# TYPE d nonsense",
    ],
)
def test_a_bad_line_of_an_openmetrics_page_costs_itself(bad: str) -> None:
    found = page(f"# TYPE c counter\nc_total 1\n{bad}\n# TYPE z gauge\nz 2\n# EOF")
    values = [value for _, _, value in found.samples()]
    # of a line whose exemplar alone is bad, the sample is kept
    assert values == ([1.0, 1.0, 2.0] if "x y z" in bad or bad.endswith("# {") else [1.0, 2.0])
    assert found.lost() == ({} if len(values) == 3 else {NO_SAMPLE: 1})


def test_bytes_that_are_no_utf8_cost_their_line() -> None:
    found = page(b'# TYPE c gauge\nc{a="\xff"} 1\nc 2')
    assert found.samples() == [("c", {}, 2.0)]
    assert found.lost() == {NO_SAMPLE: 1}


def test_lines_that_contradict_each_other_are_samples_all_the_same() -> None:
    # the library refuses a histogram whose count is not its last bucket
    found = page("""
        # TYPE h histogram
        h_bucket{le="1"} 1
        h_bucket{le="+Inf"} 2
        h_count 3
        h_sum 4
        # TYPE c counter
        c_total NaN
        # EOF
    """)
    assert [value for _, _, value in found.samples()] == [1.0, 2.0, 3.0, 4.0, None]
    assert found.kinds() == {
        "h_bucket": "histogram", "h_count": "histogram", "h_sum": "histogram", "c_total": "counter",
    }  # fmt: skip
    assert found.losses == []


def test_a_family_longer_than_a_part_keeps_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "FAMILY_LINES", 2)
    found = page("# TYPE c counter\n" + "\n".join(f'c{{i="{i}"}} {i}' for i in range(5)))
    assert [value for _, _, value in found.samples()] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert {row["kind"] for row in found.rows} == {"counter"}


def test_an_openmetrics_page_without_its_end_is_an_unclean_end() -> None:
    found = page("# TYPE b info\nb_info 1\n# UNIT a_seconds seconds\na_seconds 1")
    assert [loss.cause for loss in found.losses] == ["unclean_end"]


def test_what_the_stream_lost_is_a_loss_of_the_file() -> None:
    parts = list(decode([[b"a 1"], Undecodable("line longer than 16,384 bytes", 1), [b"b 2"]], "p.txt"))
    (loss,) = parts[-1].losses
    assert (loss.source, loss.cause, loss.count) == ("p.txt", "undecodable", 1)
    assert parts[-1].tables["metric"].height == 2


def test_an_empty_file_gives_nothing() -> None:
    (only,) = decode([], "p.txt")
    assert only.tables == {}
    assert only.losses == ()
