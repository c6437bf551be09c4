"""Exists, visible, selected, loaded: four events of each part of a prompt, from literal rows.

worker w1 |host: a b|          router |--| r1 goes to w0          w0 computes a b again
          |gpu : a b|--removed        |counts nothing
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.four_events import COLUMNS, four_events
from kvtrace.analyses.visibility import COLUMNS as VISIBILITY
from kvtrace.analyses.visibility import visibility
from tests.rows import write_run
from tests.unit.analyses.exposure.drawing import load, request, scheduler, step

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
SPACE = "dynamo:engine:unknown"


def keys(*words: str, name: str = "r0", tokens: int | None = 16, space: str = SPACE) -> list[Row]:
    return [
        {"request_id": name, "position": n, "key": word, "key_space": space, "tokens": tokens}
        for n, word in enumerate(words)
    ]


def block(
    time_ns: int, key: str, word: str = "stored", tier: str = "host", engine: str | None = "w0", **more: Any
) -> Row:
    row = {"time_ns": time_ns, "event": word, "key": key, "key_space": SPACE, "tier": tier, "engine": engine}
    return row | {"component": f"engine.{tier}", "evidence": "native"} | more


def asked(reported: int | None = None, predicted: int | None = None, **more: Any) -> Row:
    """r0 arrives at 100 and is answered at 150 by w0."""
    row = request(100, 200, 150, engine="w0", prompt_tokens=32, evidence="native")
    return row | {"reported_cached_tokens": reported, "predicted_tokens": predicted} | more


def route(gpu: int | None = 0, host: int = 0, disk: int = 0, worker: str = "w0", **more: Any) -> Row:
    """The router's choice at [110, 112), and how many blocks it counted there."""
    said = {"worker_id": worker, "device_blocks": gpu, "host_pinned_blocks": host, "disk_blocks": disk}
    said |= more.pop("said", {})
    row = {"op": "route", "request_id": "r0", "start_ns": 110, "end_ns": 112, "observer": "router"}
    row |= {"evidence": "native", "engine": worker, "attempt": 1}
    return (
        row | {"attributes": {name: str(value) for name, value in said.items() if value is not None}} | more
    )


def drawn(tmp_path: Path, *spans: Row, **tables: list[Row]) -> Run:
    rows = [{"span_id": number, **row} for number, row in enumerate(spans, 1)]
    return write_run(tmp_path / "run", None, span=rows, **tables)


def told(run: Run, name: str = "r0") -> list[tuple[Any, ...]]:
    """(position, tokens, tier, locality, then the four as "time by" or "- by" or "?")."""
    rows = []
    for row in four_events(run).filter(request_id=name).to_dicts():
        four = []
        for word in ("exists", "visible", "selected", "loaded"):
            time_ns, who = row[f"{word}_ns"], row[f"{word}_evidence"]
            four.append("?" if who is None else f"{'-' if time_ns is None else time_ns} {who}")
            assert who or time_ns is None
        rows.append((row["first_position"], row["tokens"], row["tier"], row["locality"], *four))
    return rows


def test_a_copy_that_the_router_counts_and_the_worker_reports_has_all_four(tmp_path: Path) -> None:
    """Keys a and b lie in w0's host tier; the router counts two host blocks there; 32 tokens reported."""
    run = drawn(
        tmp_path, asked(32), route(host=2), block=[block(40, "a"), block(50, "b")], request_key=keys("a", "b")
    )
    assert told(run) == [(0, 32, "host", "local", "50 native", "110 native", "112 native", "150 native")]


def test_a_copy_elsewhere_that_no_router_sees_is_computed_again(tmp_path: Path) -> None:
    """The copy lies in w1's host tier; the router counts nothing on any worker and sends r0 to w0."""
    run = drawn(
        tmp_path, asked(0, 0), route(said={"best_available_blocks": "0"}),
        block=[*(block(40, key, engine="w1") for key in "ab"), block(1, "z", tier="gpu", engine="w1")],
        request_key=keys("a", "b"),
    )  # fmt: skip
    assert told(run) == [(0, 32, "host", "remote", "40 native", "- native", "- native", "- native")]


@pytest.mark.parametrize(
    ("said", "visible"),
    [({}, "?"), ({"lower_tier.HostPinned.matched_workers": "0"}, "- native"),
     ({"lower_tier.HostPinned.matched_workers": "1"}, "?"), ({"router_mode": "kv"}, "- derived")],
)  # fmt: skip
def test_what_a_router_saw_elsewhere_is_known_only_where_it_says_so(
    tmp_path: Path, said: Row, visible: str
) -> None:
    blocks = [block(40, "a", engine="w1"), block(1, "z", tier="gpu", engine="w1")]
    run = drawn(tmp_path, asked(0), route(said=said), block=blocks, request_key=keys("a"))
    assert told(run)[0][4:6] == ("40 native", visible)


def test_a_router_that_counted_something_here_may_have_seen_the_copy_there(tmp_path: Path) -> None:
    blocks = [block(40, "b", engine="w1"), block(1, "z", tier="gpu", engine="w1")]
    route_row = route(gpu=1, said={"router_mode": "kv"})
    run = drawn(tmp_path, asked(16), route_row, block=blocks, request_key=keys("a", "b"))
    assert [row[2:6] for row in told(run)] == [
        ("gpu", "local", "150 derived", "110 native"),
        ("host", "remote", "40 native", "?"),
    ]


def test_published_is_seen_and_a_plane_without_the_key_is_not(tmp_path: Path) -> None:
    """w1's copy of a is published at 60; that of b only its own stream knows."""
    blocks = [
        block(40, "a", engine="w1"),
        block(60, "a", "published", engine="w1"),
        block(40, "b", engine="w1"),
    ]
    blocks.append(block(1, "z", tier="gpu", engine="w1"))
    run = drawn(tmp_path, asked(0), route(), block=blocks, request_key=keys("a", "b"))
    assert [row[5] for row in told(run)] == ["60 native", "- derived"]


def test_what_is_published_after_the_choice_was_not_seen(tmp_path: Path) -> None:
    blocks = [block(40, "a", engine="w1"), block(111, "a", "published", engine="w1")]
    blocks.append(block(1, "z", tier="gpu", engine="w1"))
    run = drawn(tmp_path, asked(0), route(), block=blocks, request_key=keys("a"))
    assert told(run)[0][4:6] == ("40 native", "- derived")


def test_the_event_plane_is_what_routers_read(tmp_path: Path) -> None:
    row = block(40, "a", engine="w1", component="dynamo.host_pinned")
    other = block(1, "z", tier="gpu", engine="w1")
    run = drawn(tmp_path, asked(0), route(), block=[row, other], request_key=keys("a"))
    assert told(run)[0][4:6] == ("40 native", "40 derived")


def test_a_copy_that_has_gone_before_the_choice_does_not_exist(tmp_path: Path) -> None:
    """Key a is removed at 100, b at 111: the choice is at 110."""
    blocks = [block(40, "a"), block(40, "b"), block(100, "a", "removed"), block(111, "b", "removed")]
    run = drawn(tmp_path, asked(0), route(), block=blocks, request_key=keys("a", "b", "c"))
    assert [row[0:5] for row in told(run)] == [
        (0, 16, None, None, "- native"),
        (1, 16, "host", "local", "40 native"),
        (2, 16, None, None, "?"),
    ]


def test_a_copy_that_came_went_and_came_in_one_instant_is_there(tmp_path: Path) -> None:
    words = ("stored", "removed", "stored")
    blocks = [block(40, "a", word, seq=number) for number, word in enumerate(words)]
    run = drawn(tmp_path, asked(0), route(), block=blocks, request_key=keys("a"))
    assert told(run)[0][2:5] == ("host", "local", "40 native")


def test_what_its_own_engine_computed_earlier_is_no_copy_elsewhere(tmp_path: Path) -> None:
    earlier = request(10, 90, 50, request_id="r1", engine="w0", status="ok")
    asked_keys = [*keys("a"), *keys("a", name="r1")]
    run = drawn(tmp_path, earlier, asked(0), route(), request_key=asked_keys)
    assert told(run)[0][2:5] == (None, None, "?")


def test_where_only_the_gpu_has_events_a_copy_that_left_it_may_be_elsewhere(tmp_path: Path) -> None:
    """As recorded of tier-r1-p1: w1's GPU drops the key, w1's host tier keeps it and no event says so."""
    blocks = [block(40, "a", tier="gpu", engine=None), block(60, "a", "removed", tier="gpu", engine=None)]
    earlier = request(10, 90, 50, request_id="r1", engine="w1", status="ok")
    asked_keys = [*keys("a"), *keys("a", name="r1")]
    seen_none = route(said={"router_mode": "kv"})
    run = drawn(tmp_path, earlier, asked(0), seen_none, block=blocks, request_key=asked_keys)
    assert told(run) == [(0, 16, "unknown", "remote", "90 derived", "- derived", "- native", "- native")]
    run = drawn(tmp_path / "alone", asked(0), seen_none, block=blocks, request_key=keys("a"))
    assert told(run)[0][2:5] == (None, None, "?")


def test_a_request_does_not_find_what_it_stored_itself(tmp_path: Path) -> None:
    run = drawn(tmp_path, asked(0), route(), block=[block(130, "a")], request_key=keys("a"))
    assert told(run)[0][2:5] == (None, None, "?")


def test_reported_beyond_what_the_router_counted_lay_in_a_tier_it_does_not_see(tmp_path: Path) -> None:
    """As recorded of Dynamo 1.6.1 without its event plane: 31 blocks counted, 35 reported; here 1 and 2."""
    run = drawn(tmp_path, asked(32, 16), route(gpu=1), request_key=keys("a", "b", "c"))
    assert told(run) == [
        (0, 16, "gpu", "local", "150 derived", "110 native", "112 native", "150 native"),
        (1, 16, "unknown", "local", "150 derived", "- native", "112 native", "150 native"),
        (2, 16, None, None, "?", "- native", "?", "- native"),
    ]


def test_what_an_earlier_request_computed_on_another_engine_may_still_be_there(tmp_path: Path) -> None:
    """As recorded of tier-r1-p1: r1 ended on w1 at 90, r0 is computed again on w0."""
    earlier = request(10, 90, 50, request_id="r1", engine="w1", status="ok")
    asked_keys = [*keys("a"), *keys("a", name="r1")]
    run = drawn(tmp_path, earlier, asked(0), route(said={"router_mode": "kv"}), request_key=asked_keys)
    assert told(run) == [(0, 16, "unknown", "remote", "90 derived", "- derived", "- native", "- native")]
    tail = [*keys("a", "b"), *keys("a", "b", name="r1")]
    tail = [row | {"tokens": 5 if row["position"] == 1 else 16} for row in tail]
    run = drawn(tmp_path / "tail", earlier, asked(0), route(), request_key=tail)
    assert [row[1:3] for row in told(run)] == [(16, "unknown"), (5, None)]
    watched = [block(60, "y", engine="w1"), block(1, "x", tier="gpu", engine="w1")]
    run = drawn(tmp_path / "w", earlier, asked(0), route(), request_key=asked_keys, block=watched)
    assert told(run)[0][2:5] == (None, None, "?")


def test_a_prediction_is_never_a_result(tmp_path: Path) -> None:
    """The router forecasts 32 tokens and nobody reports: nothing was loaded, nor seen not to be."""
    forecast = block(40, "a", evidence="predicted")
    run = drawn(
        tmp_path,
        asked(None, 32),
        route(gpu=1, evidence="predicted"),
        block=[forecast],
        request_key=keys("a"),
    )
    (row,) = four_events(run).to_dicts()
    assert (row["predicted_tokens"], row["reported_tokens"]) == (32, None)
    assert told(run) == [(0, 16, None, None, "?", "?", "?", "?")]


def test_local_goes_before_remote_and_what_was_counted_before_what_was_not(tmp_path: Path) -> None:
    """Key a lies everywhere; the router counts w0's host tier, not its GPU."""
    places = (("gpu", "w1"), ("host", "w0"), ("gpu", "w0"), ("host", "w1"))
    blocks = [block(n, "a", tier=tier, engine=engine) for n, (tier, engine) in enumerate(places)]
    run = drawn(tmp_path, asked(16), route(host=1), block=blocks, request_key=keys("a"))
    assert told(run)[0][2:5] == ("host", "local", "1 native")
    run = drawn(tmp_path / "none", asked(16), route(), block=blocks, request_key=keys("a"))
    assert told(run)[0][2:5] == ("gpu", "local", "2 native")


def test_a_data_parallel_rank_is_an_engine_of_its_own(tmp_path: Path) -> None:
    blocks = [block(40, "a", engine="w0/1"), block(1, "z", tier="gpu", engine="w0/1")]
    here = route(said={"dp_rank": "1"})
    run = drawn(tmp_path, asked(0), here, block=blocks, request_key=keys("a"))
    assert told(run)[0][3] == "local"
    run = drawn(tmp_path / "0", asked(0), route(said={"dp_rank": "0"}), block=blocks, request_key=keys("a"))
    assert told(run)[0][3] == "remote"


def test_a_cache_server_is_near_to_every_engine(tmp_path: Path) -> None:
    run = drawn(tmp_path, asked(0), route(), block=[block(40, "a", engine="cache")], request_key=keys("a"))
    assert told(run)[0][2:4] == ("host", "local")


def test_the_first_choice_is_told_by_the_observer_that_counted(tmp_path: Path) -> None:
    """A span without counts, the log's line, and a second attempt at another worker."""
    silent = route(gpu=None, start_ns=105, end_ns=106)
    again = route(host=2, worker="w1", attempt=2, start_ns=170, end_ns=171)
    blocks = [block(40, "a")]
    run = drawn(tmp_path, asked(16), silent, route(host=1), again, block=blocks, request_key=keys("a"))
    assert told(run) == [(0, 16, "host", "local", "40 native", "110 native", "112 native", "150 native")]


def test_tokens_by_tier_count_as_blocks_do(tmp_path: Path) -> None:
    tiers = {"gpu": 16, "host": 32, "disk": 0}
    seen = route(gpu=None, found_by_tier=tiers, found_tokens=48)
    run = drawn(tmp_path, asked(0), seen, request_key=keys("a", "b", "c", "d"))
    assert [(row[0], row[1], row[2], row[5]) for row in told(run)] == [
        (0, 16, "gpu", "110 native"),
        (1, 32, "host", "110 native"),
        (3, 16, None, "- native"),
    ]


def test_where_the_gpus_count_is_unknown_nobody_knows_where_the_hosts_begin(tmp_path: Path) -> None:
    """One host block was counted behind some of the GPU: it is b's or a's, and neither is said to be seen."""
    seen = route(gpu=None, host=1, found_by_tier={"host": 16, "disk": 0})
    run = drawn(
        tmp_path,
        asked(32),
        seen,
        block=[block(40, "a", tier="gpu"), block(50, "b")],
        request_key=keys("a", "b"),
    )
    assert [row[5] for row in told(run)] == ["?", "?"]
    assert [row[2] for row in told(run)] == ["gpu", "host"]


def test_counts_that_default_weights_gave_are_derived(tmp_path: Path) -> None:
    counted = route(gpu=1, host=1, said={"device_blocks_basis": "default weights"})
    run = drawn(tmp_path, asked(0), counted, request_key=keys("a", "b"))
    assert [row[5] for row in told(run)] == ["110 derived", "110 native"]


def scheduled(
    tmp_path: Path, *, reported: int | None, selected: int | None = 32, found: int | None = 64
) -> Run:
    """An engine with a cache: 32 tokens in GPU memory, 64 found of 96, loaded by 140, first step at 145."""
    row = asked(reported, gpu_hit_tokens=32, selected_tokens=selected, engine="e0", evidence="shim")
    inquiry = scheduler("lookup", 105, 108, found_tokens=found, evidence="shim")
    inquiry |= {"found_by_tier": {"host": 48, "disk": 16}} if found else {}
    moved = load(120, 138, usable_ns=140, submit_ns=115, tokens=32, outcome="ok")
    first = step(145, 150, evidence="shim")
    first["members"] = [{"request_id": "r0", "scheduled_tokens": 32, "computed_before": 64}]
    six = keys("a", "b", "c", "d", "e", "f", space="lmcache:unknown:m")
    return drawn(tmp_path, row, inquiry, moved, first, request_key=six)


def test_an_engine_that_asks_a_cache_has_the_four_from_its_own_answers(tmp_path: Path) -> None:
    assert told(scheduled(tmp_path, reported=64)) == [
        (0, 32, "gpu", "local", "105 shim", "105 shim", "105 shim", "145 shim"),
        (2, 16, "host", "local", "108 shim", "108 shim", "115 shim", "140 shim"),
        (3, 16, "disk", "local", "108 shim", "108 shim", "115 shim", "140 shim"),
        (4, 32, None, None, "?", "- shim", "- shim", "- shim"),
    ]


def test_found_and_declined_is_visible_and_neither_selected_nor_loaded(tmp_path: Path) -> None:
    rows = told(scheduled(tmp_path, reported=32, selected=0))
    assert rows[1] == (2, 16, "host", "local", "108 shim", "108 shim", "- shim", "- shim")


def test_without_a_report_the_first_step_says_what_was_there(tmp_path: Path) -> None:
    assert [row[7] for row in told(scheduled(tmp_path, reported=None))] == [
        "145 shim", "140 shim", "140 shim", "- shim",
    ]  # fmt: skip


def test_a_lookup_without_an_answer_says_nothing_of_what_is_visible(tmp_path: Path) -> None:
    rows = told(scheduled(tmp_path, reported=32, found=None))
    assert rows[1] == (2, 64, None, None, "?", "?", "- shim", "- shim")


def test_a_key_without_tokens_hides_how_far_the_counts_reach(tmp_path: Path) -> None:
    asked_keys = [*keys("a"), *(row | {"position": 1} for row in keys("b", tokens=None))]
    run = drawn(tmp_path, asked(32), route(), request_key=asked_keys)
    assert [(row[1], row[7]) for row in told(run)] == [(16, "150 native"), (None, "?")]


def test_of_several_key_spaces_the_one_of_which_events_tell_is_taken(tmp_path: Path) -> None:
    both = [*keys("a", "b", space="another:x:m"), *keys("a", "b")]
    run = drawn(tmp_path, asked(0), route(), block=[block(40, "a")], request_key=both)
    assert [row[:3] for row in told(run)] == [(0, 16, "host"), (1, 16, None)]


def test_what_was_only_written_may_be_gone(tmp_path: Path) -> None:
    run = drawn(tmp_path, asked(0), route(), block=[block(40, "a", "written")], request_key=keys("a"))
    assert told(run)[0][4] == "40 derived"


def test_requests_without_keys_have_no_rows(tmp_path: Path) -> None:
    assert four_events(drawn(tmp_path, asked(32), route(host=2))).height == 0


def test_an_empty_run_has_the_columns(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert (four_events(run).schema, visibility(run).schema) == (COLUMNS, VISIBILITY)
    assert (four_events(run).height, visibility(run).height) == (0, 0)


def seen(run: Run) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    names = ("keys", "published_keys", "applied", "routes", "routes_counting", "visible", "evidence")
    return {
        (row["backend"], row["tier"]): tuple(row[name] for name in names)
        for row in visibility(run).to_dicts()
    }


def test_a_tier_is_visible_where_a_router_counted_something_in_it(tmp_path: Path) -> None:
    blocks = [block(1, "a"), block(2, "a"), block(3, "b"), block(4, "a", tier="disk")]
    found = seen(drawn(tmp_path, asked(0), route(host=1), block=blocks))
    assert found["engine.host", "host"] == (2, 0, None, 1, 1, "yes", "native")
    assert found["engine.disk", "disk"] == (1, 0, None, 1, 0, "no", "derived")
    assert found["router", "gpu"] == (None, None, None, 1, 0, "unknown", None)


def test_without_a_router_nothing_is_visible_or_invisible(tmp_path: Path) -> None:
    found = seen(drawn(tmp_path, block=[block(1, "a")]))
    assert found == {("engine.host", "host"): (1, 0, None, 0, None, "unknown", None)}


def test_on_the_event_plane_is_not_yet_applied_and_published_is(tmp_path: Path) -> None:
    blocks = [block(1, "a", component="dynamo.host_pinned"), block(2, "b", "published", tier="disk")]
    found = seen(drawn(tmp_path, asked(0), route(), block=blocks))
    assert found["dynamo.host_pinned", "host"] == (1, 1, None, 1, 0, "unknown", None)
    assert found["engine.disk", "disk"] == (1, 1, 1, 1, 0, "yes", "native")


def metric(name: str, value: float, page: str = "0", **labels: str) -> Row:
    row = {"name": f"dynamo_component_{name}", "kind": "counter", "value": value, "process": "f"}
    return row | {"labels": labels | {"kvtrace.page": page}}


def test_a_routers_counters_are_applied_warned_and_dropped_once_over_pages(tmp_path: Path) -> None:
    applied = "kv_cache_events_applied"
    rows = [
        metric(applied, 20, event_type="stored", status="ok"),
        metric(applied, 26, "1", event_type="stored", status="ok"),
        metric(applied, 22, event_type="removed", status="ok"),
        metric(applied, 3, event_type="stored", status="parent_block_not_found"),
        metric("kv_cache_event_warnings", 2, warning_kind="duplicate_store"),
        metric("kv_publisher_engines_dropped_events_total", 5),
    ]  # fmt: skip
    (row,) = visibility(drawn(tmp_path, metric=rows)).to_dicts()
    assert (row["backend"], row["tier"], row["visible"], row["evidence"]) == ("dynamo", None, "yes", "native")
    assert (row["applied"], row["warned"], row["dropped"]) == (48, 2, 8)


def test_a_router_that_applied_none_saw_nothing(tmp_path: Path) -> None:
    rows = [metric("kv_cache_events_applied", 0, event_type="stored", status="ok")]
    (row,) = visibility(drawn(tmp_path, metric=rows)).to_dicts()
    assert (row["applied"], row["visible"], row["warned"]) == (0, "no", None)
