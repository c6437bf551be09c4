"""One request's hops: asked for, begun, ended, reported, usable; who saw which, and what nobody saw."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.errors import UsageError
from kvtrace.panels import slowest, timeline
from kvtrace.panels._hops import PHASES, hops, phases
from kvtrace.panels._lanes import lanes
from tests.rows import write_run
from tests.unit.panels.drawn import START_NS, request, span

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run
    from tests.unit.panels.drawn import Row

MS = 1_000_000
HOST = {"tier_from": "host", "tier_to": "gpu"}
NAME = "r0/load/1"


def at(ms: float) -> int:
    return START_NS + round(ms * MS)


def decided(start: float, end: float | None, usable: float | None, **more: Any) -> Row:
    """What the scheduler knows: when it asked, when it was told, when it went on."""
    times = {"submit_ns": at(start), "usable_ns": None if usable is None else at(usable)}
    return span("r0", "load", start, end, 5) | HOST | times | {"transfer_id": NAME, "outcome": "ok"} | more


def copied(submit: float, start: float, end: float | None, **more: Any) -> Row:
    """What the worker knows of its own copy."""
    own = {"observer": "worker", "process": "e0/worker", "submit_ns": at(submit), "transfer_id": NAME}
    return span("r0", "load", start, end, 6) | HOST | own | {"component": "vllm.offloading"} | more


def reported(start: float, end: float, **more: Any) -> Row:
    own = {"observer": "worker", "process": "e0/worker", "transfer_id": NAME, "name": "kv_transfer_report"}
    return span("r0", "report", start, end, 7) | own | {"op": None} | more


def served(*rows: Row, **more: Any) -> list[Row]:
    return [request("r0", 0, 60, 90, prompt_tokens=7, **more), *rows]


def drawn(tmp_path: Path, *rows: Row, **tables: Any) -> Run:
    return write_run(tmp_path / "run", span=served(*rows), **tables)


def told(run: Run) -> list[tuple[str, float, float | None]]:
    """The phases of the only hop, in ms after the arrival."""
    (hop,) = hops(run, ("r0",)).to_dicts()
    return [
        (
            each.kind,
            (each.start_ns - START_NS) / MS,
            None if each.end_ns is None else (each.end_ns - START_NS) / MS,
        )
        for each in phases(hop)
    ]


def words(run: Run) -> str:
    figure = timeline.draw(timeline.data(run))
    (said,) = [each.text for each in figure.layout.annotations if "submit" in each.text]
    return re.sub(r"  ·  ", ", ", said)


def names(run: Run) -> set[str]:
    return {trace.name for trace in timeline.draw(timeline.data(run)).data}


# scheduler  |10 ............................ 45| 50 usable
# worker        |12 handed  |20 ---- 30|
# report          |13 ....................... 42|
FOUR = (decided(10, 45, 50), copied(12, 20, 30), reported(13, 42))


def test_submit_copy_poll_and_usable_are_told_apart(tmp_path: Path) -> None:
    run = drawn(tmp_path, *FOUR)
    assert told(run) == [("submit", 10, 20), ("copy", 20, 30), ("poll", 30, 42), ("usable", 42, 50)]
    assert words(run) == "submit 10 ms, copy 10 ms, poll 12 ms, usable 8 ms"
    assert {PHASES["submit"], "load host → gpu", PHASES["poll"], PHASES["usable"]} <= names(run)


def test_phases_differ_in_how_they_are_filled(tmp_path: Path) -> None:
    figure = timeline.draw(timeline.data(drawn(tmp_path, *FOUR)))
    looks = {trace.name: (trace.marker.color, trace.marker.pattern.shape) for trace in figure.data}
    kinds = [PHASES["submit"], "load host → gpu", PHASES["poll"], PHASES["usable"]]
    assert len({looks[kind] for kind in kinds}) == 4


def test_a_pointer_shows_every_time_to_the_nanosecond(tmp_path: Path) -> None:
    row = copied(12, 20, 30) | {"start_ns": at(20) + 1}
    figure = timeline.draw(timeline.data(drawn(tmp_path, decided(10, 45, 50), row, reported(13, 42))))
    (poll,) = [trace for trace in figure.data if trace.name == PHASES["poll"]]
    ((what, when),) = poll.customdata
    assert what.startswith("load host → gpu: ended, not reported, vllm.offloading")
    assert when.split("<br>") == [
        "12 ms, from 30 ms to 42 ms",
        "asked for 10.000000 ms, handed over 12.000000 ms, began 20.000001 ms, ended 30.000000 ms",
        "reported 42.000000 ms, the scheduler knew 45.000000 ms, usable 50.000000 ms",
    ]


# scheduler  |10 ..................... 45| 50       two names for one transfer: they are tied by their times
# server          |20 ---- 30|
def test_a_servers_copy_inside_the_schedulers_load_gets_its_report(tmp_path: Path) -> None:
    server = copied(12, 20, 30, observer="server", process="lmcache/0", submit_ns=None, transfer_id="t-1")
    run = drawn(tmp_path, decided(10, 45, 50), server, reported(13, 42))
    assert told(run) == [("submit", 10, 20), ("copy", 20, 30), ("poll", 30, 42), ("usable", 42, 50)]


def test_a_client_says_when_it_asked_and_when_it_was_told(tmp_path: Path) -> None:
    server = copied(12, 20, 30, observer="server", process="lmcache/0", submit_ns=None)
    client = copied(15, 15, 38, observer="client")
    run = drawn(tmp_path, server, client)
    assert told(run) == [("submit", 15, 20), ("copy", 20, 30), ("poll", 30, 38)]
    assert words(run) == "submit 5 ms, copy 10 ms, poll 8 ms, usable not observed"


def test_a_worker_that_says_how_long_until_its_report_needs_no_row_of_it(tmp_path: Path) -> None:
    run = drawn(
        tmp_path, decided(10, 45, 50), copied(12, 20, 30, attributes=[("reported_after_ns", "2000000")])
    )
    assert told(run)[2:] == [("poll", 30, 32), ("usable", 32, 50)]


def test_without_a_report_poll_and_usable_are_one_and_no_zero(tmp_path: Path) -> None:
    run = drawn(tmp_path, decided(10, 45, 50), copied(12, 20, 30))
    assert told(run) == [("submit", 10, 20), ("copy", 20, 30), ("ended_to_usable", 30, 50)]
    assert words(run) == "submit 10 ms, copy 10 ms, poll not observed, usable 20 ms after the end"
    assert PHASES["poll"] not in names(run)


def test_what_a_copy_restored_of_a_group_of_layers_is_no_report_of_it(tmp_path: Path) -> None:
    restored = reported(20, 30, name="restored_state", attributes=[("group", "0")])
    run = drawn(tmp_path, decided(10, 45, 50), copied(12, 20, 30), restored)
    assert told(run) == [("submit", 10, 20), ("copy", 20, 30), ("ended_to_usable", 30, 50)]


def test_a_copy_that_nobody_stood_beside_is_not_drawn_as_one(tmp_path: Path) -> None:
    run = drawn(tmp_path, decided(10, 45, 50))
    assert told(run) == [("under_way", 10, 45), ("usable", 45, 50)]
    assert (
        words(run)
        == "submit not told apart, under way, copy not seen 35 ms, poll not told apart, usable 5 ms"
    )
    assert "load host → gpu" not in {
        trace.name for trace in timeline.draw(timeline.data(run)).data if max(trace.y) > 5
    }
    (note,) = timeline.notes(timeline.data(run))
    assert note.startswith("Copy not seen")


def test_a_start_that_is_only_the_handing_over_says_so(tmp_path: Path) -> None:
    own = {"observer": "server", "submit_ns": None, "name": "mp.retrieve", "transfer_id": "t-1"}
    run = drawn(tmp_path, decided(10, 45, 50), copied(12, 20, 30, **own), reported(13, 42))
    assert [kind for kind, *_ in told(run)] == ["submit", "copy_or_wait", "poll", "usable"]
    assert words(run) == "submit 10 ms, copy or waiting 10 ms, poll 12 ms, usable 8 ms"


def test_who_calls_the_asking_its_start_measured_no_submit_of_zero(tmp_path: Path) -> None:
    own = {"observer": "server", "tier_from": "disk", "tier_to": "host", "component": "lmcache.l2.fs"}
    run = drawn(tmp_path, copied(20, 20, 30, **own))
    assert told(run) == [("copy_or_wait", 20, 30)]
    assert words(run) == (
        "submit not told apart, copy or waiting 10 ms, poll not observed, usable not observed"
    )


def test_a_copy_whose_end_nobody_saw_has_no_later_phase(tmp_path: Path) -> None:
    run = drawn(tmp_path, copied(12, 20, None, outcome="open"))
    assert told(run) == [("submit", 12, 20), ("copy", 20, None)]
    assert words(run) == "submit 8 ms, copy end not observed, poll not observed, usable not observed"


def test_two_clocks_that_turn_times_round_give_no_phase(tmp_path: Path) -> None:
    run = drawn(tmp_path, decided(10, 45, 50), copied(12, 20, 30, clock="gpu"), reported(13, 29))
    assert [kind for kind, *_ in told(run)] == ["submit", "copy", "usable"]
    assert words(run) == "submit 10 ms, copy 10 ms, poll times cross, usable 21 ms"


def test_a_load_that_failed_was_never_usable(tmp_path: Path) -> None:
    run = drawn(tmp_path, decided(10, 45, None, outcome="failed"), copied(12, 20, 30), reported(13, 42))
    assert words(run) == "submit 10 ms, copy 10 ms, poll 12 ms, usable never"


def test_a_load_inside_a_step_has_nothing_to_report(tmp_path: Path) -> None:
    run = drawn(tmp_path, copied(20, 20, 30, name="load_inside_step", usable_ns=at(30)))
    assert words(run) == "submit 0 ns, copy 10 ms, poll none (inside a step), usable 0 ns after the end"


def test_ranks_are_one_hop_that_ends_with_the_last(tmp_path: Path) -> None:
    rows = [copied(12, 20, 30, rank=0), copied(13, 21, 34, rank=1) | {"span_id": 99}]
    reports = [reported(13, 36, rank=0), reported(13, 41, rank=1) | {"span_id": 98}]
    run = drawn(tmp_path, decided(10, 45, 50), *rows, *reports)
    assert told(run) == [("submit", 10, 20), ("copy", 20, 34), ("poll", 34, 41), ("usable", 41, 50)]


def test_two_attempts_are_two_hops_each_with_its_own_report(tmp_path: Path) -> None:
    again = {"transfer_id": "r0/load/2"}
    rows = (
        *FOUR,
        decided(52, 58, 59, **again) | {"span_id": 81},
        copied(53, 54, 56, **again) | {"span_id": 82},
        reported(53, 57, **again) | {"span_id": 83},
    )
    found = hops(drawn(tmp_path, *rows), ("r0",))
    seen = found.select("number", "transfer_id", "asked_ns", "reported_ns", "usable_ns").rows()
    assert seen == [(1, NAME, at(10), at(42), at(50)), (2, "r0/load/2", at(52), at(57), at(59))]


def test_a_hop_that_does_not_reach_the_gpu_has_its_own_times_alone(tmp_path: Path) -> None:
    disk = copied(11, 13, 18, tier_from="disk", tier_to="host", transfer_id="d") | {"span_id": 70}
    found = hops(drawn(tmp_path, *FOUR, disk), ("r0",)).sort("number")
    seen = found.select("tier_from", "asked_ns", "reported_ns", "known_ns", "usable_ns").rows()
    assert seen == [("host", at(10), at(42), at(45), at(50)), ("disk", at(11), None, None, None)]


def test_every_hop_has_a_lane_and_the_slowest_requests_show_the_same_phases(tmp_path: Path) -> None:
    disk = copied(11, 13, 18, tier_from="disk", tier_to="host", transfer_id="d") | {"span_id": 70}
    run = drawn(tmp_path, *FOUR, disk)
    frames = timeline.data(run)
    ((_, found),) = lanes(frames.request, (frames.path, frames.spans), apart=True)
    assert [lane for lane in found if "→" in lane] == ["1  load host → gpu", "2  load disk → host"]
    all_of_them = slowest.data(run)
    ((_, found),) = lanes(all_of_them.requests, (all_of_them.path, all_of_them.spans))
    assert [bar.kind for bar in found["load host → gpu"]] == ["submit", "load", "poll", "usable"]


def test_without_a_name_the_request_whose_loads_took_longest_is_shown(tmp_path: Path) -> None:
    short = span("r1", "load", 3, 9, 3, **HOST)
    run = drawn(tmp_path, *FOUR, request("r1", 0, 20, 30), short)
    frames = timeline.data(run)
    assert frames.request["request_id"].to_list() == ["r0"]
    assert "took longest" in timeline.table(frames).caption
    other = timeline.data(run, request="r1")
    assert other.request["request_id"].to_list() == ["r1"]
    assert "took longest" not in timeline.table(other).caption


def test_a_request_is_found_by_its_other_names(tmp_path: Path) -> None:
    alias = [{"alias": "req-000", "kind": "client", "request_id": "r0"}]
    run = drawn(tmp_path, *FOUR, alias=alias)
    assert timeline.data(run, request="req-000").request["request_id"].to_list() == ["r0"]
    with pytest.raises(UsageError, match=r"^timeline: no request of this run has the id or alias req-001"):
        timeline.data(run, request="req-001")


def test_a_request_without_a_transfer_is_shown_and_says_so(tmp_path: Path) -> None:
    frames = timeline.data(drawn(tmp_path), request="r0")
    assert timeline.draw(frames).data
    assert timeline.notes(frames) == ("No transfer of this request was recorded.",)
    assert timeline.table(frames) is None


def test_a_load_whose_times_nobody_took_is_in_the_table_and_in_no_lane(tmp_path: Path) -> None:
    """SGLang counts the tokens of a request's loads and times none."""
    untimed = span("r0", "load", 0, None, 9, **HOST, tokens=64) | {"start_ns": None}
    run = drawn(tmp_path, untimed)
    assert hops(run, ("r0",)).height == 1
    assert told(run) == []
    frames = timeline.data(run)
    assert timeline.draw(frames).data
    assert "1 hop without times is in the table alone." in timeline.notes(frames)
    assert "64" in timeline.table(frames).rows[0]
    assert slowest.draw(slowest.data(run)).data


def test_the_slowest_are_not_those_of_a_trace_that_counts_from_1970(tmp_path: Path) -> None:
    forecast = request("trace:1", 0, None, None) | {"start_ns": 1_000_000_000, "evidence": "predicted"}
    both = slowest.data(drawn(tmp_path / "both", forecast)).requests
    assert both["request_id"].to_list() == ["r0"]
    waiting = request("old", 0, None, None) | {"start_ns": 1_000_000_000}
    clocks = slowest.data(drawn(tmp_path / "clocks", waiting)).requests
    assert clocks.select("request_id", "shown_ns").rows() == [("r0", 90 * MS), ("old", 0)]


def test_of_many_hops_the_longest_are_drawn_and_the_table_has_all(tmp_path: Path) -> None:
    rows = [
        copied(1 + number, 2 + number, 3 + 2 * number, transfer_id=f"t{number}") | {"span_id": 200 + number}
        for number in range(5)
    ]
    frames = timeline.data(drawn(tmp_path, *rows), top=2)
    assert sorted(frames.spans["number"].drop_nulls()) == [4, 5]
    assert len(timeline.table(frames).rows) == 5
    assert "The 2 longest of 5 hops are drawn" in timeline.notes(frames)[0]
    with pytest.raises(UsageError, match="top must be between 1 and 200, not 0"):
        timeline.data(drawn(tmp_path / "other"), top=0)


def test_the_axis_ends_with_the_first_token_or_the_last_of_a_hop(tmp_path: Path) -> None:
    store = span(
        "r0", "store", 70, 130, 3, tier_from="gpu", tier_to="host", observer="worker", submit_ns=at(65)
    )
    short = timeline.draw(timeline.data(drawn(tmp_path, *FOUR)))
    assert short.layout.xaxis.range[1] == pytest.approx(1.04 * 60)
    long = timeline.draw(timeline.data(drawn(tmp_path / "other", *FOUR, store)))
    assert long.layout.xaxis.range[1] == pytest.approx(1.04 * 130)


def test_client_and_server_that_name_a_load_apart_are_one_hop_with_all_its_times(tmp_path: Path) -> None:
    """A run that was recorded and never imported: only the noun tie knows that it is one load.

    scheduler   10 asked ────────────────────────────────── 45 told, 50 usable      r0/load/1
    client           13 asked ───────────────────────── 42 told                     r0/load/1
    server                    20 copy ──────── 38                                   r0#17
    """
    worker = {"attributes": {"engine_id": "7"}, "component": "lmcache.l1"}
    client = copied(13, 13, 42, observer="client", process="e0/client", **worker) | {"span_id": 70}
    server = copied(20, 20, 38, observer="server", process="cache", transfer_id="r0#17", **worker)
    run = drawn(tmp_path, decided(10, 45, 50), client, server | {"submit_ns": None, "span_id": 71})
    assert told(run) == [("submit", 10, 20), ("copy", 20, 38), ("poll", 38, 42), ("usable", 42, 50)]
    (hop,) = hops(run, ("r0",)).to_dicts()
    assert (hop["transfer_id"], hop["observer"], hop["handed_ns"]) == ("r0#17", "server", at(13))


def test_a_report_of_a_load_that_the_server_names_otherwise_is_its_report(tmp_path: Path) -> None:
    worker = {"attributes": {"engine_id": "7"}, "component": "lmcache.l1"}
    client = copied(13, 13, 42, observer="client", process="e0/client", **worker) | {"span_id": 70}
    server = copied(20, 20, 38, observer="server", process="cache", transfer_id="r0#17", **worker)
    run = drawn(
        tmp_path, decided(10, 45, 50), client, server | {"submit_ns": None, "span_id": 71}, reported(13, 40)
    )
    assert told(run) == [("submit", 10, 20), ("copy", 20, 38), ("poll", 38, 40), ("usable", 40, 50)]
