"""The exposure panel: sums, bounds and quantiles over a partition written in literal rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from kvtrace.panels import exposure
from tests.rows import write_run
from tests.unit.panels.drawn import span

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from kvtrace.run import Run

_HIDDEN = (
    "hidden_by_compute_ns",
    "hidden_by_wait_ns",
    "hidden_by_queue_ns",
    "hidden_by_load_ns",
    "hidden_by_rest_ns",
)


def row(request: str, name: str, exposed: int | None, **more: object) -> dict[str, object]:
    """One row of the partition, of window ttft unless it says otherwise."""
    return (
        {
            "request_id": request,
            "window": "ttft",
            "class": name,
            "hop": None,
            "exposed_ns": exposed,
            "total_ns": exposed,
        }
        | dict.fromkeys(_HIDDEN, 0)
        | {"work_ns": 0, "open_ns": 0, "bound": "exact", "censored": False, "agreement": 0}
        | more
    )


def partitioned(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *rows: dict[str, object], steps: bool = True
) -> Run:
    """A run whose partition is what the test says."""
    path = folder / "partition.parquet"
    schema = dict.fromkeys(("exposed_ns", "total_ns", *_HIDDEN, "work_ns", "open_ns", "agreement"), pl.Int64)
    text = dict.fromkeys(("request_id", "window", "class", "hop", "bound"), pl.String)
    pl.DataFrame(rows, schema_overrides=schema | text | {"censored": pl.Boolean}).write_parquet(path)
    monkeypatch.setattr("kvtrace.analyses.exposure.partition", lambda _run: path)
    spans = [span(None, "step", 0, 1)] if steps else []
    return write_run(folder / "run", span=spans)


def test_quantiles_count_requests_without_a_row_as_a_measured_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(f"r{number}", "compute", 10) for number in range(10)]
    run = partitioned(
        tmp_path,
        monkeypatch,
        *rows,
        row("r0", "load", 5, hop="disk->host"),
        row("r0", "load", 7, hop="host->gpu"),
    )
    found = {line["class"]: line for line in exposure.data(run).quantiles.iter_rows(named=True)}
    assert (found["load"]["p50_ns"], found["load"]["p90_ns"], found["load"]["p99_ns"]) == (0, 0, 12)
    assert found["compute"]["p50_ns"] == 10
    assert found["load"]["requests"] == 10


def test_upper_bounds_and_censored_requests_are_in_no_quantile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = partitioned(
        tmp_path,
        monkeypatch,
        row("r0", "load", 10),
        row("r1", "load", 1000, censored=True),
        row("r2", "load", 5000, bound="upper"),
        row("r2", "compute", None, bound="upper"),
    )
    frames = exposure.data(run)
    assert frames.quantiles.select("class", "p99_ns").rows() == [("load", 10)]
    assert frames.requests.rows() == [("ttft", "exact", 2, 1), ("ttft", "upper", 1, 0)]


def test_every_number_of_an_upper_bound_has_the_sign_and_compute_reads_not_observed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (
        row("r0", "compute", None, bound="upper", total_ns=None),
        row("r0", "load", 3_000_000, bound="upper"),
    )
    run = partitioned(tmp_path, monkeypatch, *rows, steps=False)
    frames = exposure.data(run)
    table = exposure.table(frames)
    assert table is not None
    assert table.head == ("window", "class", "waited, all requests", "share of window")
    assert table.rows == (
        ("to first token (upper bound)", "exposed transfer, the headline", "<= 3 ms", "<= 100.0 %"),
        ("to first token (upper bound)", "compute", "not observed", "not observed"),
        ("to first token (upper bound)", "load", "<= 3 ms", "<= 100.0 %"),
    )
    assert "the headline: to first token <= 3 ms." in exposure.notes(frames)[0]
    assert "No step of the engine was recorded" in exposure.notes(frames)[1]


def test_a_class_that_was_not_observed_has_no_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (row("r0", "compute", None, bound="upper"), row("r0", "load", 3_000_000, bound="upper"))
    figure = exposure.draw(exposure.data(partitioned(tmp_path, monkeypatch, *rows)))
    compute = next(trace for trace in figure.data if trace.name == "compute: not observed")
    assert compute.x == (None,)
    assert 0 not in [value for trace in figure.data for value in trace.x]


def test_shares_are_of_the_window_and_parts_add_up_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = partitioned(
        tmp_path, monkeypatch, row("r0", "compute", 25), row("r0", "load", 60), row("r1", "other", 15)
    )
    figure = exposure.draw(exposure.data(run))
    shares = {trace.name: trace.x[0] for trace in figure.data if trace.xaxis == "x"}
    assert shares == {"compute": 25, "load": 60, "not recorded": 15}


def test_hops_of_a_load_are_told_apart_and_keep_one_legend_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = partitioned(
        tmp_path, monkeypatch, row("r0", "load", 30, hop="disk->host"), row("r0", "load", 12, hop="host->gpu")
    )
    figure = exposure.draw(exposure.data(run))
    shown = [trace.name for trace in figure.data if trace.showlegend]
    assert shown == ["load disk → host", "load host → gpu"]


def test_unfinished_requests_are_counted_beside_the_quantiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = partitioned(tmp_path, monkeypatch, row("r0", "load", 1), row("r1", "load", 2, censored=True))
    assert "1 of 2 to first token" in exposure.notes(exposure.data(run))[1]


def test_a_run_without_requests_says_why_there_is_nothing(tmp_path: Path) -> None:
    frames = exposure.data(write_run(tmp_path / "run"))
    assert frames.empty is not None
    assert "--otlp-traces-endpoint" in frames.empty
    assert exposure.table(frames) is None
    assert "no window to divide" in exposure.draw(frames).layout.annotations[0].text


def test_windows_that_sum_beyond_64_bits_are_drawn(tmp_path: Path) -> None:
    """Five requests of 292 years each: what an import lets in must not cost the page."""
    ends = 2**63 - 2
    requests = [{"op": "request", "request_id": f"r{n}", "start_ns": 1, "end_ns": ends} for n in range(5)]
    lookups = [row | {"op": "lookup", "start_ns": 5, "end_ns": ends - 6} for row in requests]
    run = write_run(tmp_path / "run", span=requests + lookups)
    figure = exposure.draw(exposure.data(run))
    assert figure.data
