"""What LMCache's server owes its requests: lookups, transfers, reservations, touches, idleness. Seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.analyses.cache_rows import (
    CONFIG,
    DROPPED,
    S,
    asked,
    drawn,
    event,
    findings,
    keys,
    lookup,
    ns,
    only,
    span,
    status,
    written,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run
    from tests.unit.analyses.cache_rows import Row

SERVER = (
    "found_adds_up", "transfers_end_once", "nothing_left_at_idle", "served_keys_touched", "lru_order",
    "reservation_all_or_nothing",
)  # fmt: skip


@pytest.mark.parametrize("invariant", SERVER)
def test_without_its_records_it_is_unobserved_and_without_lmcache_not_applicable(
    tmp_path: Path, invariant: str
) -> None:
    assert status(drawn(tmp_path / "one", *written(1)), invariant) == "unobserved"
    other = drawn(tmp_path / "two", process=[{"process": "e0", "product": "sglang"}])
    assert status(other, invariant) == "not_applicable"


#  completes_within_bound
def search(at: float, end: float | None, number: int = 1, hits: int | None = None, **more: object) -> Row:
    """A search of the server in its L2."""
    attributes = {"prefetch_id": str(number)} | ({} if hits is None else {"prefix_hit_count": str(hits)})
    return span("l2.prefetch.lookup", at, end, attributes=attributes, **more)


#  search |---------------------------- ...    no page of the server says so
def test_a_search_in_l2_that_never_ends_is_a_hung_backend(tmp_path: Path) -> None:
    run = drawn(tmp_path, span=[search(10, None)])
    (row,) = findings(run, "completes_within_bound")
    assert (row["status"], row["request_id"], row["time_ns"]) == ("violated", "r", 70 * S)
    assert row["detail"] == "l2 lookup open after 3.17 min"
    assert status(drawn(tmp_path / "end", span=[search(10, 11)]), "completes_within_bound") == "pass"
    assert (
        status(drawn(tmp_path / "short", span=[search(180, None)]), "completes_within_bound")
        == "inconclusive"
    )


def test_losses_after_the_bound_do_not_excuse_what_hangs(tmp_path: Path) -> None:
    store = span("l2.store", 10, None, op="store", tier_from="host", tier_to="disk", request_id=None)
    for begin, expected in ((150, "violated"), (60, "inconclusive")):
        loss = [{"cause": "unclean_end", "process": "l0", "count": 1, "from_ns": begin * S}]
        run = drawn(tmp_path / str(begin), span=[store], loss=loss)
        assert status(run, "completes_within_bound") == expected


#  found_adds_up
def test_whole_chunks_of_both_tiers_add_up(tmp_path: Path) -> None:
    run = drawn(tmp_path, span=[lookup(1, 3, 128, 64), search(1.5, 2.5, hits=1)])
    assert only(run, "found_adds_up")[:2] == ("pass", None)
    assert (
        status(drawn(tmp_path / "l", span=[lookup(1, 3, 64)], loss=DROPPED), "found_adds_up")
        == "inconclusive"
    )


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (lookup(1, 3, 128, found_by_tier=[("host", 64)]), "found 128 tokens, by tier 64"),
        (lookup(1, 3, 65), "found 65 tokens, no multiple of its chunk of 64"),
        (lookup(1, 3, 192), "found 192 tokens of 128"),
        (lookup(1, 3, 128, 0), "more than its L1 and the search in L2 had"),
    ],
)
def test_what_does_not_add_up_is_a_violation_whatever_was_lost(tmp_path: Path, row: Row, words: str) -> None:
    run = drawn(tmp_path, span=[row, search(1.5, 2.5, hits=1)], loss=DROPPED)
    found, severity, detail = only(run, "found_adds_up")
    assert (found, severity) == ("violated", "error")
    assert words in detail


def test_without_a_chunk_size_whole_chunks_are_not_told(tmp_path: Path) -> None:
    run = drawn(tmp_path, span=[lookup(1, 3, 128)], identity=[])
    assert status(run, "found_adds_up") == "inconclusive"


#  transfers_end_once
def transfer(at: float, end: float | None, number: int = 0, **more: object) -> Row:
    row = {
        "op": "load",
        "tier_from": "host",
        "tier_to": "gpu",
        "transfer_id": f"r#{number}",
        "submit_ns": ns(at),
    }
    return span("mp.retrieve", at + 0.1, end, **(row | more))


def submitted(at: float, name: str = "mp.retrieve.submitted") -> Row:
    return span(name, at, at)


def test_transfers_that_end_once_pass_and_those_of_two_ranks_are_two(tmp_path: Path) -> None:
    rows = [transfer(1, 2), transfer(1, 3, 1), submitted(1), submitted(1.01)]
    run = drawn(tmp_path, span=rows)
    assert only(run, "transfers_end_once")[2] == "2 stores and retrieves ended once"
    assert status(drawn(tmp_path / "lossy", span=rows, loss=DROPPED), "transfers_end_once") == "inconclusive"


#  submitted 1   begins |-------- ...            submitted 1   (never begins)
@pytest.mark.parametrize("rows", [[transfer(1, None)], [transfer(1, 2), submitted(1), submitted(1.2)]])
def test_a_transfer_that_never_ends_or_never_begins_is_leaked(tmp_path: Path, rows: list[Row]) -> None:
    found, severity, detail = only(drawn(tmp_path / "run", span=rows), "transfers_end_once")
    assert (found, severity) == ("violated", "error")
    assert "mp.retrieve submitted, and not ended" in detail
    assert status(drawn(tmp_path / "short", span=rows, last=30), "transfers_end_once") == "inconclusive"
    assert status(drawn(tmp_path / "lossy", span=rows, loss=DROPPED), "transfers_end_once") == "inconclusive"


def test_a_transfer_that_ends_twice_is_a_violation_whatever_was_lost(tmp_path: Path) -> None:
    run = drawn(tmp_path, span=[transfer(1, 2), transfer(1, 3)], loss=DROPPED)
    assert only(run, "transfers_end_once")[2] == "mp.retrieve ended 2 times"


def test_the_servers_own_span_of_a_transfer_is_no_second_end(tmp_path: Path) -> None:
    run = drawn(tmp_path, span=[transfer(1, 2), transfer(1, 2.01, trace_id="7" * 32)])
    assert status(run, "transfers_end_once") == "pass"


#  nothing_left_at_idle
def page(value: float, at: float | None, name: str = "storage_manager.l1_manager.read_locked_count") -> Row:
    row = {"name": f"lmcache_status.{name}", "kind": "gauge", "value": value, "process": "l0"}
    return row | {"time_ns": ns(at)}


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ([page(0, 50), page(0, 50, "active_prefetch_jobs")], "pass"),
        ([page(3, 20), page(0, 50)], "pass"),
        ([page(3, 50)], "violated"),
        ([page(3, 12)], "inconclusive"),
        ([page(3, 15.5)], "inconclusive"),
        ([page(3, None)], "inconclusive"),
    ],
)
def test_the_last_page_with_nothing_in_progress_shows_zeros(
    tmp_path: Path, metric: list[Row], expected: str
) -> None:
    run = drawn(tmp_path, span=[transfer(10, 15)], metric=metric)
    found, _, detail = only(run, "nothing_left_at_idle")
    assert found == expected
    if expected == "violated":
        assert detail == "read_locked_count is 3 with nothing in progress"


#  served_keys_touched
def served(tmp_path: Path, *blocks: Row, last: float = 200, loss: tuple[Row, ...] = ()) -> Run:
    """R finds a and b of its three keys, and ends at 10."""
    rows = [lookup(2, 3, 128), span("mp.request.end", 10, 10), span("mp.request.end", 10.2, 10.2)]
    return drawn(
        tmp_path, *written(1, "a"), *blocks, span=rows, request_key=keys("a", "b", "c"), last=last, loss=loss
    )


def test_what_was_served_is_touched_at_the_end(tmp_path: Path) -> None:
    touches = [event("accessed", 10.1, name, ttl_ns=None) for name in ("a", "b")]
    assert (
        only(served(tmp_path, *touches), "served_keys_touched")[2] == "2 keys of 1 request touched at the end"
    )


#  a touched 10.1     b touched at the lookup alone
def test_a_touch_that_is_missing_or_early_is_a_violation(tmp_path: Path) -> None:
    touches = [event("accessed", 10.1, "a"), event("accessed", 5, "b"), asked("accessed", 10.3, "b")]
    (row,) = findings(served(tmp_path / "run", *touches), "served_keys_touched")
    assert (row["status"], row["request_id"], row["key"], row["time_ns"]) == ("violated", "r", "b", 10 * S)
    assert row["detail"] == "1 of 2 keys that it was served not touched at its end"
    assert status(served(tmp_path / "s", *touches, last=10.5), "served_keys_touched") == "inconclusive"
    assert status(served(tmp_path / "l", *touches, loss=DROPPED), "served_keys_touched") == "inconclusive"


#  reservation_all_or_nothing
def refused(at: float, key: str, reason: str = "l1_oom") -> Row:
    return event("failed", at, key, mode="read", component="lmcache.l2", reason=reason)


def reserved(tmp_path: Path, *spans: Row, found: int = 64, loss: tuple[Row, ...] = (), also: str = "") -> Run:
    """R has a in L1, searches b in L2, and b finds no room."""
    blocks = [*written(1, "a"), event("locked", 2.1, "a"), refused(2.5, "b")]
    rows = [lookup(2, 4, found, 64), search(2.2, 3, 7), *spans]
    more = keys("b", request=also) if also else []
    return drawn(tmp_path, *blocks, span=rows, request_key=keys("a", "b") + more, loss=loss)


def test_without_room_the_find_is_what_was_confirmed(tmp_path: Path) -> None:
    run = reserved(tmp_path)
    assert only(run, "reservation_all_or_nothing")[2] == "1 search in L2, 1 without room for all, left whole"


def test_a_load_in_spite_of_it_is_a_violation_whatever_was_lost(tmp_path: Path) -> None:
    task = span(
        "l2.load_task", 2.6, 2.9, op="load", tier_from="disk", tier_to="host", attributes={"prefetch_id": "7"}
    )
    found = only(reserved(tmp_path, task, loss=DROPPED), "reservation_all_or_nothing")
    assert found == ("violated", "error", "no room for 1 key (l1_oom), and a load was submitted all the same")


def test_a_find_that_nobody_locked_is_a_violation(tmp_path: Path) -> None:
    found = only(reserved(tmp_path / "run", found=128), "reservation_all_or_nothing")
    assert found == ("violated", "error", "no room for 1 key (l1_oom); 1 reported as found and not locked")
    lossy = reserved(tmp_path / "lossy", found=128, loss=DROPPED)
    assert status(lossy, "reservation_all_or_nothing") == "inconclusive"


def test_a_key_that_two_searches_asked_for_is_nobodys(tmp_path: Path) -> None:
    run = reserved(tmp_path, search(2.3, 3, 8, request_id="q"), found=128, also="q")
    assert status(run, "reservation_all_or_nothing") == "inconclusive"


#  read_only_what_was_locked
#  retrieve of r |---- reads z ----|     its lookup asked for a and b
def test_a_retrieve_that_reads_what_its_lookup_did_not_ask_for_is_a_violation(tmp_path: Path) -> None:
    for name, expected in (("a", "pass"), ("z", "violated")):
        rows = [asked("locked", 0.5, name), *written(1, name), event("locked", 2, name)]
        rows += [asked("accessed", 5, name), event("unlocked", 6, name)]
        run = drawn(tmp_path / name, *rows, span=[transfer(4, 7)], request_key=keys("a", "b"))
        assert status(run, "read_only_what_was_locked") == expected


#  lru_order
def evicting(tmp_path: Path, *rows: Row, meta: Row | None = None, loss: tuple[Row, ...] = ()) -> Run:
    """A written 1, b written 2, c written 3."""
    blocks = [asked("locked", 0.5)]
    for at, name in enumerate("abc", 1):
        blocks += written(at, name)
    return drawn(tmp_path, *blocks, *rows, meta=CONFIG if meta is None else meta, loss=loss)


def test_the_least_used_is_evicted_first(tmp_path: Path) -> None:
    run = evicting(tmp_path / "a", event("removed", 9, "a"), event("removed", 9, "b"))
    assert only(run, "lru_order")[:2] == ("pass", None)
    touched = evicting(tmp_path / "b", event("accessed", 8, "a"), event("removed", 9, "b"))
    assert status(touched, "lru_order") == "pass"


#  a written 1 |-----------------------      b written 2 |---- removed 9
def test_a_key_that_goes_before_one_used_less_lately_is_a_violation(tmp_path: Path) -> None:
    (row,) = findings(evicting(tmp_path / "run", event("removed", 9, "b")), "lru_order")
    assert (row["status"], row["key"], row["time_ns"]) == ("violated", "b", 9 * S)
    assert row["detail"] == "evicted though 1 key free to go had been used before it, by up to 1 s"
    lossy = evicting(tmp_path / "lossy", event("removed", 9, "b"), loss=DROPPED)
    assert status(lossy, "lru_order") == "inconclusive"


@pytest.mark.parametrize(
    "rows",
    [
        [event("locked", 4, "a"), event("removed", 9, "b"), event("unlocked", 10, "a")],
        [event("reserved", 4, "a"), event("removed", 9, "b"), event("written", 10, "a")],
        [event("cleared", 8.9, None, reason="unlocked"), event("removed", 9, "b")],
    ],
)
def test_what_is_locked_or_being_written_may_stay_and_a_clear_is_no_eviction(
    tmp_path: Path, rows: list[Row]
) -> None:
    assert status(evicting(tmp_path, *rows), "lru_order") in {"pass", "unobserved"}


@pytest.mark.parametrize(
    ("meta", "expected"),
    [({}, "unobserved"), ({"engines": {"l0": {"eviction_policy": "IsolatedLRU"}}}, "not_applicable")],
)
def test_another_policy_has_another_order(tmp_path: Path, meta: Row, expected: str) -> None:
    assert status(evicting(tmp_path, event("removed", 9, "b"), meta=meta), "lru_order") == expected


def test_an_lru_of_several_tenants_has_no_one_order(tmp_path: Path) -> None:
    rows = [*written(4, "d", identity_id="lmcache:salt:1"), event("removed", 9, "b")]
    assert status(evicting(tmp_path, *rows), "lru_order") == "not_applicable"
