"""LMCache's server: what its lines mean, each as its source writes it."""

from __future__ import annotations

import pytest
from tests.unit.sources.engine_logs.logged import MS, T0_NS, lmcache, samples, served, spans

HASHER = "TokenHasher initialized: chunk_size=256, hash_algorithm=blake3"
WORKER = "Registered KV cache for GPU ID {} with 4 layers"
GROUP = "Group {} first-layer tensor: layer_idx=0 shape=(40, 4, 128, 64)"
FOUND = (
    "Prefetch request completed (L1+L2): 5/6 retained keys (2 L1, 3 L2) in 8.4 ms "
    "(external_request_id=cmpl-1-0-aa, prefetch_request_id=5)"
)

NO_ROOM = (
    "Failed to batched allocate 5 memory blocks of size 8 because no enough memory is available (short by 1 "
    "blocks)"
)


def test_a_transfer_ends_with_its_line_lasted_as_it_says_and_is_nobodys_so_no_operation() -> None:
    found = served(
        lmcache(1_000, "Stored 1280 tokens in 0.009 seconds"),
        lmcache(2_000, "Retrieved 768 tokens in 0.003 seconds"),
    )
    columns = ("op", "name", "tokens", "start_ns", "end_ns", "tier_from", "tier_to", "bytes")
    assert spans(found, *columns) == [
        (None, "Stored", 1280, T0_NS + 991 * MS, T0_NS + 1_000 * MS, "gpu", "host", None),
        (None, "Retrieved", 768, T0_NS + 1_997 * MS, T0_NS + 2_000 * MS, "host", "gpu", None),
    ]  # fmt: skip


def test_keys_that_were_found_are_tokens_where_one_worker_with_one_group_had_registered() -> None:
    found = served(
        lmcache(0, HASHER), lmcache(1, GROUP.format(0)), lmcache(2, WORKER.format(7)), lmcache(100, FOUND)
    )
    columns = ("request_id", "requested_tokens", "found_tokens", "found_by_tier", "outcome", "start_ns")
    assert spans(found, *columns, op="lookup") == [
        ("cmpl-1-0-aa", 1536, 1280, {"host": 512, "unknown": 768}, "partial", T0_NS + 91_600_000),
    ]


@pytest.mark.parametrize(
    "before",
    [
        [HASHER, WORKER.format(7), WORKER.format(8)],
        [HASHER, WORKER.format(7), GROUP.format(0), GROUP.format(1)],
        [WORKER.format(7)],
        [HASHER],
    ],
    ids=["two workers", "two groups", "no chunk size", "nobody registered"],
)
def test_keys_are_no_tokens_where_it_is_not_known_how_many_a_chunk_has(before: list[str]) -> None:
    found = served(*(lmcache(0, message) for message in before), lmcache(100, FOUND))
    ((keys, tokens),) = [
        (row["attributes"]["keys"], row.get("found_tokens")) for row in found.table("span", op="lookup")
    ]
    assert (keys, tokens) == ("5", None)


def test_a_worker_that_went_does_not_count() -> None:
    found = served(
        lmcache(0, HASHER), lmcache(1, WORKER.format(7)), lmcache(2, "Unregistered KV cache for GPU ID 7"),
        lmcache(3, WORKER.format(8)), lmcache(100, FOUND),
    )  # fmt: skip
    assert spans(found, "found_tokens", op="lookup") == [(1280,)]


def test_an_eviction_that_is_triggered_is_a_point_and_its_usage_a_gauge() -> None:
    found = served(lmcache(0, "L1 memory usage 0.92 above watermark 0.80; triggering eviction."))
    assert spans(found, "op", "reason", "component", "outcome") == [
        ("evict", "capacity", "lmcache.l1", "unknown")
    ]
    assert samples(found) == {"lmcache_log.usage_ratio": 0.92}


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Some keys not found during retrieve!", (None, "failed", None, None)),
        ("Cannot store keys due to exception", (None, "failed", None, None)),
        ("Cannot retrieve keys due to exception", (None, "failed", None, None)),
        ("Rejecting STORE for unregistered GPU instance ID 7", (None, "failed", None, None)),
        ("Rejecting RETRIEVE for unregistered GPU instance ID 7", (None, "failed", None, None)),
        ("STORE block ID underflow for request_id=r 1: each group", ("store", "failed", "unknown", "r 1")),
        ("Store task 3 to adapter 0 failed for keys: [..]", (None, "failed", None, None)),
        ("L1Manager: cleared 12 objects, 3 locked objects remaining.", ("evict", "ok", "cleared", None)),
        ("Session cmpl-1 has no lookup ipc key, skipping touch", (None, "failed", None, "cmpl-1")),
        ("L1Manager: finish read on non-read-locked key K, potential", (None, "failed", None, None)),
        ("No GPU context found for model m with world size 1 during lookup!",
         ("lookup", "skipped", "no_context", None)),
        ("Error handling request RequestType.REGISTER_KV_CACHE", (None, "failed", None, None)),
        (NO_ROOM, (None, "failed", None, None)),
        ("Reaped GPU instance 7: silent for 90.1s (pinged=True)", (None, None, None, None)),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_a_row(message: str, expected: tuple[str | None, ...]) -> None:
    assert spans(served(lmcache(0, message)), "op", "outcome", "reason", "request_id") == [expected]


def test_a_memory_check_is_gauges() -> None:
    found = served(lmcache(0, "L1Manager memcheck: total objects = 12, write-locked = 1, read-locked = 2"))
    assert samples(found) == {
        "lmcache_log.l1.objects": 12.0, "lmcache_log.l1.write_locked": 1.0, "lmcache_log.l1.read_locked": 2.0,
    }  # fmt: skip


def test_the_server_is_told_by_the_pid_that_its_http_server_writes() -> None:
    found = served("INFO:     Started server process [77]", lmcache(0, "Stored 8 tokens in 0.001 seconds"))
    assert spans(found, "process") == [("given/77",)]
