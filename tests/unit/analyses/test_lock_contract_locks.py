"""Locks and reservations of a cache that says what it did: holds, broken, lost, late, absent. Seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.analyses.cache_rows import (
    DROPPED,
    S,
    asked,
    drawn,
    event,
    findings,
    keys,
    only,
    span,
    status,
    written,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.analyses.cache_rows import Row

ONE = [asked("locked", 0.5), asked("unlocked", 190, "other")]
"""Calls with counts: each event is of one lock."""
READ = [*written(1), event("locked", 2), event("unlocked", 3)]
JUDGED = (
    "released_once", "read_within_ttl", "not_removed_while_locked", "not_written_while_locked",
    "readable_was_written", "reservation_written_or_returned", "read_only_what_was_locked",
    "records_complete",
)  # fmt: skip


#  reserved 1   written 1.1   locked 2   accessed 2.5   unlocked 3   removed 4
@pytest.mark.parametrize("invariant", JUDGED)
def test_a_key_that_is_written_locked_read_released_and_removed_keeps_the_contract(
    tmp_path: Path, invariant: str
) -> None:
    run = drawn(tmp_path, *ONE, *READ, asked("accessed", 2.5), event("removed", 4))
    assert only(run, invariant)[:2] == ("pass", None)


@pytest.mark.parametrize("invariant", JUDGED)
@pytest.mark.parametrize("process", ["l0", None])
def test_with_losses_of_the_cache_nothing_passes_and_with_another_processs_it_does(
    tmp_path: Path, invariant: str, process: str | None
) -> None:
    rows = [*ONE, *READ, asked("accessed", 2.5), event("removed", 4)]
    lossy = drawn(tmp_path / "lossy", *rows, loss=[{"cause": "dropped", "process": process, "count": 2}])
    assert status(lossy, invariant) == "inconclusive"
    assert "2 records missing" in only(lossy, invariant)[2]
    others = ({"cause": "dropped", "process": "x", "count": 1}, {"cause": "duplicate", "count": 1})
    assert status(drawn(tmp_path / "other", *rows, loss=others), invariant) == "pass"


@pytest.mark.parametrize("invariant", JUDGED)
def test_calls_alone_are_no_events_of_the_cache(tmp_path: Path, invariant: str) -> None:
    run = drawn(tmp_path, asked("reserved", 1), asked("written", 2), asked("locked", 3), asked("unlocked", 4))
    assert status(run, invariant) == ("pass" if invariant == "released_once" else "unobserved")


#  released_once
def test_a_lock_that_is_kept_beyond_the_bound_is_a_violation(tmp_path: Path) -> None:
    rows = [asked("locked", 0.5), *written(1), event("locked", 2, ttl_ns=None)]
    (row,) = findings(drawn(tmp_path, *rows), "released_once")
    assert (row["status"], row["severity"], row["time_ns"]) == ("violated", "error", 62 * S)
    assert status(drawn(tmp_path / "short", *rows, last=50), "released_once") == "inconclusive"


#  locked 2 |-- 10 --|        locked 30  unlocked 31        the first was never released: its count began anew
def test_a_lock_that_ran_out_before_the_next_was_never_released(tmp_path: Path) -> None:
    rows = [*ONE, *written(1), event("locked", 2), event("locked", 30), event("unlocked", 31)]
    (row,) = findings(drawn(tmp_path, *rows), "released_once")
    assert (row["status"], row["severity"], row["time_ns"]) == ("violated", "warning", 12 * S)
    assert row["detail"].startswith("ttl_expired")


#  locked 2   unlocked 3   a second release releases nothing 4: the lock of somebody else would be gone
def test_a_release_that_found_no_lock_within_its_time_to_live_is_a_violation(tmp_path: Path) -> None:
    stray = event("failed", 4, mode="read", reason="unreleased")
    (row,) = findings(drawn(tmp_path, *ONE, *READ, stray), "released_once")
    assert (row["status"], row["severity"], row["time_ns"]) == ("violated", "error", 4 * S)


#  locked 2 |-- 10 --|   unreleased 14          locked 2   read failed 3, unreleased 3.1
@pytest.mark.parametrize(
    "rows",
    [
        [event("failed", 14, mode="read", reason="unreleased")],
        [
            event("failed", 3, reason="l1_retrieve:write_locked"),
            event("failed", 3.1, mode="read", reason="unreleased"),
        ],
    ],
)
def test_a_release_after_the_time_to_live_or_a_failed_read_is_no_stray_one(
    tmp_path: Path, rows: list[Row]
) -> None:
    run = drawn(tmp_path, *ONE, *written(1), event("locked", 2), *rows, last=13)
    assert all("though none" not in row["detail"] for row in findings(run, "released_once"))


def test_without_counts_as_many_events_prove_nothing(tmp_path: Path) -> None:
    assert only(drawn(tmp_path, *READ), "released_once") == (
        "inconclusive",
        None,
        "1 locks taken and 1 released; how many locks an event took or released was not told",
    )


#  calls: locked 2, unlocked 1, unlocked 1      events: locked, unlocked, unlocked
def test_locks_of_several_readers_are_judged_by_the_calls(tmp_path: Path) -> None:
    calls = [asked("locked", 1.9, count=2), asked("unlocked", 2.9), asked("unlocked", 3.9)]
    rows = [*written(1), event("locked", 2), event("unlocked", 3), event("unlocked", 4)]
    assert status(drawn(tmp_path / "all", *calls, *rows), "released_once") == "pass"
    assert status(drawn(tmp_path / "one", *calls[:2], *rows[:-1]), "released_once") == "inconclusive"


#  read_within_ttl
#  locked 2 |-- 10 --|  read 15
def test_a_read_after_the_time_to_live_is_ttl_expired_whatever_was_lost(tmp_path: Path) -> None:
    rows = [*ONE, *written(1), event("locked", 2), event("failed", 15, reason="l1_retrieve:write_locked")]
    for name, loss in (("whole", ()), ("lossy", DROPPED)):
        (row,) = findings(drawn(tmp_path / name, *rows, loss=loss), "read_within_ttl")
        assert (row["status"], row["severity"], row["time_ns"]) == ("violated", "warning", 15 * S)
        assert row["detail"] == (
            "ttl_expired: 1 key not locked any more when read, 13 s after the lock, "
            "whose time to live is 10 s"
        )


#  retrieve of late |- 14 - read 15 - 16 -|     no event says whose read it is
@pytest.mark.parametrize(
    ("others", "reader"),
    [
        ([], "late"),
        ([("other", "k", 14, 16)], None),
        ([("other", "q", 14, 16)], "late"),
        ([("other", "k", 2, 14)], "late"),
    ],
)
def test_a_read_that_failed_is_that_of_the_one_retrieve_which_asked_for_the_key(
    tmp_path: Path, others: list[tuple[str, str, int, int]], reader: str | None
) -> None:
    rows = [*ONE, *written(1), event("locked", 2), event("failed", 15, reason="l1_retrieve:write_locked")]
    told = [("late", "k", 14, 16), *others]
    retrieves = [
        span("mp.retrieve", at, end, op="load", request_id=name, tier_from="host", tier_to="gpu")
        for name, _, at, end in told
    ]
    asked_for = [row for name, key, *_ in told for row in keys(key, request=name)]
    run = drawn(tmp_path, *rows, span=retrieves, request_key=asked_for)
    (row,) = findings(run, "read_within_ttl")
    assert (row["status"], row["request_id"]) == ("violated", reader)


#  locked 2 |--- removed 3   read 5: gone
def test_a_read_of_what_was_removed_while_locked_is_an_error_and_one_row_a_read(tmp_path: Path) -> None:
    rows = [*ONE, *written(1), *written(1, "q"), event("locked", 2), event("locked", 2, "q")]
    rows += [event("removed", 3, name) for name in ("k", "q")]
    rows += [event("failed", 5, name, reason="l1_retrieve:not_found", seq=9) for name in ("k", "q")]
    (row,) = findings(drawn(tmp_path, *rows), "read_within_ttl")
    assert (row["status"], row["severity"], row["key"]) == ("violated", "error", "k")
    assert row["detail"] == "2 keys gone when read, 3 s after the lock, well within its time to live"


#  locked 2 |--- released 3   read 5: nothing protected it any more
@pytest.mark.parametrize("rows", [[], [event("removed", 4)]])
def test_a_read_of_what_had_been_released_is_a_read_without_a_lock(tmp_path: Path, rows: list[Row]) -> None:
    reason = "l1_retrieve:not_found" if rows else "l1_retrieve:write_locked"
    run = drawn(tmp_path, *ONE, *READ, *rows, asked("accessed", 5), event("failed", 5.01, reason=reason))
    assert status(run, "read_within_ttl") == "pass"
    assert status(run, "read_only_what_was_locked") == "violated"


def test_without_counts_a_read_after_a_release_may_have_been_locked(tmp_path: Path) -> None:
    run = drawn(tmp_path, *READ, event("failed", 5, reason="l1_retrieve:write_locked"))
    assert status(run, "read_within_ttl") == "inconclusive"


def test_a_read_whose_lock_was_before_the_records_is_inconclusive(tmp_path: Path) -> None:
    rows = [*ONE, *READ, event("failed", 15, "q", reason="l1_retrieve:write_locked")]
    assert only(drawn(tmp_path, *rows), "read_within_ttl")[0] == "inconclusive"


#  no room 1      read 5: it was never there, and nobody had locked it
def test_a_read_of_what_had_found_no_room_is_a_read_without_a_lock(tmp_path: Path) -> None:
    rows = [event("failed", 1, "q", mode="reserve", reason="l1_store"), asked("accessed", 5, "q")]
    rows.append(event("failed", 5.01, "q", reason="l1_retrieve:not_found"))
    run = drawn(tmp_path, *ONE, *READ, *rows)
    assert status(run, "read_within_ttl") == "pass"
    assert status(run, "read_only_what_was_locked") == "violated"


def test_a_store_to_l2_that_could_not_read_is_no_reader_of_a_find(tmp_path: Path) -> None:
    run = drawn(tmp_path, *ONE, *READ, event("failed", 50, reason="l2_store:write_locked"))
    assert status(run, "read_within_ttl") == "pass"


#  not_removed_while_locked
#  locked 2 |--- removed 5
def test_a_removal_of_a_locked_key_is_an_error(tmp_path: Path) -> None:
    rows = [*ONE, *written(1), event("locked", 2), event("removed", 5)]
    assert only(drawn(tmp_path / "run", *rows), "not_removed_while_locked") == (
        "violated", "error", "removed 3 s after 1 lock of it that nobody had released",
    )  # fmt: skip
    lossy = drawn(tmp_path / "lossy", *rows, loss=DROPPED)
    assert status(lossy, "not_removed_while_locked") == "inconclusive"


#  locked 2 |-- 10 --|  removed 14             cleared 4.9, removed 5
@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([event("removed", 14)], "ttl_expired"),
        ([event("cleared", 4.9, None, reason="force"), event("removed", 5)], "forced_clear"),
        ([event("cleared", 4.9, reason="force_delete"), event("removed", 5)], "forced_clear"),
        ([event("cleared", 4.9, "q", reason="force_delete"), event("removed", 5)], "removed"),
        ([event("cleared", 4.9, None, reason="unlocked"), event("removed", 5)], "removed"),
        ([event("cleared", 1.5, None, reason="force"), event("removed", 5)], "removed"),
    ],
)
def test_a_time_to_live_and_a_forced_clear_are_told_apart_from_a_bug(
    tmp_path: Path, rows: list[Row], word: str
) -> None:
    run = drawn(tmp_path, *ONE, *written(1), event("locked", 2), *rows)
    found, severity, detail = only(run, "not_removed_while_locked")
    assert (found, severity) == ("violated", "error" if word == "removed" else "warning")
    assert detail.startswith(word)


#  landed 2: locked   unlocked 3, removed 3 (next number): a temporary object goes with its last reader
def test_a_temporary_object_goes_with_its_last_reader(tmp_path: Path) -> None:
    rows = [event("reserved", 1), event("written", 2, reason="landed", seq=5)]
    rows += [
        event("locked", 2, reason="landed", seq=5),
        event("removed", 3, seq=7),
        event("unlocked", 3, seq=6),
    ]
    run = drawn(tmp_path, *ONE, *rows)
    assert status(run, "not_removed_while_locked") == "pass"
    assert status(run, "released_once") == "pass"


def test_a_key_that_was_there_before_the_records_may_have_been_locked(tmp_path: Path) -> None:
    run = drawn(tmp_path, *ONE, *READ, event("removed", 9, "q"))
    for invariant in ("not_removed_while_locked", "records_complete"):
        found, _, detail = only(run, invariant)
        assert found == "inconclusive"
        assert "1 key there before the records began" in detail


def test_of_two_locks_and_one_release_without_counts_nobody_knows(tmp_path: Path) -> None:
    rows = [*written(1), event("locked", 2), event("unlocked", 3), event("removed", 4)]
    assert status(drawn(tmp_path, *rows), "not_removed_while_locked") == "inconclusive"


#  not_written_while_locked
@pytest.mark.parametrize("row", [event("written", 5), event("failed", 5, mode="write", reason="unfinished")])
def test_a_write_under_a_reader_is_a_violation(tmp_path: Path, row: Row) -> None:
    rows = [*ONE, *written(1), event("locked", 2), row, event("unlocked", 6)]
    found, severity, detail = only(drawn(tmp_path / "run", *rows), "not_written_while_locked")
    assert (found, severity) == ("violated", "error")
    assert "3 s after 1 lock" in detail
    lossy = drawn(tmp_path / "lossy", *rows, loss=DROPPED)
    assert status(lossy, "not_written_while_locked") == "inconclusive"


def test_a_write_after_the_readers_time_to_live_harms_nobody(tmp_path: Path) -> None:
    run = drawn(tmp_path, *ONE, *written(1), event("locked", 2), event("written", 15))
    assert status(run, "not_written_while_locked") == "pass"


#  readable_was_written
#  reserved 1 |-- 20 --|  locked 25: as if it were there
def test_a_reservation_that_became_readable_was_never_written(tmp_path: Path) -> None:
    rows = [*ONE, event("reserved", 1), event("locked", 25), event("locked", 26), event("unlocked", 27)]
    (row,) = findings(drawn(tmp_path / "run", *rows), "readable_was_written")
    assert (row["status"], row["severity"], row["time_ns"]) == ("violated", "error", 25 * S)
    assert row["detail"] == "locked for a reader 24 s after it was reserved, and never written"
    assert status(drawn(tmp_path / "lossy", *rows, loss=DROPPED), "readable_was_written") == "inconclusive"


def test_losses_that_begin_later_do_not_hide_what_was_never_written(tmp_path: Path) -> None:
    rows = [*ONE, event("reserved", 1), event("locked", 25), event("unlocked", 27)]
    for begin, expected in ((26, "violated"), (24, "inconclusive")):
        loss = [{"cause": "unclean_end", "process": "l0", "count": 1, "from_ns": begin * S}]
        run = drawn(tmp_path / str(begin), *rows, loss=loss)
        assert status(run, "readable_was_written") == expected


#  written 1.1   removed 3   reserved 4   locked 30: the second life was never written
def test_what_was_written_before_it_was_removed_is_not_there(tmp_path: Path) -> None:
    rows = [*ONE, *written(1), event("removed", 3), event("reserved", 4), event("locked", 30)]
    assert status(drawn(tmp_path, *rows), "readable_was_written") == "violated"


def test_a_key_that_was_there_before_the_records_may_have_been_written(tmp_path: Path) -> None:
    run = drawn(tmp_path, *ONE, *READ, event("locked", 9, "q"), event("unlocked", 10, "q"))
    assert status(run, "readable_was_written") == "inconclusive"


@pytest.mark.parametrize("more", [{"rank": 1}, {"object_group": "1"}, {"identity_id": "lmcache:salt:1"}])
def test_another_rank_group_or_tenant_has_another_object(tmp_path: Path, more: Row) -> None:
    rows = [*ONE, *written(1), event("reserved", 1, **more), event("locked", 25, **more)]
    assert status(drawn(tmp_path, *rows), "readable_was_written") == "violated"


#  reservation_written_or_returned
@pytest.mark.parametrize(
    ("rows", "last", "expected"),
    [
        ([event("written", 5)], 200, "pass"),
        ([event("removed", 5)], 200, "pass"),
        ([], 15, "inconclusive"),
        ([], 200, "violated"),
        ([event("removed", 30)], 200, "violated"),
    ],
)
def test_a_reservation_is_written_or_given_back_within_its_time_to_live(
    tmp_path: Path, rows: list[Row], last: int, expected: str
) -> None:
    run = drawn(tmp_path, event("reserved", 1), *rows, last=last)
    found = findings(run, "reservation_written_or_returned")
    assert [row["status"] for row in found] == [expected]
    if expected == "violated":
        assert (found[0]["severity"], found[0]["time_ns"]) == ("error", 21 * S)
        lossy = drawn(tmp_path / "lossy", event("reserved", 1), *rows, last=last, loss=DROPPED)
        assert status(lossy, "reservation_written_or_returned") == "inconclusive"


def test_a_reservation_whose_time_to_live_is_unknown_is_never_over(tmp_path: Path) -> None:
    run = drawn(tmp_path, event("reserved", 1, ttl_ns=None))
    assert status(run, "reservation_written_or_returned") == "inconclusive"


#  read_only_what_was_locked
#  locked 2  unlocked 3        accessed 6
def test_a_read_of_what_nothing_had_locked_is_a_violation(tmp_path: Path) -> None:
    rows = [*ONE, *READ, asked("accessed", 6)]
    assert only(drawn(tmp_path / "run", *rows), "read_only_what_was_locked") == (
        "violated", "error", "1 key read that nothing had locked",
    )  # fmt: skip


def test_an_lmcache_without_events_is_unobserved_and_no_lmcache_not_applicable(tmp_path: Path) -> None:
    for invariant in JUDGED:
        assert status(drawn(tmp_path / f"{invariant}-1"), invariant) == "unobserved"
        nobody = drawn(tmp_path / f"{invariant}-2", process=[{"process": "e0", "product": "sglang"}])
        assert status(nobody, invariant) == "not_applicable"
