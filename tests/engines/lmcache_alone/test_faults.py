"""Planted faults are in the rows: overlapping stores, failed loads, expired locks, a backend that hangs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.engines.lmcache_alone.server import CHUNKS, RANKS
from tests.engines.lmcache_alone.test_plain import rows

if TYPE_CHECKING:
    from tests.engines.lmcache_alone.server import Played

pytestmark = pytest.mark.engine


def test_stores_of_two_ranks_overlap_and_stay_apart(overlap: Played) -> None:
    query = (
        "SELECT request_id, count(*), count(DISTINCT transfer_id), count(DISTINCT attributes['engine_id']), "
        "count(end_ns), count(submit_ns), bool_and(submit_ns <= start_ns AND start_ns <= end_ns) "
        "FROM span WHERE op = $op GROUP BY 1"
    )
    for op, prefix in (("store", "both"), ("load", "again")):
        found = {request: tuple(counts) for request, *counts in rows(overlap, query, op=op)}
        both = (RANKS, RANKS, RANKS, RANKS, RANKS, True)
        assert found == {f"{prefix}-{number}": both for number in range(8)}
    ((together,),) = rows(
        overlap,
        "SELECT count(*) FROM span a JOIN span b "
        "ON a.request_id = b.request_id AND a.transfer_id < b.transfer_id "
        "WHERE a.op = 'store' AND b.op = 'store' AND a.start_ns < b.end_ns AND b.start_ns < a.end_ns",
    )
    assert together >= 1
    assert rows(overlap, "SELECT * FROM loss") == []


def test_each_rank_locks_its_own_objects(overlap: Played) -> None:
    query = "SELECT rank, count(DISTINCT key) FROM block WHERE event = 'locked' GROUP BY 1 ORDER BY 1"
    assert rows(overlap, query) == [(0, 8 * CHUNKS), (1, 8 * CHUNKS)]


def test_a_load_that_failed_in_part_is_told_from_one_that_did_not(fails: Played) -> None:
    """L2 promised three chunks, the third object failed: one chunk is left, nothing says error."""
    assert fails.said == {"found": [1, []]}
    (promised,) = rows(
        fails,
        "SELECT attributes['prefix_hit_count'] FROM span "
        "WHERE name = 'l2.prefetch.lookup' AND request_id = 'partly-0'",
    )
    assert int(promised[0]) == CHUNKS
    assert rows(fails, "SELECT outcome, reason, bytes FROM span WHERE name = 'l2.load_task'") == [
        ("partial", "not_found", None)
    ]
    query = (
        "SELECT found_tokens, requested_tokens, outcome FROM span "
        "WHERE op = 'lookup' AND request_id = 'partly-0'"
    )
    assert rows(fails, query) == [(64, 192, "partial")]
    query = (
        "SELECT attributes['loaded_count'], attributes['failed_count'], outcome FROM span "
        "WHERE name = 'l2.prefetch.load' AND request_id = 'partly-0'"
    )
    assert rows(fails, query) == [(str(RANKS * CHUNKS - 1), "1", "partial")]


def test_the_keys_that_failed_are_those_of_the_request(fails: Played) -> None:
    query = (
        "SELECT b.reason, k.request_id, k.position FROM block b JOIN request_key k USING (key_space, key) "
        "WHERE b.event = 'failed' AND b.component = 'lmcache.l2' AND k.request_id = 'partly-0'"
    )
    assert rows(fails, query) == [("not_found", "partly-0", 1)]


def test_locks_that_expire_under_a_held_lookup_fail_the_retrieve(held: Played) -> None:
    """Looked up, held for 3 s with locks of 2 s: found, and not there when it is fetched."""
    assert held.said == {"soon": [CHUNKS, []], "late": [CHUNKS, [0, 1]]}
    query = "SELECT request_id, outcome, tokens FROM span WHERE name = 'mp.retrieve' ORDER BY start_ns"
    assert rows(held, query) == [("soon-0", "ok", 192)] * RANKS + [("late-0", "failed", 0)] * RANKS
    query = (
        "SELECT count(*), min(f.time_ns - l.time_ns) > min(l.ttl_ns), min(l.ttl_ns) "
        "FROM block f JOIN block l USING (key_space, key, rank, object_group) "
        "WHERE f.event = 'failed' AND f.reason = 'l1_retrieve:write_locked' "
        "AND l.event = 'locked' AND l.request_id = 'late-0'"
    )
    assert rows(held, query) == [(RANKS * CHUNKS, True, 2_000_000_000)]


def test_the_locks_that_expired_are_never_released(held: Played) -> None:
    """Nothing is released from the late retrieve on: what it releases is not locked any more."""
    query = (
        "SELECT count(*) FROM block WHERE event = 'unlocked' AND time_ns > "
        "(SELECT min(start_ns) FROM span WHERE name = 'mp.retrieve.submitted' AND request_id = 'late-0')"
    )
    assert rows(held, query) == [(0,)]
    query = "SELECT count(*) FROM block WHERE event = 'failed' AND reason = 'unreleased'"
    assert rows(held, query) == [(RANKS * CHUNKS,)]


def test_a_backend_that_hangs_is_seen_while_every_page_is_green(hung: Played) -> None:
    assert (hung.said["found"], hung.said["healthy"], hung.said["active"]) == (0, True, 1)
    assert hung.said["page"]["status"] == "healthy"
    query = "SELECT name, request_id, end_ns, outcome FROM span WHERE name = $name"
    for name in ("l2.prefetch.lookup", "mp.lookup_prefetch"):
        assert rows(hung, query, name=name) == [(name, "hung-0", None, "open")]


def test_a_lookup_that_hung_is_still_there_at_the_servers_end(hung: Played) -> None:
    query = "SELECT value FROM metric WHERE name = 'lmcache_status.active_prefetch_jobs'"
    assert rows(hung, query) == [(1.0,)]


def test_an_unfinished_write_becomes_a_hit_when_its_lock_expires(unwritten: Played) -> None:
    """Nobody wrote what is served: there is no row `written`, only the call that comes too late."""
    assert unwritten.said == {"early": 0, "late": 2, "served": 2}
    query = (
        "SELECT event, reason, mode FROM block WHERE reason IS DISTINCT FROM 'asked' "
        "ORDER BY time_ns, seq, key"
    )
    assert rows(unwritten, query) == [
        *[("reserved", None, "reserve")] * 2, *[("locked", None, "read")] * 2,
        *[("unlocked", None, "read")] * 2, *[("failed", "unfinished", "write")] * 2,
    ]  # fmt: skip
    query = (
        "SELECT min(l.time_ns - r.time_ns) > min(r.ttl_ns), min(r.ttl_ns) "
        "FROM block r JOIN block l USING (key) "
        "WHERE r.event = 'reserved' AND l.event = 'locked' AND r.reason IS NULL AND l.reason IS NULL"
    )
    assert rows(unwritten, query) == [(True, 1_000_000_000)]
