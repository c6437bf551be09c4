"""One thing that several observers saw is one row of its noun: the nearest tells it, the others add."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

WHOLE = {
    "op": "load",
    "request_id": "a",
    "observer": "scheduler",
    "process": "core",
    "span_id": 1,
    "submit_ns": 10,
    "start_ns": 10,
    "end_ns": 60,
    "usable_ns": 70,
    "tier_to": "gpu",
}
COPY = {
    "op": "load",
    "request_id": "a",
    "observer": "server",
    "process": "cache",
    "span_id": 2,
    "transfer_id": "t",
    "start_ns": 20,
    "end_ns": 50,
    "tier_from": "host",
    "tier_to": "gpu",
    "bytes": 100,
}


def _transfers(path: Path, *rows: dict[str, Any]) -> list[tuple[Any, ...]]:
    run = write_run(path, span=rows)
    query = "SELECT observer, submit_ns, start_ns, end_ns, usable_ns, bytes FROM transfer ORDER BY start_ns"
    return run.connection().sql(query).fetchall()


def test_a_copy_gets_the_times_of_the_schedulers_whole_around_it(tmp_path: Path) -> None:
    """Scheduler 10 |-----------------------| 60, usable 70;  server 20 |--------| 50."""
    assert _transfers(tmp_path / "run", WHOLE, COPY) == [("server", 10, 20, 50, 70, 100)]


def test_the_schedulers_whole_stands_where_nobody_saw_a_copy(tmp_path: Path) -> None:
    assert _transfers(tmp_path / "run", WHOLE) == [("scheduler", 10, 10, 60, 70, None)]


def test_a_copy_before_the_schedulers_decision_is_another_transfer(tmp_path: Path) -> None:
    """A prefetch from disk to host ends before the scheduler asks for the load."""
    early = COPY | {"start_ns": 0, "end_ns": 5, "tier_from": "disk", "tier_to": "host"}
    assert _transfers(tmp_path / "run", WHOLE, early) == [
        ("server", None, 0, 5, None, 100),
        ("scheduler", 10, 10, 60, 70, None),
    ]


def test_a_copy_after_the_schedulers_whole_is_another_transfer(tmp_path: Path) -> None:
    """Scheduler 10 |-------| 60, usable 70;  server 80 |---| 90."""
    late = COPY | {"start_ns": 80, "end_ns": 90}
    assert _transfers(tmp_path / "run", WHOLE, late) == [
        ("scheduler", 10, 10, 60, 70, None),
        ("server", None, 80, 90, None, 100),
    ]


def test_an_open_whole_reaches_to_every_later_copy_and_makes_none_usable(tmp_path: Path) -> None:
    still = WHOLE | {"end_ns": None, "usable_ns": None}
    assert _transfers(tmp_path / "run", still, COPY) == [("server", 10, 20, 50, None, 100)]


def test_a_store_of_the_same_request_is_not_part_of_a_load(tmp_path: Path) -> None:
    store = COPY | {"op": "store", "tier_from": "gpu", "tier_to": "host"}
    assert len(_transfers(tmp_path / "run", WHOLE, store)) == 2


def test_the_own_times_of_a_copy_stay_where_they_reach_further(tmp_path: Path) -> None:
    further = COPY | {"submit_ns": 5, "usable_ns": 90}
    assert _transfers(tmp_path / "run", WHOLE, further) == [("server", 5, 20, 50, 90, 100)]


def test_an_inquiry_is_one_row_and_the_caches_answer_adds_the_tiers(tmp_path: Path) -> None:
    """Scheduler 0 |----------| 40;  server 10 |---| 30."""
    asked = {
        "op": "lookup", "request_id": "a", "observer": "scheduler", "process": "core", "span_id": 1,
        "start_ns": 0, "end_ns": 40, "found_tokens": 512, "outcome": "ok", "requested_tokens": 600,
    }  # fmt: skip
    answered = {
        "op": "lookup", "request_id": "a", "observer": "server", "process": "cache", "span_id": 1,
        "start_ns": 10, "end_ns": 30, "found_tokens": 512, "found_by_tier": [("host", 512)], "outcome": "ok",
    }  # fmt: skip
    run = write_run(tmp_path / "run", span=[asked, answered])
    query = "SELECT observer, start_ns, end_ns, requested_tokens, found_by_tier['host'] FROM lookup"
    assert run.connection().sql(query).fetchall() == [("scheduler", 0, 40, 600, 512)]


def test_a_cache_that_nobody_watched_asking_keeps_its_own_inquiries(tmp_path: Path) -> None:
    answered = {"op": "lookup", "request_id": "a", "observer": "server", "start_ns": 10, "end_ns": 30}
    run = write_run(tmp_path / "run", span=[answered | {"span_id": 1}, answered | {"span_id": 2}])
    assert run.connection().sql("SELECT count(*) FROM lookup").fetchall() == [(2,)]


def test_a_derived_queue_time_stands_only_where_nobody_watched_the_queue(tmp_path: Path) -> None:
    derived = {"op": "queue", "evidence": "derived", "reason": "unknown", "start_ns": 0, "end_ns": 9}
    watched = {"op": "queue", "evidence": "shim", "reason": "capacity", "start_ns": 1, "end_ns": 8}
    run = write_run(
        tmp_path / "run",
        span=[derived | {"request_id": "a"}, watched | {"request_id": "a"}, derived | {"request_id": "b"}],
    )
    rows = run.connection().sql("SELECT request_id, reason FROM queue ORDER BY request_id").fetchall()
    assert rows == [("a", "capacity"), ("b", "unknown")]


def test_our_eyes_in_the_api_process_win_over_the_engines_own_span(tmp_path: Path) -> None:
    own = {"op": "request", "request_id": "a", "observer": "api", "evidence": "native", "start_ns": 1}
    shim = {"op": "request", "request_id": "a", "observer": "api", "evidence": "shim", "start_ns": 3}
    core = {"op": "request", "request_id": "a", "observer": "scheduler", "evidence": "shim", "start_ns": 2}
    rows = [
        own | {"end_ns": 10, "engine": "otlp", "output_tokens": 7},
        core | {"end_ns": 11, "engine": "core", "gpu_hit_tokens": 5},
        shim | {"end_ns": 12, "engine": "shim"},
    ]
    for number in (3, 2):
        run = write_run(tmp_path / f"run{number}", span=rows[:number])
        query = "SELECT engine, gpu_hit_tokens, output_tokens FROM request"
        assert run.connection().sql(query).fetchall() == [("shim" if number == 3 else "core", 5, 7)]


def test_a_routers_log_and_its_span_are_one_choice_with_what_either_knows(tmp_path: Path) -> None:
    """The log counts blocks, of the size of the keys that the request asked for; the host weighs 0.75."""
    log = {"worker_id": "7", "device_blocks": "2", "host_pinned_blocks": "4", "disk_blocks": "0"}
    rows = [
        {"op": "route", "request_id": "a", "start_ns": 12, "end_ns": 14, "span_id": 1, "engine": "7",
         "attributes": {**log, "effective_blocks": "5.0"}},
        {"op": "route", "request_id": "a", "start_ns": 10, "end_ns": 15, "span_id": 2, "engine": "7",
         "requested_tokens": 130, "predicted_tokens": 96},
        {"op": "route", "request_id": "a", "start_ns": 30, "span_id": 3, "engine": "8", "attempt": 2},
        {"op": "route", "start_ns": 40, "span_id": 4, "attributes": log},
        {"op": "route", "start_ns": 40, "span_id": 5},
    ]  # fmt: skip
    keys = [{"request_id": "a", "position": n, "tokens": 16, "key": str(n)} for n in range(8)]
    run = write_run(tmp_path / "run", span=rows, request_key=keys)
    found = run.sql(
        """
        SELECT request_id, attempt, start_ns, end_ns, engine, requested_tokens, found_tokens, found_by_tier,
            predicted_tokens, observers
        FROM route ORDER BY start_ns, span_id
        """
    ).to_dicts()
    first, second, *unknown = found
    assert first.pop("found_by_tier") == {"gpu": 32, "host": 64, "disk": 0}
    assert first == {
        "request_id": "a", "attempt": 1, "start_ns": 10, "end_ns": 15, "engine": "7", "requested_tokens": 130,
        "found_tokens": 96, "predicted_tokens": 80, "observers": 2,
    }  # fmt: skip
    assert (second["attempt"], second["found_tokens"], second["observers"]) == (2, None, 1)
    assert [(row["found_tokens"], row["observers"]) for row in unknown] == [(None, 1)] * 2


def test_blocks_of_a_router_are_of_its_own_keys_size_and_not_of_a_caches_chunks(tmp_path: Path) -> None:
    """Both name the request's keys: the router's blocks have 16 tokens, the cache's chunks 256."""
    log = {"device_blocks": "2", "host_pinned_blocks": "4", "disk_blocks": "0"}
    rows = [{"op": "route", "request_id": "a", "start_ns": 12, "span_id": 1, "attributes": log}]
    keys = [
        {"request_id": "a", "position": 0, "key": "x", "key_space": space, "tokens": tokens}
        for space, tokens in (("lmcache:unknown:m", 256), ("dynamo:engine:unknown", 16))
    ]
    for number, some in enumerate((keys, keys[::-1])):
        run = write_run(tmp_path / f"run{number}", span=rows, request_key=some)
        assert run.sql("SELECT found_tokens FROM route").rows() == [(96,)]
    run = write_run(tmp_path / "foreign", span=rows, request_key=keys[:1])
    assert run.sql("SELECT found_tokens FROM route").rows() == [(None,)]


def test_what_a_simulation_chose_says_nothing_of_a_real_choice(tmp_path: Path) -> None:
    real = {
        "op": "route",
        "request_id": "a",
        "start_ns": 12,
        "span_id": 1,
        "engine": "7",
        "evidence": "native",
    }
    simulated = {**real, "start_ns": 2, "span_id": 2, "found_tokens": 512, "evidence": "predicted"}
    run = write_run(tmp_path / "run", span=[real, simulated])
    query = "SELECT evidence, found_tokens, start_ns FROM route ORDER BY evidence"
    assert run.sql(query).rows() == [("native", None, 12), ("predicted", 512, 2)]


INSIDE = {
    "op": "load",
    "request_id": "a",
    "transfer_id": "a/load/step-3",
    "observer": "worker",
    "process": "worker",
    "span_id": 3,
    "start_ns": 20,
    "end_ns": 50,
    "tier_from": "disk",
    "tier_to": "gpu",
    "tokens": 48,
    "outcome": "unknown",
    "attributes": {"shared_by": "2"},
}
"""A load inside a step: its worker saw that some block of the step did not arrive, not whose."""


def _of_a(path: Path, *rows: dict[str, Any]) -> list[tuple[Any, ...]]:
    run = write_run(path, span=rows)
    of_it = "observer, end_ns, outcome, attributes['usable_tokens'], attributes['shared_by']"
    return run.connection().sql(f"SELECT {of_it} FROM transfer").fetchall()


def test_what_arrived_of_a_load_the_scheduler_knows_where_its_worker_does_not(tmp_path: Path) -> None:
    """Worker 20 |-------| 50, of several loads one broke; scheduler: of this one 16 tokens are usable."""
    same = {"transfer_id": INSIDE["transfer_id"], "outcome": "partial", "attributes": {"usable_tokens": "16"}}
    known = WHOLE | {"usable_ns": None} | same
    assert _of_a(tmp_path / "unknown", known, INSIDE) == [("worker", 50, "partial", "16", "2")]
    failed = INSIDE | {"outcome": "failed", "attributes": None}
    assert _of_a(tmp_path / "failed", known, failed) == [("worker", 50, "partial", "16", None)]
    assert _of_a(tmp_path / "ok", known, INSIDE | {"outcome": "ok"}) == [("worker", 50, "ok", None, "2")]


def test_of_another_load_the_scheduler_says_nothing_about_this_one(tmp_path: Path) -> None:
    other = WHOLE | {"transfer_id": "a/load/1", "outcome": "failed", "attributes": {"usable_tokens": "0"}}
    assert _of_a(tmp_path / "run", other, INSIDE) == [("worker", 50, "unknown", None, "2")]


def test_a_lookup_that_was_sent_before_the_scheduler_asked_is_the_same_inquiry(tmp_path: Path) -> None:
    """LMCache's eager prefetch: server 5 |------| 28, scheduler 10 |----| 30."""
    asked = {
        "op": "lookup", "request_id": "a", "observer": "scheduler", "process": "core", "span_id": 1,
        "start_ns": 10, "end_ns": 30,
    }  # fmt: skip
    answered = {
        "op": "lookup", "request_id": "a", "observer": "server", "process": "cache", "span_id": 1,
        "start_ns": 5, "end_ns": 28, "found_by_tier": {"host": 9},
    }  # fmt: skip
    earlier = answered | {"span_id": 2, "start_ns": 1, "end_ns": 4}
    run = write_run(tmp_path / "run", span=[asked, answered, earlier])
    query = "SELECT observer, start_ns, found_by_tier['host'] FROM lookup ORDER BY start_ns"
    assert run.connection().sql(query).fetchall() == [("server", 1, 9), ("scheduler", 10, 9)]


SPAN = {"op": "route", "name": "kv_router.route_request", "request_id": "a", "evidence": "native"}


def choices(path: Path, *rows: dict[str, Any]) -> list[tuple[Any, ...]]:
    run = write_run(path, span=[{"span_id": number, **row} for number, row in enumerate(rows, 1)])
    return run.sql("SELECT attempt, start_ns, engine, observers FROM route ORDER BY start_ns, engine").rows()


def test_choices_that_nobody_numbered_are_attempts_in_the_order_of_time(tmp_path: Path) -> None:
    """Dynamo's spans of a request that was routed again, or to two workers, may all have the same number."""
    first, second = SPAN | {"start_ns": 10, "engine": "7"}, SPAN | {"start_ns": 30, "engine": "8"}
    wanted = [(1, 10, "7", 1), (2, 30, "8", 1)]
    assert choices(tmp_path / "none", second, first) == wanted
    assert choices(tmp_path / "one", first | {"attempt": 1}, second | {"attempt": 1}) == wanted
    assert choices(tmp_path / "numbered", first | {"attempt": 1}, second | {"attempt": 2}) == wanted
    third = SPAN | {"start_ns": 50, "engine": "7", "attempt": 2}
    assert choices(tmp_path / "mixed", first, second, third) == [*wanted, (3, 50, "7", 1)]
    assert choices(tmp_path / "late", third) == [(2, 50, "7", 1)]  # the first was not recorded


def test_a_routers_log_and_its_spans_agree_on_the_number_of_a_choice_that_its_spans_do_not_number(
    tmp_path: Path,
) -> None:
    log = {"op": "route", "name": "route", "request_id": "a", "evidence": "native"}
    rows = [
        {**row, "start_ns": at, "engine": engine, **({"attempt": number} if row is log else {"attempt": 1})}
        for row in (log, SPAN)
        for number, (at, engine) in enumerate([(10, "7"), (30, "8")], 1)
    ]
    assert choices(tmp_path / "run", *rows) == [(1, 10, "7", 2), (2, 30, "8", 2)]


def test_a_request_that_is_simulated_as_well_has_its_own_attempts(tmp_path: Path) -> None:
    real, forecast = SPAN | {"start_ns": 10}, SPAN | {"start_ns": 20, "evidence": "predicted"}
    assert [row[:2] for row in choices(tmp_path / "run", real, forecast)] == [(1, 10), (1, 20)]


def test_what_ends_before_it_begins_on_two_clocks_has_no_length(tmp_path: Path) -> None:
    request = {"op": "request", "request_id": "a", "observer": "api", "process": "p", "span_id": 1}
    rows = [request | {"start_ns": 100, "first_token_ns": 60, "end_ns": 50},
            request | {"request_id": "b", "start_ns": 100, "first_token_ns": 100, "end_ns": 160}]  # fmt: skip
    run = write_run(tmp_path / "run", span=rows)
    found = run.sql("SELECT first_token_ns, end_ns, ttft_ns, duration_ns FROM request ORDER BY request_id")
    assert found.rows() == [(60, 50, None, None), (100, 160, 0, 60)]


def test_a_simulated_request_tells_nothing_but_its_forecast_where_somebody_saw_it(tmp_path: Path) -> None:
    seen = {"op": "request", "request_id": "a", "start_ns": 100, "observer": "api", "span_id": 1}
    told = {"start_ns": 90, "end_ns": 200, "first_token_ns": 150, "status": "ok", "output_tokens": 7}
    forecast = seen | told | {"predicted_tokens": 64, "evidence": "predicted", "span_id": 2}
    alone = forecast | {"request_id": "b"}
    run = write_run(tmp_path / "run", span=[forecast, seen | {"evidence": "shim"}, alone])
    query = """
        SELECT start_ns, end_ns, ttft_ns, status, output_tokens, predicted_tokens, evidence, observers
        FROM request ORDER BY request_id
    """
    assert run.sql(query).rows() == [
        (100, None, None, None, None, 64, "shim", 1),
        (90, 200, 60, "ok", 7, 64, "predicted", 1),
    ]
