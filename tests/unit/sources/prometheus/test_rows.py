"""Samples of pages become rows: names, kinds, labels, values and times as the text has them."""

from __future__ import annotations

import math

import polars as pl
import pytest
from kvtrace.sources import prometheus
from kvtrace.sources.prometheus import rows as rows_module
from tests.unit.sources.prometheus.pages import page

UNENDED = "OpenMetrics pages without # EOF"
NO_SAMPLE = "lines that are no sample"


def test_a_sample_is_a_row_with_the_pages_own_name() -> None:
    # Mooncake's counters have no _total; the library would add it
    found = page("""
        # HELP mooncake_transfer_read_bytes Total bytes read
        # TYPE mooncake_transfer_read_bytes counter
        mooncake_transfer_read_bytes{client_mode="real"} 8388608
        # TYPE agent_tx_bytes_total counter
        agent_tx_bytes_total 5
    """)
    assert found.samples() == [
        ("mooncake_transfer_read_bytes", {"client_mode": "real"}, 8388608.0),
        ("agent_tx_bytes_total", {}, 5.0),
    ]
    assert set(found.kinds().values()) == {"counter"}
    assert found.losses == []
    assert found.notes == []


def test_a_page_has_no_process_and_without_timestamps_no_time() -> None:
    (row,) = page("a 1").rows
    assert row["time_ns"] is None
    assert row["process"] is None
    assert row["kind"] is None


def test_kinds_follow_the_type_and_the_suffix() -> None:
    found = page("""
        # TYPE g gauge
        g 1
        # TYPE h histogram
        h_bucket{le="+Inf"} 1
        h_sum 1
        h_count 1
        # TYPE s summary
        s{quantile="0.5"} 1
        s_sum 1
        s_count 1
        # TYPE h_created gauge
        h_created 1.7e9
        # TYPE u untyped
        u 1
        alone 1
    """)
    assert found.kinds() == {
        "g": "gauge", "h_bucket": "histogram", "h_sum": "histogram", "h_count": "histogram",
        "s": "summary", "s_sum": "summary", "s_count": "summary", "h_created": "gauge", "u": None,
        "alone": None,
    }  # fmt: skip


def test_openmetrics_has_kinds_of_its_own() -> None:
    found = page("""
        # TYPE c counter
        c_total 2
        c_created 1.7e9
        # TYPE i info
        i_info{version="1"} 1
        # TYPE st stateset
        st{st="up"} 1
        # TYPE gh gaugehistogram
        gh_bucket{le="+Inf"} 2
        gh_gcount 2
        gh_gsum 3
        # TYPE un unknown
        un 4
        # EOF
    """)
    assert found.kinds() == {
        "c_total": "counter", "c_created": "gauge", "i_info": "gauge", "st": "gauge",
        "gh_bucket": "gauge", "gh_gcount": "gauge", "gh_gsum": "gauge", "un": None,
    }  # fmt: skip
    assert found.losses == []


def test_a_counter_of_a_cut_openmetrics_page_is_still_a_counter() -> None:
    found = page("# TYPE c counter\nc_total 2")
    assert found.samples() == [("c_total", {}, 2.0)]
    assert found.kinds() == {"c_total": "counter"}


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("a 1 1795988236158", 1_795_988_236_158_000_000),  # classic: milliseconds
        ("# TYPE a unknown\na 1 1795988236.158279123\n# EOF", 1_795_988_236_158_279_123),  # seconds, exactly
        ("a 1 1795988236\n# EOF", 1_795_988_236_000_000_000),
        ("a 1 1.5e9\n# EOF", 1_500_000_000_000_000_000),
    ],
)
def test_a_timestamp_in_the_text_is_the_time(text: str, time_ns: int) -> None:
    (row,) = page(text).rows
    assert row["time_ns"] == time_ns


@pytest.mark.parametrize("stamp", ["0", "-5", "1e300", "NaN", "+Inf", "99999999999999999"])
def test_a_timestamp_that_is_no_time_sets_its_sample_aside(stamp: str) -> None:
    found = page(f"a 1 {stamp}\nb 2")
    assert found.samples() == [("b", {}, 2.0)]
    assert [(loss.cause, loss.count) for loss in found.losses] == [("impossible_time", 1)]


def test_nan_is_null_and_said_and_infinities_are_kept() -> None:
    # nixl writes "Nan" for quantiles of nothing
    found = page('s{quantile="0.5"} Nan\na +Inf\nb -Inf\nc 0')
    assert [value for _, _, value in found.samples()] == [None, math.inf, -math.inf, 0.0]
    assert found.notes == ["1 values are NaN: null in the table"]


def test_counts_from_two_to_the_53_on_are_said_to_be_inexact() -> None:
    found = page(
        f'# TYPE c counter\nc{{a="1"}} {2**53 - 1}\nc{{a="2"}} {2**53 + 1}\n# TYPE g gauge\ng {2**60}'
    )
    assert found.notes == ["1 counts are 2^53 or more: a float64 may be off by one and more"]
    assert found.samples()[0][2] == float(2**53 - 1)


def test_labels_are_unescaped() -> None:
    found = page(r'a{path="C:\\x",text="say \"hi\"\n",empty=""} 1')
    assert found.samples() == [("a", {"path": "C:\\x", "text": 'say "hi"\n', "empty": ""}, 1.0)]


def test_names_in_quotes_are_names() -> None:
    found = page('# TYPE "my.name" gauge\n{"my.name","a.b"="x"} 1')
    assert found.samples() == [("my.name", {"a.b": "x"}, 1.0)]
    assert found.kinds() == {"my.name": "gauge"}


def test_a_page_cannot_say_that_it_is_another_page() -> None:
    (row,) = page('a{"kvtrace.source"="other","kvtrace.page"="7"} 1', "mine.txt").rows
    assert row["labels"] == {"kvtrace.source": "mine.txt", "kvtrace.page": "0"}


def test_exemplars_are_counted_and_not_kept() -> None:
    found = page("""
        # TYPE h histogram
        h_bucket{le="1"} 1 # {trace_id="4bf92f3577b34da6a3ce929d0e0e4736"} 0.5 1795988236.1
        h_bucket{le="+Inf"} 2 # {user="secret"} 9
        h_count 2
        h_sum 9.5
        # EOF
    """)
    assert [name for name, _, _ in found.samples()] == ["h_bucket", "h_bucket", "h_count", "h_sum"]
    assert found.notes == ["2 exemplars are counted and not kept", "1 of them name a trace"]
    assert "secret" not in str(found.rows)


def test_an_exemplar_alone_shows_openmetrics() -> None:
    # the classic parser would take the exemplar's value for a timestamp in milliseconds
    found = page('# TYPE c counter\nc_total 1 # {trace_id="a"} 0.5')
    assert [(row["value"], row["time_ns"]) for row in found.rows] == [(1.0, None)]
    assert found.lost() == {UNENDED: 1}


def test_the_text_of_a_label_shows_nothing() -> None:
    found = page('a{b="x # {y"} 1 1795988236158')
    assert found.rows[0]["time_ns"] == 1_795_988_236_158_000_000


def test_a_native_histogram_gives_its_count_and_sum() -> None:
    buckets = "schema:0,zero_threshold:0.001,zero_count:4,positive_spans:[0:2],positive_deltas:[2,1]"
    found = page('# TYPE n histogram\nn{a="1"} {count:24,sum:100,' + buckets + "}\n# EOF")
    assert found.samples() == [("n_count", {"a": "1"}, 24.0), ("n_sum", {"a": "1"}, 100.0)]
    assert found.kinds() == {"n_count": "histogram", "n_sum": "histogram"}
    assert found.notes == ["1 native histograms: their count and sum are kept, their buckets are not"]


def test_a_native_histogram_beside_its_classic_form_counts_once() -> None:
    native = "n {count:24,sum:100,schema:0,zero_threshold:0.001,zero_count:24}"
    found = page(f'# TYPE n histogram\n{native}\nn_bucket{{le="+Inf"}} 24\nn_count 24\nn_sum 100\n# EOF')
    assert sorted(name for name, _, _ in found.samples()) == ["n_bucket", "n_count", "n_sum"]


def test_carriage_returns_and_a_byte_order_mark_are_no_content() -> None:
    text = b"\xef\xbb\xbf# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).\r\n"
    text += b'# TYPE DCGM_FI_DEV_GPU_UTIL gauge\r\nDCGM_FI_DEV_GPU_UTIL{gpu="0"} 7\r\n'
    assert prometheus.looks_like(text)
    found = page(text)
    assert found.samples() == [("DCGM_FI_DEV_GPU_UTIL", {"gpu": "0"}, 7.0)]
    assert found.kinds() == {"DCGM_FI_DEV_GPU_UTIL": "gauge"}
    assert found.losses == []


def test_series_beyond_the_limit_are_dropped_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "SERIES_A_PAGE", 3)
    one = "\n".join(f'a{{i="{i}"}} 1' for i in range(5))
    found = page(f"# TYPE a gauge\n{one}\n# EOF\n# TYPE a gauge\n{one}\n# EOF")
    assert [page for _, page in found.pages()] == ["0", "0", "0", "1", "1", "1"]
    assert [(loss.cause, loss.count) for loss in found.losses] == [("dropped", 4)]


def test_a_sample_with_too_many_labels_is_dropped() -> None:
    labels = ",".join(f'l{i}="x"' for i in range(65))
    found = page(f"a{{{labels}}} 1\nb 1")
    assert found.samples() == [("b", {}, 1.0)]
    assert found.losses[0].cause == "dropped"


def test_rows_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "ROWS_A_PART", 10)
    lines = [line for i in range(30) for line in (f"# TYPE m{i} gauge".encode(), f"m{i} {i}".encode())]
    parts = [part.tables["metric"] for part in prometheus.decode([lines], "p") if part.tables]
    assert [part.height for part in parts] == [10, 10, 10]
    assert pl.concat(parts)["value"].to_list() == [float(i) for i in range(30)]
