"""What the recordings say of keys, stores and routers, against what the client and the products counted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import polars as pl
import pytest
from kvtrace.analyses.four_events import four_events
from kvtrace.analyses.residency import residency
from kvtrace.analyses.store_lag import store_lag
from kvtrace.analyses.visibility import visibility
from tests.golden.conftest import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.run import Run

    Sample = Callable[[str], Run]


def named(run: Run, client: str) -> str:
    """The request that a client calls so."""
    (row,) = run.sql(
        "SELECT DISTINCT request_id FROM alias WHERE kind = 'client' AND alias = $name", name=client
    ).rows()
    return str(row[0])


def of(run: Run, client: str) -> list[dict[str, Any]]:
    return four_events(run).filter(request_id=named(run, client)).to_dicts()


def test_the_prompt_that_a_second_worker_computed_again_existed_where_no_router_saw(sample: Sample) -> None:
    """Usage says 0 of 541 cached; the first worker had computed all 33 whole blocks of it."""
    whole, tail = of(sample("dynamo-hosttier"), "tier-r1-p1")
    assert (whole["tokens"], whole["locality"], tail["tokens"]) == (33 * 16, "remote", 13)
    assert (whole["exists_evidence"], whole["visible_evidence"]) == ("derived", "derived")
    assert (whole["selected_evidence"], whole["loaded_evidence"]) == ("native", "native")
    assert whole["exists_ns"] is not None
    assert [whole[f"{word}_ns"] for word in ("visible", "selected", "loaded")] == [None, None, None]


def test_with_the_event_plane_all_four_are_native(sample: Sample) -> None:
    """33 blocks in the worker's own host tier; 396 forecast (three quarters), 528 reported."""
    whole, _ = of(sample("dynamo-eventplane"), "tier-r1-p0")
    assert (whole["tier"], whole["locality"], whole["tokens"]) == ("host", "local", 528)
    assert {whole[f"{word}_evidence"] for word in ("exists", "visible", "selected", "loaded")} == {"native"}
    times = [whole[f"{word}_ns"] for word in ("exists", "visible", "selected", "loaded")]
    assert times == sorted(times)
    assert (whole["predicted_tokens"], whole["reported_tokens"]) == (396, 528)


@pytest.mark.parametrize("name", ["dynamo-eventplane", "dynamo-hosttier", "dynamo-1.5.1"])
def test_the_loaded_tokens_are_those_of_the_clients_usage(sample: Sample, name: str) -> None:
    rows = four_events(sample(name))
    loaded = dict(
        rows.filter(pl.col("loaded_ns").is_not_null())
        .group_by("request_id")
        .agg(pl.col("tokens").sum())
        .rows()
    )
    told = dict(rows.select("request_id", "reported_tokens").unique().rows())
    assert sum(loaded.values()) > 0
    assert {request: loaded.get(request, 0) for request in told} == told


def test_the_router_counted_a_host_tier_only_where_its_events_reached_it(sample: Sample) -> None:
    seen = {name: visibility(sample(name)).filter(tier="host")["routes_counting"].to_list() for name in (
        "dynamo-eventplane", "dynamo-hosttier")}  # fmt: skip
    assert seen == {"dynamo-eventplane": [6], "dynamo-hosttier": [0]}


def test_the_router_applied_as_many_events_as_the_plane_carried_messages(sample: Sample) -> None:
    """Its counters: 26 stored, 22 removed; the plane's messages are numbered."""
    run = sample("dynamo-eventplane")
    ((messages,),) = run.sql(
        "SELECT count(*) FROM (SELECT DISTINCT engine, tier, event, seq, time_ns FROM block)"
    ).rows()
    assert visibility(run).filter(backend="dynamo")["applied"].to_list() == [messages]


@pytest.mark.parametrize("name", ["concurrent", "l1-reuse"])
def test_where_nothing_was_evicted_the_trace_wrote_what_the_status_page_counts(
    sample: Sample, name: str
) -> None:
    """The page is read at the end; the server's own count, from its events, is beside it."""
    run = sample(name)
    ((written,),) = run.sql("SELECT count(DISTINCT key) FROM residency WHERE component = 'lmcache.l1'").rows()
    page = json.loads((SAMPLES / name / "raw" / "lmcache-status.json").read_text())
    objects = page["storage_manager"]["l1_manager"]["total_object_count"]
    assert residency(run).filter(component="lmcache.l1")["keys"].to_list() == [objects] * 2
    assert written == objects


def test_the_gpu_never_holds_more_keys_than_its_pool_has_blocks(sample: Sample) -> None:
    for name in ("concurrent", "l1-reuse", "l2-loads", "server-killed", "stores-dropped"):
        keys = residency(sample(name)).filter(tier="gpu")["keys"].to_list()
        assert 0 < max(keys) <= 40


def test_every_dropped_store_is_never_stored(sample: Sample) -> None:
    run = sample("stores-dropped")
    dropped = {name for (name,) in run.sql("SELECT request_id FROM store WHERE op = 'drop'").rows()}
    rows = store_lag(run).filter(pl.col("never_stored"))
    assert len(dropped) >= 3
    assert set(rows["request_id"]) == dropped
    assert rows["skipped_tokens"].to_list() == [1280] * len(dropped)


def test_after_the_kill_nothing_is_stored_because_the_cache_is_down(sample: Sample) -> None:
    run = sample("server-killed")
    killed = json.loads((SAMPLES / "server-killed" / "raw" / "recording.json").read_text())
    at = killed["marks_ns"]["cache_server_killed"]
    after = set(
        run.connection().sql(f"SELECT request_id FROM request WHERE start_ns > {at}").pl()["request_id"]
    )
    rows = store_lag(run).filter(pl.col("never_stored"))
    assert len(after) == 6
    assert set(rows["request_id"]) == after
    assert set(rows["skip_reason"]) == {"unhealthy"}
