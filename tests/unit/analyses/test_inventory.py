from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace import schema
from kvtrace.analyses.inventory import inventory
from kvtrace.run import open_run
from tests.rows import write_run
from tests.spools import Drawn, living_header, run_file

if TYPE_CHECKING:
    from pathlib import Path

T0_NS = 1_700_000_000_000_000_001


def test_an_empty_run_has_counts_of_zero_and_no_times(tmp_path: Path) -> None:
    frame = inventory(write_run(tmp_path / "run"))
    assert frame.columns == ["what", "name", "value", "detail"]
    assert frame.filter(what="requests", name="total")["value"].to_list() == [0]
    assert set(frame.filter(what="rows")["value"]) == {0}
    assert frame.filter(what="time").is_empty()


def test_times_are_exact_to_the_nanosecond(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run",
        span=[{"op": "request", "request_id": "a", "start_ns": T0_NS}],
        metric=[{"name": "m", "time_ns": T0_NS + 2_000_000_000, "value": 1.0}],
    )
    rows = inventory(run).filter(what="time").rows()
    assert rows == [
        ("time", "first_ns", T0_NS, "2023-11-14T22:13:20.000000001Z"),
        ("time", "last_ns", T0_NS + 2_000_000_000, "2023-11-14T22:13:22.000000001Z"),
        ("time", "duration_ns", 2_000_000_000, None),
    ]


def test_rows_of_a_clock_without_a_date_do_not_make_a_run_of_56_years(tmp_path: Path) -> None:
    dated = {"op": "request", "request_id": "a", "start_ns": T0_NS, "end_ns": T0_NS + 5}
    dateless = {"op": "request", "request_id": "b", "start_ns": 1_000_000_000, "evidence": "predicted"}
    both = inventory(write_run(tmp_path / "both", span=[dateless, dated])).filter(what="time")
    assert both.select("name", "value").rows() == [
        ("first_ns", T0_NS), ("last_ns", T0_NS + 5), ("duration_ns", 5), ("without_date", 1),
    ]  # fmt: skip
    alone = inventory(write_run(tmp_path / "alone", span=[dateless])).filter(what="time")
    assert alone["value"].to_list() == [1_000_000_000, 1_000_000_000, 0]


def test_spans_without_an_operation_are_counted_by_name(tmp_path: Path) -> None:
    spans = [{"op": None, "name": "mystery"}, {"op": None, "name": "mystery"}, {"op": None}, {"op": "step"}]
    frame = inventory(write_run(tmp_path / "run", span=spans))
    unknown = frame.filter(what="spans_without_op").select("name", "value").rows()
    assert unknown == [("mystery", 2), (None, 1)]
    assert frame.filter(what="spans").select("name", "value").rows() == [("step", 1)]


def test_losses_are_summed_by_source_and_cause(tmp_path: Path) -> None:
    lost = [
        {"source": "a", "cause": "dropped", "count": 2}, {"source": "a", "cause": "dropped", "count": 3},
        {"source": "b", "cause": "dropped", "count": 7},
    ]  # fmt: skip
    frame = inventory(write_run(tmp_path / "run", loss=lost)).filter(what="losses")
    assert frame.rows() == [("losses", "dropped", 5, "a"), ("losses", "dropped", 7, "b")]


def test_products_and_instruments_come_from_the_processes(tmp_path: Path) -> None:
    processes = [
        {"process": "p0", "product": "vllm", "version": "0.32.0", "instruments": [("scheduler", "active")]},
        {
            "process": "p1",
            "product": "vllm",
            "version": "0.32.0",
            "instruments": [("scheduler", "not found")],
        },
        {"process": "p2"},
    ]
    frame = inventory(write_run(tmp_path / "run", process=processes))
    assert frame.filter(what="product").rows() == [
        ("product", "unknown", 1, None), ("product", "vllm", 2, "0.32.0"),
    ]  # fmt: skip
    assert frame.filter(what="instrument").rows() == [
        ("instrument", "scheduler", 1, "active"), ("instrument", "scheduler", 1, "not found"),
    ]  # fmt: skip


def test_run_json_tells_engines_whether_listed_or_keyed(tmp_path: Path) -> None:
    listed = {
        "engines": [{"engine": "e0", "version": "1", "connector": "LMCacheMPConnector"}],
        "synthetic": False,
    }
    keyed = {"engines": {"e0": {"version": "1", "connector": "LMCacheMPConnector"}, "lmcache": "0.5.5"}}
    first = inventory(write_run(tmp_path / "listed", listed))
    assert first.filter(what="engine").rows() == [("engine", "e0", None, "1, connector=LMCacheMPConnector")]
    assert first.filter(what="run", name="synthetic")["detail"].to_list() == ["false"]
    second = inventory(write_run(tmp_path / "keyed", keyed))
    assert second.filter(what="engine")["name"].to_list() == ["e0", "lmcache"]


def test_run_json_tells_how_the_run_was_captured(tmp_path: Path) -> None:
    meta = {"kind": "import", "group": None, "recording": {"captured": "by hand", "commands": {}}}
    frame = inventory(write_run(tmp_path / "run", meta)).filter(what="run")
    facts = dict(frame.select("name", "detail").rows())
    assert facts == {"schema_version": None, "run_id": "drawn", "kind": "import", "captured": "by hand"}


def test_aliases_are_counted_by_kind_with_the_requests_they_name(tmp_path: Path) -> None:
    aliases = [{"alias": name, "kind": "client", "request_id": "a"} for name in ("x", "y")]
    spans = [{"op": "request", "request_id": name, "start_ns": 1} for name in ("a", "b")]
    frame = inventory(write_run(tmp_path / "run", alias=aliases, span=spans))
    assert frame.filter(what="aliases").rows() == [("aliases", "client", 2, "for 1 of 2 requests")]


def test_what_content_was_dropped_is_said_by_attribute(tmp_path: Path) -> None:
    frame = inventory(write_run(tmp_path / "run", {"content_dropped": {"gen_ai.prompt": 4, "content": 1}}))
    assert frame.filter(what="content_dropped").select("name", "value").rows() == [
        ("content", 1),
        ("gen_ai.prompt", 4),
    ]


@pytest.mark.parametrize(
    ("meta", "writes", "state"),
    [
        ({"ended_ns": None}, True, (1, "being recorded; this is what there is at this moment")),
        ({"ended_ns": None, "recorder": living_header()}, False,
         (0, "being recorded; no engine has begun to write")),
        ({"ended_ns": None, "recorder": living_header() | {"start_ticks": 1}}, False,
         (None, "cut off: kvtrace run was killed; all that was recorded is here, its exit code is not")),
        ({"ended_ns": 7}, False, None),
    ],
)  # fmt: skip
def test_the_state_of_a_recording_comes_first(
    tmp_path: Path,
    meta: dict[str, Any],
    writes: bool,  # noqa: FBT001 - a table
    state: tuple[int | None, str] | None,
) -> None:
    run = run_file(tmp_path / "run", kind="run", **meta)
    if writes:
        Drawn(run / "spool", **living_header()).facts(engine="e0")
    first = inventory(open_run(run)).row(0)
    assert first == (("run", "state", *state) if state else ("run", "schema_version", schema.VERSION, None))
