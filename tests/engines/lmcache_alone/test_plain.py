"""What a healthy server records: from the lookup to the copy, every lock, and what the server is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.run import open_run
from tests.engines.lmcache_alone.server import CHUNK_TOKENS, CHUNKS, INSTANCE, RANKS

if TYPE_CHECKING:
    from tests.engines.lmcache_alone.server import Played

pytestmark = pytest.mark.engine
OBJECT_BYTES = 2 * 2 * CHUNK_TOKENS * 2 * 16 * 2  # keys and values, two layers, two heads of 16, 2 bytes each
FOUND = CHUNKS * CHUNK_TOKENS


def rows(played: Played, query: str, **values: Any) -> list[tuple[Any, ...]]:
    return open_run(played.run).sql(query, **values).rows()


def test_nothing_is_lost_and_the_spool_has_its_end(plain: Played) -> None:
    assert rows(plain, "SELECT * FROM loss") == []
    assert rows(plain, "SELECT attributes['closing_mark'] FROM process") == [("yes",)]


def test_the_client_found_everything_and_moved_it(plain: Played) -> None:
    assert plain.said == {"from_l2": [CHUNKS, []]}


def test_a_load_goes_from_lookup_to_lock_to_l2_to_l1_to_the_copy(plain: Played) -> None:
    """The whole way of one request on one time line, each step with its own time."""
    request = "below-1"
    (lookup,) = rows(
        plain, "SELECT start_ns, end_ns FROM span WHERE request_id = 'below-1' AND op = 'lookup'"
    )
    ((asked,),) = rows(
        plain, "SELECT min(time_ns) FROM block WHERE request_id = 'below-1' AND event = 'locked'"
    )
    (read,) = rows(plain, "SELECT start_ns, end_ns FROM span WHERE name = 'l2.load_task' AND request_id = $r",
                   r=request)  # fmt: skip
    ((landed,),) = rows(
        plain,
        "SELECT min(time_ns) FROM block WHERE reason = 'landed' AND event = 'locked' AND key IN ("
        "  SELECT key FROM request_key WHERE request_id = 'below-1')",
    )
    copies = rows(
        plain,
        "SELECT submit_ns, start_ns, end_ns FROM span WHERE name = 'mp.retrieve' AND request_id = 'below-1' "
        "ORDER BY start_ns",
    )
    assert len(copies) == RANKS
    steps = [lookup[0], asked, read[0], read[1], landed, lookup[1], *copies[0], *copies[1]]
    assert steps == sorted(steps)


def test_l2_is_found_in_its_own_tier(plain: Played) -> None:
    query = "SELECT request_id, found_by_tier, outcome FROM span WHERE op = 'lookup' ORDER BY start_ns"
    assert rows(plain, query) == [
        ("cold-0", {"host": 0, "disk": 0}, "miss"), ("cold-1", {"host": 0, "disk": 0}, "miss"),
        ("warm-0", {"host": FOUND, "disk": 0}, "ok"), ("below-1", {"host": 0, "disk": FOUND}, "ok"),
    ]  # fmt: skip


def test_every_byte_that_moved_is_counted_where_it_moved(plain: Played) -> None:
    query = (
        "SELECT name, tier_from, tier_to, sum(bytes)::BIGINT FROM span WHERE bytes > 0 GROUP BY ALL "
        "ORDER BY 1, 2"
    )
    prompt = RANKS * CHUNKS * OBJECT_BYTES
    assert rows(plain, query) == [
        ("l2.load_task", "disk", "host", prompt), ("l2.store", "host", "disk", 2 * prompt),
        ("mp.retrieve", "host", "gpu", 2 * prompt), ("mp.store", "gpu", "host", 2 * prompt),
    ]  # fmt: skip


def test_a_load_from_l2_says_how_many_tokens_it_brought(plain: Played) -> None:
    """Of each chunk an object a rank: six of them are three chunks."""
    query = "SELECT tokens, attributes['key_count'] FROM span WHERE name = 'l2.load_task'"
    assert rows(plain, query) == [(CHUNKS * CHUNK_TOKENS, str(RANKS * CHUNKS))]


def test_a_requests_keys_are_those_that_are_locked_for_it(plain: Played) -> None:
    query = (
        "SELECT count(*), count(DISTINCT position), min(tokens), max(tokens), "
        "count(*) FILTER (key NOT IN (SELECT key FROM block WHERE event = 'locked' AND request_id = $r)) "
        "FROM request_key WHERE request_id = $r AND attempt = 1"
    )
    for request in ("cold-0", "warm-0", "below-1"):
        assert rows(plain, query, r=request) == [(CHUNKS, CHUNKS, CHUNK_TOKENS, CHUNK_TOKENS, 0)]


def test_every_lock_of_a_hit_is_released_once_a_reader(plain: Played) -> None:
    """By counts of calls: warm-0 locks each of its objects once, its reader releases it."""
    query = (
        "WITH asked AS (SELECT * FROM block WHERE reason = 'asked') "
        "SELECT l.key, l.rank, l.count, sum(u.count)::BIGINT FROM asked l JOIN asked u USING (key, rank) "
        "WHERE l.event = 'locked' AND l.request_id = 'warm-0' AND u.event = 'unlocked' GROUP BY ALL"
    )
    found = rows(plain, query)
    assert len(found) == RANKS * CHUNKS
    assert {(taken, released) for *_, taken, released in found} == {(1, 1)}


def test_the_prefix_that_went_to_l2_is_tied_to_its_request(plain: Played) -> None:
    query = (
        "SELECT request_id, attributes['prefetch_id'] FROM span "
        "WHERE name = $name AND request_id IS NOT NULL ORDER BY start_ns"
    )
    tied = dict(rows(plain, query, name="prefetch.submitted"))
    assert tied["warm-0"] == "-1"
    below = {request: number for request, number in tied.items() if number != "-1"}
    assert dict(rows(plain, query, name="l2.prefetch.lookup")) == below
    assert rows(plain, query, name="l2.load_task") == [("below-1", below["below-1"])]


def test_what_was_cleared_by_force_says_so(plain: Played) -> None:
    assert rows(plain, "SELECT event, reason, evidence FROM block WHERE event = 'cleared'") == [
        ("cleared", "force", "shim")
    ]


def test_the_run_says_what_the_server_is(plain: Played) -> None:
    engine = json.loads((plain.run / "run.json").read_text())["engines"][INSTANCE]
    known = {
        "product": "lmcache", "version": "0.5.5", "chunk_size": "64", "hash_algorithm": "blake3",
        "transfer_mode": "lmcache_driven", "server_mode": "default", "read_ttl_seconds": "300",
        "write_ttl_seconds": "600", "eviction_policy": "LRU", "store_policy": "default",
        "prefetch_policy": "default", "l1_medium": "dram", "l2.0.type": "fs",
    }  # fmt: skip
    assert {name: engine.get(name) for name in known} == known
    assert "base_path" not in " ".join(engine)
    ((role, instruments),) = rows(plain, "SELECT role, instruments FROM process")
    assert role == "server"
    others = {name: state for name, state in instruments.items() if state != "active"}
    assert {name for name, state in others.items() if not state.startswith("not here")} == set()
    wrapped = {"event bus of LMCache", "EventBus.start", "StorageManager.submit_prefetch_task"}
    assert wrapped <= instruments.keys() - others.keys()


def test_it_says_what_of_its_keys_nobody_checks(plain: Played) -> None:
    query = "SELECT field, enforced_by FROM identity WHERE identity_id = $name AND side = 'writer'"
    enforced = dict(rows(plain, query, name=INSTANCE))
    assert (enforced["chunk_size"], enforced["model"], enforced["engine_version"]) == ("key", "key", "nobody")


def test_the_bus_is_alive_all_the_time(plain: Played) -> None:
    query = "SELECT count(*) > 3, max(value) < 1000 FROM metric WHERE name = 'lmcache.event_bus.queue_depth'"
    assert rows(plain, query) == [(True, True)]
    ((ticks,),) = rows(plain, "SELECT count(*) FROM metric WHERE name = 'lmcache.l1.usage_ratio'")
    assert ticks > 3


def test_at_its_end_nothing_is_locked_and_nothing_under_way(plain: Played) -> None:
    query = (
        "SELECT split_part(name, '.', -1), value FROM metric WHERE name LIKE 'lmcache_status.%' ORDER BY 1"
    )
    left = dict(rows(plain, query))
    assert left.pop("total_object_count") >= 0
    assert left == dict.fromkeys(
        (
            "active_prefetch_jobs",
            "active_sessions",
            "read_locked_count",
            "temporary_count",
            "write_locked_count",
        ),
        0.0,
    )
