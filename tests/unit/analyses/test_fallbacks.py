"""What became of the cache's offer: one verdict, one reason of a miss a test; 1,024 tokens are offered.

r0      [queue|lookup|load --------|step prefill|step ... )
time    0     10     20           40           60        100
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses.fallbacks import COLUMNS, fallbacks
from tests.rows import write_run
from tests.unit.analyses import killed
from tests.unit.analyses.exposure.drawing import load, request, scheduler, store

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]


def asked(start: int = 0, end: int | None = 100, **more: Any) -> Row:
    """r0: a prompt of 1,500 tokens, none of them in the GPU, 1,024 selected."""
    known = {"prompt_tokens": 1500, "gpu_hit_tokens": 0, "selected_tokens": 1024, "status": "ok"}
    return request(start, end, 60, **{**known, **more})


def lookup(found: int | None, outcome: str | None, start: int = 10, end: int | None = 20, **more: Any) -> Row:
    return scheduler("lookup", start, end, found_tokens=found, outcome=outcome, **more)


def loaded(outcome: str = "ok", **more: Any) -> Row:
    return load(20, 40, tokens=1024, outcome=outcome, **more)


def prefill(before: int | None, tokens: int, start: int = 40, end: int = 60, phase: str = "prefill") -> Row:
    """A step that computes so many tokens of r0's prompt after so many."""
    member = {
        "request_id": "r0", "phase": phase, "scheduled_tokens": tokens, "output_tokens": 1,
        "computed_before": before,
    }  # fmt: skip
    return scheduler("step", start, end, request_id=None, members=[member])


def verdict(tmp_path: Path, *spans: Row, **tables: Any) -> Row:
    rows = [{"run_id": "r", "span_id": number, **row} for number, row in enumerate(spans, 1)]
    run = write_run(tmp_path / "run", span=rows, **tables)
    (found,) = [row for row in fallbacks(run).to_dicts() if row["request_id"] == "r0"]
    return found


def pick(row: Row, *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def test_loaded(tmp_path: Path) -> None:
    row = verdict(tmp_path, asked(), lookup(1024, "ok"), loaded(), prefill(1024, 476))
    assert pick(row, "verdict", "also", "reason", "status") == ("loaded", "", None, "ok")
    assert pick(row, "expected_tokens", "loaded_tokens", "recomputed_tokens", "recompute_ns") == (
        1024,
        1024,
        0,
        0,
    )
    assert row["waited_ns"] == 10 + 20


def test_the_last_token_of_a_prompt_found_whole_is_no_loss(tmp_path: Path) -> None:
    """All 1,500 selected, 1,499 there before the step that computes the last."""
    row = verdict(tmp_path, asked(selected_tokens=1500), lookup(1500, "ok"), loaded(), prefill(1499, 1))
    assert pick(row, "verdict", "loaded_tokens", "recomputed_tokens") == ("loaded", 1499, 0)


def test_hung(tmp_path: Path) -> None:
    row = verdict(tmp_path, asked(end=None, status="open"), lookup(None, "open", 10, None))
    assert pick(row, "verdict", "also") == ("hung", "")


def test_failed_also_says_what_else_happened(tmp_path: Path) -> None:
    row = verdict(tmp_path, asked(status="error"), lookup(1024, "ok"), loaded("failed", reason="not_found"))
    assert pick(row, "verdict", "also") == ("failed", "recompute_after_failure")


def test_cancelled(tmp_path: Path) -> None:
    assert verdict(tmp_path, asked(status="aborted"), lookup(1024, "ok"))["verdict"] == "cancelled"


def test_recompute_after_timeout(tmp_path: Path) -> None:
    late = lookup(None, "timeout", 0, 40, reason="timeout")
    row = verdict(tmp_path, asked(selected_tokens=0), late, prefill(0, 1500))
    assert pick(row, "verdict", "also", "reason") == ("recompute_after_timeout", "", "timeout")
    assert pick(row, "waited_ns", "loaded_tokens") == (40, 0)


def test_a_second_inquiry_that_is_answered_makes_up_for_a_timeout(tmp_path: Path) -> None:
    first = lookup(None, "timeout", 0, 10, attempt=1)
    row = verdict(tmp_path, asked(), first, lookup(1024, "ok", attempt=2), loaded(), prefill(1024, 476))
    assert row["verdict"] == "loaded"


def test_recompute_after_a_load_that_timed_out(tmp_path: Path) -> None:
    row = verdict(
        tmp_path, asked(), lookup(1024, "ok"), loaded("timeout", reason="timeout"), prefill(0, 1500)
    )
    assert pick(row, "verdict", "also", "reason") == (
        "recompute_after_timeout", "recompute_after_failure", "timeout",
    )  # fmt: skip


def health(start: int, end: int | None, reason: str) -> Row:
    return scheduler("health", start, end, request_id=None, reason=reason)


@pytest.mark.parametrize("reason", ["degraded", "down"])
def test_recompute_degraded(tmp_path: Path, reason: str) -> None:
    """Admitted at 40, inside [30, 50); nobody asked."""
    row = verdict(tmp_path, asked(selected_tokens=0), health(30, 50, reason), prefill(0, 1500))
    assert pick(row, "verdict", "also", "reason") == ("recompute_degraded", "", reason)


@pytest.mark.parametrize(
    ("start", "end", "reason"), [(0, 40, "down"), (41, 50, "down"), (0, None, "healthy")]
)
def test_a_cache_that_is_down_before_or_after_is_not_why(
    tmp_path: Path, start: int, end: int | None, reason: str
) -> None:
    row = verdict(tmp_path, asked(selected_tokens=0), health(start, end, reason), prefill(0, 1500))
    assert row["verdict"] != "recompute_degraded"


def test_an_inquiry_that_was_answered_was_not_bypassed(tmp_path: Path) -> None:
    row = verdict(
        tmp_path, asked(), health(0, None, "degraded"), lookup(1024, "ok"), loaded(), prefill(1024, 476)
    )
    assert row["verdict"] == "loaded"


def test_admission_fallback(tmp_path: Path) -> None:
    row = verdict(
        tmp_path, asked(), lookup(1024, "ok"), loaded("skipped", reason="no_room"), prefill(0, 1500)
    )
    assert pick(row, "verdict", "reason", "recomputed_tokens") == ("admission_fallback", "no_room", 1024)
    assert row["recompute_ns"] == 20


def test_recompute_after_failure(tmp_path: Path) -> None:
    """Nothing was there before the first step: 1,024 of its 1,500 tokens had been promised."""
    row = verdict(
        tmp_path, asked(), lookup(1024, "ok"), loaded("failed", reason="not_found"), prefill(0, 1500)
    )
    assert pick(row, "verdict", "also", "reason") == ("recompute_after_failure", "", "not_found")
    assert pick(row, "loaded_tokens", "recomputed_tokens", "recompute_ns") == (0, 1024, 20)


def test_partial(tmp_path: Path) -> None:
    """Two steps begin before 1,024: their 10 + 15 ns; the third does not."""
    row = verdict(
        tmp_path,
        asked(),
        lookup(1024, "ok"),
        loaded("partial"),
        prefill(512, 500, 40, 50),
        prefill(1012, 100, 50, 65),
        prefill(1112, 388, 65, 80),
    )
    assert pick(row, "verdict", "loaded_tokens", "recomputed_tokens", "recompute_ns") == (
        "partial",
        512,
        512,
        25,
    )


def test_without_steps_a_load_that_ended_partly_is_partial(tmp_path: Path) -> None:
    other = load(20, 30, tokens=512, outcome="failed", reason="io")
    row = verdict(tmp_path, asked(), lookup(1024, "ok"), loaded(), other)
    assert pick(row, "verdict", "reason", "loaded_tokens", "recomputed_tokens") == (
        "partial",
        "io",
        None,
        None,
    )


def test_recompute_after_preemption(tmp_path: Path) -> None:
    """Loaded and computed, preempted at 60, and 1,500 prompt tokens are scheduled again in [70, 90).

    step [40-60) 1,024 + 476   preempted [60-70)   step [70-90) 0 + 1,500 and two tokens of the answer
    """
    row = verdict(
        tmp_path,
        asked(),
        lookup(1024, "ok"),
        loaded(),
        prefill(1024, 476),
        scheduler("queue", 60, 70, reason="preempted", attempt=2),
        prefill(0, 1502, 70, 90),
    )
    assert pick(row, "verdict", "also", "loaded_tokens") == ("recompute_after_preemption", "loaded", 1024)
    assert pick(row, "recomputed_tokens", "recompute_ns") == (1500, 20)


def test_noop(tmp_path: Path) -> None:
    blend = scheduler("blend", 20, 30, tokens=0, found_tokens=512)
    row = verdict(tmp_path, asked(selected_tokens=0), lookup(0, "miss"), blend, prefill(0, 1500))
    assert row["verdict"] == "noop"


def test_declined(tmp_path: Path) -> None:
    """The cache had 1,024, the GPU 256, and the scheduler selected none."""
    known = {"gpu_hit_tokens": 256, "selected_tokens": 0}
    row = verdict(tmp_path, asked(**known), lookup(1024, "ok"), prefill(256, 1244))
    assert pick(row, "verdict", "expected_tokens", "loaded_tokens") == ("declined", 0, 0)


def test_shadowed(tmp_path: Path) -> None:
    known = {"gpu_hit_tokens": 1024, "selected_tokens": 0}
    row = verdict(tmp_path, asked(**known), lookup(1024, "ok"), prefill(1024, 476))
    assert row["verdict"] == "shadowed"


def test_whether_the_gpu_had_it_or_the_scheduler_declined_may_be_unknown(tmp_path: Path) -> None:
    unknown = {"gpu_hit_tokens": None, "selected_tokens": None}
    row = verdict(tmp_path, asked(**unknown), lookup(1024, "ok"))
    assert pick(row, "verdict", "also", "reason", "expected_tokens") == (None, "", None, 1024)


def test_a_request_whose_engine_has_no_external_tier_has_no_row(tmp_path: Path) -> None:
    rows = [
        asked(),
        prefill(0, 1500),
        asked(request_id="r1", engine="e1"),
        lookup(0, "miss", request_id="r1"),
    ]
    rows[-1] |= {"engine": "e1"}
    run = write_run(tmp_path / "run", span=[{"span_id": at, **row} for at, row in enumerate(rows)])
    assert fallbacks(run)["request_id"].to_list() == ["r1"]


def test_a_cache_s_own_lookup_gives_the_engine_of_its_request_an_external_tier(tmp_path: Path) -> None:
    """The server is an engine of its own; r1 is of r0's engine, and nobody says that it did not ask."""
    theirs = lookup(0, "miss") | {"engine": "cache", "observer": "server", "process": "cache"}
    rows = [asked(), theirs, asked(request_id="r1", selected_tokens=None)]
    run = write_run(tmp_path / "run", span=[{"span_id": at, **row} for at, row in enumerate(rows)])
    found = {row["request_id"]: row["verdict"] for row in fallbacks(run).to_dicts()}
    assert found == {"r0": "miss", "r1": None}


def identity(name: str) -> Row:
    return {"identity_id": name, "side": "reader", "field": "model", "value": "m", "source": "s"}


def test_an_identity_of_a_cache_says_so_too_and_that_of_the_engine_itself_does_not(tmp_path: Path) -> None:
    spans = [{"span_id": 1, **asked(selected_tokens=None)}]
    cache = write_run(tmp_path / "cache", span=spans, identity=[identity("lmcache:m:256")])
    own = write_run(tmp_path / "own", span=spans, identity=[identity("e0")])
    assert (fallbacks(cache).height, fallbacks(own).height) == (1, 0)


# --- Why a request found nothing --------------------------------------------------------------------------


def miss(tmp_path: Path, *spans: Row, blocks: list[Row] | None = None, **more: Any) -> str | None:
    """Reason of r0's miss; it asks key K at 10, as an earlier request p did at 2."""
    keys = [
        {"request_id": name, "position": 0, "key_space": "s", "key": "K", "tokens": 256, "time_ns": at}
        for name, at in (("p", 2), ("r0", 10))
    ]
    mine = [asked(selected_tokens=0), lookup(0, "miss", **more), asked(request_id="p"), prefill(0, 1500)]
    mine.append(lookup(0, "miss", 2, 3, request_id="p"))
    row = verdict(tmp_path, *mine, *spans, request_key=keys, block=blocks or [])
    assert row["verdict"] == "miss"
    return row["reason"]  # type: ignore[no-any-return]


def key_event(event: str, at: int, key: str | None = "K", **more: Any) -> Row:
    return {
        "event": event,
        "time_ns": at,
        "key": key,
        "key_space": "s",
        "tier": "host",
        "component": "l1",
        **more,
    }


def test_never_stored(tmp_path: Path) -> None:
    """Stores are recorded, of others; p stored nothing."""
    assert miss(tmp_path, store(4, 5, request_id="x", outcome="ok")) == "never_stored"


def test_a_drop_stores_nothing(tmp_path: Path) -> None:
    drop = store(4, 5, request_id="p", outcome="skipped") | {"op": "drop"}
    assert miss(tmp_path, drop) == "never_stored"


@pytest.mark.parametrize(("start", "end"), [(4, 15), (14, 15), (4, None)])
def test_not_yet_stored(tmp_path: Path, start: int, end: int | None) -> None:
    """P's store is over only after 10."""
    assert miss(tmp_path, store(start, end, request_id="p", outcome="ok")) == "not_yet_stored"


def test_what_was_stored_before_and_is_gone_for_no_recorded_reason_is_unknown(tmp_path: Path) -> None:
    assert miss(tmp_path, store(4, 9, request_id="p", outcome="ok")) == "unknown"
    assert miss(tmp_path / "event", blocks=[key_event("stored", 5)]) == "unknown"


@pytest.mark.parametrize(("event", "key"), [("removed", "K"), ("expired", "K"), ("cleared", None)])
def test_evicted(tmp_path: Path, event: str, key: str | None) -> None:
    assert miss(tmp_path, blocks=[key_event("stored", 5), key_event(event, 8, key)]) == "evicted"


def test_an_eviction_of_something_else_or_before_the_store_is_none(tmp_path: Path) -> None:
    events = [key_event("removed", 4), key_event("stored", 5), key_event("removed", 8, "other")]
    assert miss(tmp_path, blocks=events) == "unknown"


def test_events_of_the_gpu_say_nothing_of_another_tier(tmp_path: Path) -> None:
    events = [key_event("stored", 5, tier="gpu"), key_event("stored", 6, "other")]
    assert miss(tmp_path, blocks=events) == "never_stored"


def test_key_mismatch(tmp_path: Path) -> None:
    """What r0 stores under K later has the same content as what lay there under another key."""
    events = [key_event("stored", 5, "L", token_digest="d"), key_event("stored", 90, token_digest="d")]
    assert miss(tmp_path, blocks=events) == "key_mismatch"


def test_below_chunk(tmp_path: Path) -> None:
    row = verdict(tmp_path, asked(selected_tokens=0), lookup(None, "skipped", reason="below_chunk"))
    assert pick(row, "verdict", "reason") == ("miss", "below_chunk")


def test_not_asked(tmp_path: Path) -> None:
    """Its engine records its inquiries, and there is none of r0."""
    row = verdict(tmp_path, asked(selected_tokens=0), lookup(0, "miss", request_id="r9"))
    assert pick(row, "verdict", "reason") == ("miss", "not_asked")


def test_without_keys_nobody_knows(tmp_path: Path) -> None:
    row = verdict(tmp_path, asked(selected_tokens=0), lookup(0, "miss"))
    assert pick(row, "verdict", "reason") == ("miss", "unknown")


# --- All together -----------------------------------------------------------------------------------------


def test_after_the_kill_the_first_waits_for_its_timeout_and_the_others_are_bypassed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", killed.POOL, **killed.tables())
    rows = fallbacks(run).to_dicts()
    assert [row["verdict"] for row in rows] == ["recompute_after_timeout", *["recompute_degraded"] * 3]
    assert rows[0]["waited_ns"] == 5_000 * killed.MS
    assert {row["status"] for row in rows} == {"ok"}
    assert fallbacks(run, requests=("cmpl-r2-0-cc",)).to_dicts() == [rows[2]]


def test_waiting_is_a_union_cut_to_the_life_of_the_request(tmp_path: Path) -> None:
    """Lookup [-5, 20), load submitted 15, usable 45, lock_wait [44, 50): [0, 50)."""
    row = verdict(
        tmp_path,
        asked(),
        lookup(1024, "ok", -5, 20),
        loaded(submit_ns=15, usable_ns=45),
        scheduler("lock_wait", 44, 50),
        prefill(1024, 476, 50, 60),
    )
    assert row["waited_ns"] == 50


def test_an_empty_run_has_the_columns(tmp_path: Path) -> None:
    frame = fallbacks(write_run(tmp_path / "run"))
    assert (frame.height, frame.schema) == (0, COLUMNS)


def server(name: str | None, start: int, end: int, **more: Any) -> Row:
    """A row of LMCache's server about r0."""
    attributes = more.pop("attributes", {})
    row = {"name": name, "op": None, "request_id": "r0", "process": "l0", "observer": "server"}
    return row | {"start_ns": start, "end_ns": end, "attributes": list(attributes.items())} | more


def searched(found: int, hits: int, failed: int = 0, *, submitted: str | None = None) -> list[Row]:
    """L2 had so many of r0's chunks of 256; so many were lost on the way to L1; the lookup found the rest."""
    load = {"failed_count": str(failed), "loaded_count": str(hits - failed)}
    if submitted:
        load["submitted"] = submitted
    asked = server("mp.lookup_prefetch", 10, 20, op="lookup", component="lmcache", found_tokens=found)
    return [
        asked | {"found_by_tier": [("host", 0), ("disk", found)]},
        server("l2.prefetch.lookup", 11, 13, attributes={"prefix_hit_count": str(hits)}),
        server("l2.prefetch.load", 13, 19, attributes=load),
    ]


def wanted(*names: str) -> list[Row]:
    return [
        {"request_id": "r0", "position": place, "key": name, "key_space": "s", "tokens": 256, "time_ns": 10}
        for place, name in enumerate(names)
    ]


#  L2 had k0..k3, k2 could not be read: 512 tokens found, selected and loaded; the rest is computed
def test_what_l2_had_and_did_not_deliver_is_partial(tmp_path: Path) -> None:
    task = server(
        "l2.load_task", 13, 19, op="load", tier_from="disk", tier_to="host", outcome="partial",
        reason="not_found", tokens=None,
    )  # fmt: skip
    rows = [lookup(512, "ok"), load(20, 40, tokens=512), prefill(512, 988), *searched(512, 4, 2), task]
    row = verdict(tmp_path, asked(selected_tokens=512), *rows, request_key=wanted("k0", "k1", "k2", "k3"))
    assert pick(row, "verdict", "also", "reason") == ("partial", "", "not_found")
    assert pick(row, "expected_tokens", "loaded_tokens") == (1024, 512)


def test_a_lookup_that_does_not_say_what_lay_in_l1_promises_nothing_that_can_be_counted(
    tmp_path: Path,
) -> None:
    """Part of the find may have been L1's: what L2 had does not begin at the first token then."""
    first, *rest = searched(512, 4, 2)
    rows = [lookup(512, "ok"), load(20, 40, tokens=512), prefill(512, 988)]
    rows += [first | {"found_by_tier": None}, *rest]
    row = verdict(tmp_path, asked(selected_tokens=512), *rows, request_key=wanted("k0", "k1", "k2", "k3"))
    assert pick(row, "verdict", "expected_tokens", "loaded_tokens") == ("partial", 512, 512)


def test_what_l2_had_and_delivered_is_loaded(tmp_path: Path) -> None:
    rows = [lookup(1024, "ok"), loaded(), prefill(1024, 476), *searched(1024, 4)]
    row = verdict(tmp_path, asked(), *rows, request_key=wanted("k0", "k1", "k2", "k3"))
    assert pick(row, "verdict", "also", "expected_tokens") == ("loaded", "", 1024)


def test_what_l2_had_and_lost_whole_is_recomputed_after_a_failure(tmp_path: Path) -> None:
    rows = [lookup(0, "miss"), prefill(0, 1500), *searched(0, 4, 4)]
    row = verdict(tmp_path, asked(selected_tokens=0), *rows, request_key=wanted("k0", "k1", "k2", "k3"))
    assert pick(row, "verdict", "expected_tokens", "loaded_tokens") == ("recompute_after_failure", 1024, 0)


#  L2 had 4, none of them found room in L1
@pytest.mark.parametrize("reason", ["l1_oom", "l1_contended"])
def test_what_found_no_room_in_l1_is_an_admission_fallback(tmp_path: Path, reason: str) -> None:
    failed = {"event": "failed", "component": "lmcache.l2", "reason": reason, "key": "k0", "key_space": "s"}
    failed |= {"time_ns": 12, "process": "l0"}
    rows = [lookup(0, "miss"), prefill(0, 1500), *searched(0, 4, 4, submitted="0")]
    found = {"request_key": wanted("k0", "k1", "k2", "k3")}
    row = verdict(tmp_path / "a", asked(selected_tokens=0), *rows, block=[failed], **found)
    assert pick(row, "verdict", "also", "reason") == ("admission_fallback", "", "no_room")
    later = verdict(
        tmp_path / "b", asked(selected_tokens=0), *rows, block=[failed | {"time_ns": 30}], **found
    )
    assert later["verdict"] == "miss", "another search was refused"
