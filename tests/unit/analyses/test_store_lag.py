"""When the state of a request is reusable, and what lookups missed because it was not yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses import missed_by_lag as late
from kvtrace.analyses.missed_by_lag import missed_by_lag
from kvtrace.analyses.store_lag import COLUMNS, store_lag
from tests.rows import write_run
from tests.unit.analyses.exposure.drawing import request, scheduler, store

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
LMCACHE = "lmcache:unknown:m"


def keys(name: str, *words: str, tokens: int | None = 16, **more: Any) -> list[Row]:
    """The keys that a request asked for."""
    return [
        {"request_id": name, "position": n, "key": word, "key_space": LMCACHE, "tokens": tokens} | more
        for n, word in enumerate(words)
    ]


def lookup(start: int, end: int | None, found: int | None, **more: Any) -> Row:
    return scheduler("lookup", start, end, found_tokens=found, **more)


def drawn(tmp_path: Path, *spans: Row, **tables: list[Row]) -> Run:
    rows = [{"span_id": number, **row} for number, row in enumerate(spans, 1)]
    return write_run(tmp_path / "run", None, span=rows, **tables)


def only(run: Run, name: str = "r0") -> Row:
    (row,) = store_lag(run).filter(request_id=name).to_dicts()
    return row


def test_the_lag_is_from_the_finish_to_the_end_of_the_last_store(tmp_path: Path) -> None:
    """r0 |0---------100|, stores [60, 90) and [95, 130) usable at 140: 40 after the finish."""
    run = drawn(
        tmp_path, request(),
        store(60, 90, tokens=16, queued_ns=50, submit_ns=55), store(95, 130, tokens=32, usable_ns=140),
    )  # fmt: skip
    row = only(run)
    assert [row[name] for name in ("finished_ns", "queued_ns", "submitted_ns", "completed_ns", "lag_ns")] == [
        100, 50, 55, 140, 40,
    ]  # fmt: skip
    assert (row["stored_tokens"], row["never_stored"], row["published_ns"]) == (48, False, None)


def test_what_is_reusable_before_the_finish_has_a_negative_lag(tmp_path: Path) -> None:
    assert only(drawn(tmp_path, request(), store(60, 90, tokens=16)))["lag_ns"] == -10


def test_a_store_further_down_changes_nothing(tmp_path: Path) -> None:
    """GPU to host over at 90, host to disk at 300: it was reusable at 90."""
    down = store(100, 300, tokens=16, tier_from="host", tier_to="disk")
    row = only(drawn(tmp_path, request(), store(60, 90, tokens=16), down))
    assert (row["completed_ns"], row["stored_tokens"]) == (90, 16)


def test_a_lone_store_further_down_counts(tmp_path: Path) -> None:
    down = store(100, 300, tokens=16, tier_from="host", tier_to="disk")
    assert only(drawn(tmp_path, request(), down))["completed_ns"] == 300


def test_a_batch_that_serves_several_requests_is_a_store_of_each(tmp_path: Path) -> None:
    members = [{"request_id": name, "scheduled_tokens": n} for name, n in (("r0", 16), ("r1", 48))]
    batch = store(110, 150, tokens=64, request_id=None, members=members)
    run = drawn(tmp_path, request(), request(0, 120, request_id="r1"), batch)
    assert store_lag(run).select("request_id", "stored_tokens", "lag_ns").rows() == [
        ("r0", 16, 50),
        ("r1", 48, 30),
    ]


def test_where_another_request_stores_one_that_does_not_is_never_stored(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(), request(request_id="r1"), store(60, 90, tokens=16, request_id="r1"))
    row = only(run)
    assert (row["never_stored"], row["stored_tokens"], row["lag_ns"]) == (True, 0, None)


def test_where_nobody_records_stores_nobody_knows(tmp_path: Path) -> None:
    row = only(drawn(tmp_path, request(), lookup(0, 5, 0)))
    assert (row["never_stored"], row["stored_tokens"]) == (None, None)


def test_an_engine_without_a_tier_beyond_the_gpu_has_no_row(tmp_path: Path) -> None:
    other = request(request_id="r1", engine="e1", process="e1/api")
    assert store_lag(drawn(tmp_path, other, request(), store(60, 90)))["request_id"].to_list() == ["r0"]


@pytest.mark.parametrize(
    ("reason", "never"), [("no_room", True), ("unknown", True), ("duplicate", False), (None, True)]
)
def test_a_drop_gives_its_reason_and_a_duplicate_is_there_already(
    tmp_path: Path, reason: str | None, *, never: bool
) -> None:
    drop = store(60, 61, tokens=0, op="drop", reason=reason, outcome="skipped")
    row = only(drawn(tmp_path, request(), drop, request_key=keys("r0", "a", "b")))
    assert (row["never_stored"], row["skip_reason"], row["skipped_tokens"]) == (never, reason, 32)


def test_a_drop_that_says_its_tokens_is_believed(tmp_path: Path) -> None:
    drop = store(60, 61, tokens=48, op="drop", reason="no_room")
    row = only(drawn(tmp_path, request(), store(40, 50, tokens=16), drop))
    assert (row["skipped_tokens"], row["skip_reason"], row["never_stored"]) == (48, "no_room", False)


def test_a_failed_store_stores_nothing(tmp_path: Path) -> None:
    row = only(drawn(tmp_path, request(), store(60, 90, tokens=16, outcome="failed", reason="io")))
    assert (row["never_stored"], row["stored_tokens"], row["skip_reason"]) == (True, 0, "io")


def test_what_the_lookup_found_whole_needs_no_store(tmp_path: Path) -> None:
    rows = [request(), lookup(0, 5, 32), request(request_id="r1"), store(60, 90, request_id="r1")]
    row = only(drawn(tmp_path, *rows, request_key=keys("r0", "a", "b")))
    assert (row["never_stored"], row["skip_reason"], row["skipped_tokens"]) == (False, "duplicate", 32)


def test_a_prompt_below_a_chunk_has_nothing_to_store(tmp_path: Path) -> None:
    rows = [request(), lookup(0, 5, 0, reason="below_chunk"), request(request_id="r1")]
    row = only(drawn(tmp_path, *rows, store(60, 90, request_id="r1")))
    assert (row["never_stored"], row["skip_reason"], row["skipped_tokens"]) == (False, "below_chunk", None)


@pytest.mark.parametrize(
    "open_row",
    [
        store(60, None, tokens=16),
        scheduler("hold", 100, None, reason="store", blocks=3),
        request(0, None),
    ],
    ids=["store", "hold", "request"],
)
def test_what_is_still_open_is_not_called_never_stored(tmp_path: Path, open_row: Row) -> None:
    own = [] if open_row["op"] == "request" else [request()]
    others = [request(request_id="r1"), store(60, 90, request_id="r1", tokens=16)]
    row = only(drawn(tmp_path, *own, open_row, *others))
    assert (row["never_stored"], row["lag_ns"], row["completed_ns"]) == (None, None, None)


@pytest.mark.parametrize(
    ("lost", "never"),
    [
        ({}, None),
        ({"op": "load"}, True),
        ({"to_ns": -1}, True),
        ({"cause": "duplicate"}, True),
        ({"op": "store"}, None),
    ],
)
def test_where_records_of_stores_may_be_missing_nobody_knows(
    tmp_path: Path, lost: Row, *, never: bool | None
) -> None:
    rows = [request(), request(request_id="r1"), store(60, 90, tokens=16, request_id="r1")]
    loss = [{"source": "s", "cause": "dropped", "count": 1, "from_ns": -5, "to_ns": 50} | lost]
    assert only(drawn(tmp_path, *rows, loss=loss))["never_stored"] is never


@pytest.mark.parametrize(("observer", "lost", "never"), [
    ("client", "cache", True), ("client", "e0/worker", None),
    ("client", None, None), ("server", "cache", None),
])  # fmt: skip
def test_what_a_server_lost_matters_only_where_its_client_did_not_record(
    tmp_path: Path, observer: str, lost: str | None, never: object
) -> None:
    """The client gave a store up; the killed server, or the client's own process, ends without a mark."""
    process = "cache" if observer == "server" else "e0/worker"
    given_up = store(
        60, 90, tokens=16, outcome="cancelled", reason="unhealthy", observer=observer, engine="e0",
        process=process,
    )  # fmt: skip
    seen = scheduler("lookup", 1, 2, observer="server", process="cache", engine="cache", request_id="other")
    loss = [{"process": lost, "cause": "unclean_end", "count": 1, "from_ns": 50}]
    assert only(drawn(tmp_path, request(), given_up, seen, loss=loss))["never_stored"] is never


def test_a_cache_that_is_down_at_the_finish_is_the_reason(tmp_path: Path) -> None:
    """Down in [50, 200): r0 finishes at 100."""
    down = scheduler("health", 50, 200, reason="down", request_id=None)
    rows = [request(), down, request(request_id="r1"), store(10, 20, tokens=16, request_id="r1")]
    assert only(drawn(tmp_path, *rows))["skip_reason"] == "unhealthy"


def host(time_ns: int, key: str, word: str = "stored", **more: Any) -> Row:
    row = {
        "time_ns": time_ns,
        "event": word,
        "key": key,
        "key_space": LMCACHE,
        "engine": "e0",
        "tier": "host",
    }
    return row | {"component": "dynamo.host_pinned", "evidence": "native"} | more


def test_events_of_its_keys_stand_for_a_store_that_nobody_saw(tmp_path: Path) -> None:
    """As Dynamo's host tier: r0 |0-----100|, a and b on the event plane at 130 and 180."""
    run = drawn(
        tmp_path, request(), block=[host(130, "a"), host(180, "b")], request_key=keys("r0", "a", "b", "c")
    )
    row = only(run)
    assert (row["completed_ns"], row["published_ns"], row["lag_ns"]) == (180, 180, 80)
    assert (row["stored_tokens"], row["skipped_tokens"], row["never_stored"]) == (32, 16, False)


def test_an_event_belongs_to_the_last_request_that_began_with_its_key(tmp_path: Path) -> None:
    """r0 at 0, r1 at 200, a stored at 130 and 230; r2 on another engine keeps out."""
    rows = [request(), request(200, 220, request_id="r1"), request(210, 220, request_id="r2", engine="e1")]
    asked = [*keys("r0", "a"), *keys("r1", "a"), *keys("r2", "a")]
    run = drawn(tmp_path, *rows, block=[host(130, "a"), host(230, "a")], request_key=asked)
    assert (only(run)["lag_ns"], only(run, "r1")["lag_ns"]) == (30, 10)
    assert "r2" not in store_lag(run)["request_id"]


def test_a_key_that_lay_there_at_the_finish_needs_no_store(tmp_path: Path) -> None:
    rows = [request(), request(200, 220, request_id="r1")]
    run = drawn(tmp_path, *rows, block=[host(130, "a")], request_key=[*keys("r0", "a"), *keys("r1", "a")])
    row = only(run, "r1")
    assert (row["never_stored"], row["skip_reason"], row["lag_ns"]) == (False, "duplicate", None)


def test_a_published_event_ends_the_lag_of_a_recorded_store(tmp_path: Path) -> None:
    event = host(170, "a", "published", component="lmcache.l1")
    run = drawn(tmp_path, request(), store(60, 90, tokens=16), block=[event], request_key=keys("r0", "a"))
    row = only(run)
    assert (row["completed_ns"], row["published_ns"], row["lag_ns"]) == (90, 170, 70)


def test_the_gpus_own_events_are_no_store(tmp_path: Path) -> None:
    run = drawn(
        tmp_path, request(), lookup(0, 5, 0), block=[host(130, "a", tier="gpu")], request_key=keys("r0", "a")
    )
    assert only(run)["completed_ns"] is None


def test_an_empty_run_has_the_columns(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    assert (store_lag(run).schema, missed_by_lag(run).schema) == (COLUMNS, late.COLUMNS)


def two(
    tmp_path: Path, *stores: Row, at: int = 100, found: int | None = 0, **more: Any
) -> list[tuple[Any, ...]]:
    """r0 asks a b c and stores; r1 asks the same and looks up at 100."""
    rows = [request(0, 90), lookup(0, 5, 0), request(at, 300, request_id="r1")]
    rows.append(lookup(at, at + 5, found, request_id="r1"))
    asked = more.pop("request_key", [*keys("r0", "a", "b", "c"), *keys("r1", "a", "b", "c")])
    return missed_by_lag(drawn(tmp_path, *rows, *stores, request_key=asked, **more)).rows()


def test_a_lookup_misses_what_is_being_stored(tmp_path: Path) -> None:
    """Store of r0 |80--------140|, lookup of r1 at 100: 40 late."""
    assert two(tmp_path, store(80, 140, tokens=48)) == [("r1", "r0", 48, 40)]


def test_queued_is_decided(tmp_path: Path) -> None:
    """Queued at 80, begun at 120."""
    assert two(tmp_path, store(120, 140, tokens=48, queued_ns=80)) == [("r1", "r0", 48, 40)]


def test_a_store_that_is_decided_later_or_over_before_is_no_lag(tmp_path: Path) -> None:
    assert two(tmp_path, store(101, 140, tokens=48)) == []
    assert two(tmp_path / "over", store(80, 100, tokens=48)) == []


def test_usable_is_over(tmp_path: Path) -> None:
    assert two(tmp_path, store(80, 90, tokens=48, usable_ns=130)) == [("r1", "r0", 48, 30)]


def test_a_store_whose_end_was_not_seen_is_late_by_nobody_knows(tmp_path: Path) -> None:
    assert two(tmp_path, store(80, None, tokens=48)) == [("r1", "r0", 48, None)]


@pytest.mark.parametrize("outcome", ["failed", "timeout", "cancelled"])
def test_a_store_that_fails_is_no_lag(tmp_path: Path, outcome: str) -> None:
    assert two(tmp_path, store(80, 140, tokens=48, outcome=outcome)) == []


def test_stores_cover_the_prompt_in_their_order(tmp_path: Path) -> None:
    """Key a is stored by 90, b pending until 140, c by 160: the lookup found a."""
    stores = [store(70, 90, tokens=16), store(80, 140, tokens=16), store(95, 160, tokens=16)]
    assert two(tmp_path, *stores, found=16) == [("r1", "r0", 32, 60)]


def test_the_missed_prefix_ends_at_the_first_key_that_nobody_stores(tmp_path: Path) -> None:
    """Of a b c only a is stored: r1 misses one key for it."""
    assert two(tmp_path, store(80, 140, tokens=16)) == [("r1", "r0", 16, 40)]


def test_a_first_key_that_was_not_being_stored_explains_the_miss(tmp_path: Path) -> None:
    """Key a was stored and is gone; b and c are being stored."""
    stores = [store(70, 90, tokens=16), store(80, 140, tokens=32)]
    assert two(tmp_path, *stores, found=0) == []


def test_a_lookup_without_an_answer_says_nothing(tmp_path: Path) -> None:
    assert two(tmp_path, store(80, 140, tokens=48), found=None) == []


def test_keys_of_another_space_do_not_compare(tmp_path: Path) -> None:
    asked = [*keys("r0", "a"), *keys("r1", "a", key_space="vllm:sha256:m")]
    assert two(tmp_path, store(80, 140, tokens=16), request_key=asked) == []


def test_without_keys_nothing_is_said(tmp_path: Path) -> None:
    assert two(tmp_path, store(80, 140, tokens=48), request_key=[]) == []
    hole = [*keys("r0", "a"), *(key | {"position": 1} for key in keys("r1", "a"))]
    assert two(tmp_path / "hole", store(80, 140, tokens=16), request_key=hole) == []


def queued(start: int, end: int | None, begin: int, stop: int, **more: Any) -> Row:
    """A part that waits in LMCache's lazy queue; without an end it never left it."""
    row = scheduler(None, start, end, name="lmcache_lazy_queue", tokens=stop - begin)
    return row | {"attributes": [("range", f"{begin}-{stop}")]} | more


#  request |0 ---------- 100|
#  queue         |50 --------------- never left
def test_the_tail_that_is_never_drained_is_never_stored(tmp_path: Path) -> None:
    run = drawn(tmp_path, request(), queued(50, None, 0, 32))
    row = only(run)
    assert (row["never_stored"], row["skip_reason"], row["skipped_tokens"]) == (True, "never_drained", 32)
    assert (row["queued_ns"], row["submitted_ns"], row["completed_ns"], row["lag_ns"]) == (
        50,
        None,
        None,
        None,
    )
    lossy = write_run(
        tmp_path / "lossy", None, span=[request(), queued(50, None, 0, 32)],
        loss=[{"cause": "dropped", "count": 1}],
    )  # fmt: skip
    assert only(lossy)["never_stored"] is None


#  queue |50 -------- 120| store |130 ---- 150|       and a second part that never left: stored in part
def test_a_part_that_was_drained_and_stored_leaves_the_rest_skipped(tmp_path: Path) -> None:
    parts = [queued(50, 120, 0, 16), queued(60, None, 16, 48)]
    row = only(drawn(tmp_path, request(), *parts, store(130, 150, tokens=16, submit_ns=121)))
    assert (row["never_stored"], row["stored_tokens"], row["skipped_tokens"]) == (False, 16, 32)
    assert (row["queued_ns"], row["submitted_ns"], row["completed_ns"], row["lag_ns"]) == (50, 121, 150, 50)


def test_a_stale_skip_gives_its_reason(tmp_path: Path) -> None:
    stale = store(121, 121, tokens=16, op="drop", reason="stale", outcome="skipped", queued_ns=50)
    row = only(drawn(tmp_path, request(), queued(50, 121, 0, 16), stale))
    assert (row["never_stored"], row["skip_reason"], row["skipped_tokens"]) == (True, "stale", 16)


#  a queued 50, never drained      b asks 200: misses what waits there
def test_a_lookup_that_misses_what_waits_in_the_queue_is_missed_by_lag(tmp_path: Path) -> None:
    again = request(200, 300, request_id="b")
    run = drawn(
        tmp_path, request(request_id="a"), again, queued(50, None, 0, 32, request_id="a"),
        lookup(200, 210, 0, request_id="b"),
        request_key=[*keys("a", "k0", "k1"), *keys("b", "k0", "k1")],
    )  # fmt: skip
    assert missed_by_lag(run).rows() == [("b", "a", 32, None)]


def server(word: str, at: int, key: str, **more: Any) -> Row:
    """A word of LMCache's server about a key in its first level."""
    row = {"event": word, "time_ns": at, "key": key, "key_space": LMCACHE, "component": "lmcache.l1"}
    return row | {"tier": "host", "process": "l0", "evidence": "native"} | more


#  a: written 90     L2 stores it 250     b asks 200, its L1 gets it back from L2 210
def test_what_the_server_wrote_is_a_store_and_what_it_moves_between_its_levels_is_none(
    tmp_path: Path,
) -> None:
    again = request(200, 300, request_id="b")
    blocks = [
        server("written", 85, "k0", reason="asked"), server("written", 90, "k0"),
        server("written", 210, "k0", reason="landed"),
        server("stored", 250, "k0", component="lmcache.l2.fs", tier="disk"),
    ]  # fmt: skip
    run = drawn(
        tmp_path, request(request_id="a"), again, lookup(200, 215, 16, request_id="b"),
        lookup(1, 2, 0, request_id="a"), block=blocks,
        request_key=[*keys("a", "k0", time_ns=1), *keys("b", "k0", time_ns=200)],
    )  # fmt: skip
    a, b = only(run, "a"), only(run, "b")
    assert (a["completed_ns"], a["stored_tokens"], a["never_stored"], a["lag_ns"]) == (90, 16, False, -10)
    assert (b["completed_ns"], b["stored_tokens"], b["never_stored"]) == (None, 0, False)
    assert b["skip_reason"] == "duplicate"


#  a: queued 50-210, stored 211-240, written 243       b asks 100: what it adds never leaves the queue
def test_another_requests_store_of_its_first_keys_is_no_store_of_what_it_left_in_the_queue(
    tmp_path: Path,
) -> None:
    """A server's word names no request: b began last with that key, and its own fate is known."""
    parts = [queued(50, 210, 0, 16, request_id="a"), queued(150, None, 16, 32, request_id="b")]
    run = drawn(
        tmp_path, request(request_id="a"), request(100, 200, request_id="b"), *parts,
        store(211, 240, tokens=16, request_id="a"), block=[server("written", 243, "k0")],
        request_key=[*keys("a", "k0"), *keys("b", "k0", "k1")],
    )  # fmt: skip
    row = only(run, "b")
    assert (row["completed_ns"], row["stored_tokens"], row["never_stored"]) == (None, 0, True)
    assert (row["skip_reason"], row["skipped_tokens"], row["lag_ns"]) == ("never_drained", 16, None)


@pytest.mark.parametrize(("said", "stored"), [([], 0), ([("log_line", "7")], 16)])
def test_a_request_that_recorded_its_drop_is_not_judged_by_events(
    tmp_path: Path, said: list[tuple[str, str]], stored: int
) -> None:
    """But for a log, which tells of drops and need not tell of stores."""
    drop = store(60, 60, op="drop", reason="no_room", outcome="skipped", request_id="b", attributes=said)
    rows = [
        request(request_id="a"),
        request(10, 100, request_id="b"),
        store(20, 40, tokens=16, request_id="a"),
    ]
    asked = [*keys("a", "k0"), *keys("b", "k0")]
    run = drawn(tmp_path, *rows, drop, block=[server("written", 41, "k0")], request_key=asked)
    assert only(run, "b")["stored_tokens"] == stored


@pytest.mark.parametrize("op", ["drop", "store"])
@pytest.mark.parametrize("named", ["r0", None])
def test_an_event_of_its_own_counts_beside_a_drop_or_failure_of_its_own(
    tmp_path: Path, op: str, named: str | None
) -> None:
    """One that names it, or whose key nobody else asked for, is no other's store of its keys."""
    outcome = {"drop": "skipped", "store": "failed"}[op]
    part = store(90, 95, op=op, reason="no_room", outcome=outcome, tokens=16)
    event = {**server("stored", 120, "k0"), "request_id": named, "tokens": 64}
    asked = [*keys("r0", "k0"), *(keys("b", "k0") if named else [])]
    rows = [request(0, 100), request(0, 100, request_id="b"), part]
    row = only(drawn(tmp_path, *rows, block=[event], request_key=asked))
    assert (row["completed_ns"], row["stored_tokens"], row["never_stored"]) == (120, 64, False)


def test_a_part_that_was_found_and_no_keys_leave_open_whether_there_was_anything_to_store(
    tmp_path: Path,
) -> None:
    other = store(60, 90, tokens=16, request_id="r1")
    rows = [request(), request(request_id="r1"), other, lookup(1, 2, 1280)]
    assert only(drawn(tmp_path / "part", *rows))["never_stored"] is None
    assert only(drawn(tmp_path / "miss", *rows[:-1], lookup(1, 2, 0)))["never_stored"] is True
    dropped = store(60, 61, tokens=0, op="drop", reason="no_room")
    assert only(drawn(tmp_path / "drop", *rows, dropped))["never_stored"] is True
