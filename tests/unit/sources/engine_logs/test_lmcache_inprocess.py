"""LMCache inside the engine, without a server: what its lines mean, each as its source writes it."""

from __future__ import annotations

import pytest
from tests.unit.sources.engine_logs.logged import MS, T0_NS, lmcache, read, spans

ASKED = "Reqid: cmpl-1, Total tokens 1500, Inference Engine computed tokens: 128, LMCache hit tokens: {}, {}"


@pytest.mark.parametrize(
    ("hit", "rest", "outcome"),
    [
        (0, "need to load: 0", "miss"),
        (1280, "need to load: 1152", "partial"),
        (1500, "need to load: 1371", "ok"),
        (256, "but need to load: 128 < min_retrieve 200, skip retrieve but record for save skip", "partial"),
    ],
)
def test_every_inquiry_has_a_line_with_what_was_asked_and_found(hit: int, rest: str, outcome: str) -> None:
    found = read(lmcache(1_000, ASKED.format(hit, rest)))
    columns = ("op", "request_id", "requested_tokens", "found_tokens", "outcome", "observer")
    assert spans(found, *columns) == [("lookup", "cmpl-1", 1500, hit, outcome, "client")]
    (row,) = found.table("span")
    assert row["attributes"]["computed_tokens"] == "128"


def test_a_transfer_is_its_requests_and_lasted_its_cost() -> None:
    load = (
        "[req_id=cmpl-1] Retrieved 1152 out of 1152 required tokens (from 1500 total tokens). size: "
        "0.0022 gb, cost 1.9000 ms, throughput: 1.1 GB/s;"
    )
    store = (
        "[req_id=cmpl-1] Stored 1280 out of total 1500 tokens. size: 0.0024 GB, cost 3.0000 ms, throughput: "
        "0.8 GB/s; offload_time: 2.1 ms, put_time: 0.2 ms"
    )
    found = read(lmcache(1_000, load), lmcache(2_000, store))
    columns = ("op", "request_id", "tokens", "start_ns", "end_ns", "outcome", "tier_from", "tier_to", "bytes")
    assert spans(found, *columns) == [
        ("load", "cmpl-1", 1152, T0_NS + 998_100_000, T0_NS + 1_000 * MS, "ok", "unknown", "gpu", None),
        ("store", "cmpl-1", 1280, T0_NS + 1_997 * MS, T0_NS + 2_000 * MS, "ok", "gpu", "unknown", None),
    ]


@pytest.mark.parametrize(("tokens", "outcome"), [(0, "failed"), (256, "partial"), (1152, "ok")])
def test_a_load_that_brought_less_than_was_required_is_partial_or_failed(tokens: int, outcome: str) -> None:
    line = f"[req_id=cmpl-1] Retrieved {tokens} out of 1152 out of total 1500 tokens"
    assert spans(read(lmcache(0, line)), "op", "tokens", "outcome") == [("load", tokens, outcome)]


def test_an_async_lookup_that_waited_too_long_timed_out_for_its_request() -> None:
    said = (
        "Request cmpl-1 is still waiting for async lookup after 3 seconds, returning 0 lmcache cached tokens"
    )
    columns = ("op", "request_id", "outcome", "start_ns", "end_ns")
    assert spans(read(lmcache(5_000, said)), *columns) == [
        ("lookup", "cmpl-1", "timeout", T0_NS + 2_000 * MS, T0_NS + 5_000 * MS),
    ]


def test_an_unhealthy_cache_is_skipped_and_the_monitor_says_from_when_to_when() -> None:
    found = read(
        lmcache(0, "Started health monitor thread with 1 active checks, interval: 10s"),
        lmcache(1_000, "HealthMonitor: System unhealthy, entering degraded mode"),
        lmcache(2_000, "LMCache is unhealthy, skipping lookup operation"),
        lmcache(2_001, "LMCache is unhealthy, skipping store operation"),
        lmcache(2_002, "LMCache is unhealthy, skipping retrieve_layer operation"),
        lmcache(3_000, "HealthMonitor: System recovered, restoring normal operations"),
    )
    assert spans(found, "reason", "end_ns", op="health") == [
        ("healthy", T0_NS + 1_000 * MS), ("degraded", T0_NS + 3_000 * MS), ("healthy", None),
    ]  # fmt: skip
    skipped = spans(found, "op", "reason", outcome="skipped")
    assert skipped == [("lookup", "unhealthy"), (None, None), (None, None)]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Local cpu memory under pressure so choosing to store only  3 total chunks of KV cache.",
         (None, None, "partial", None)),
        ("Local cpu memory under pressure so choosing to not store the KV cache.",
         (None, None, "skipped", None)),
        ("Skipping KV save for request cmpl-1: slot_mapping/token_ids length mismatch",
         ("drop", "unknown", "skipped", "cmpl-1")),
        ("Request cmpl-1 failed to load 256 tokens across 2 blocks", (None, None, "failed", "cmpl-1")),
        ("Force unpinned 2 timeout objects in 7 pinned_objects within 300 seconds", (None, None, None, None)),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_a_row(message: str, expected: tuple[str | None, ...]) -> None:
    assert spans(read(lmcache(0, message)), "op", "reason", "outcome", "request_id") == [expected]
