"""LMCache's client inside vLLM: what its lines mean, each as its source writes it."""

from __future__ import annotations

from tests.unit.sources.engine_logs.logged import BEGINS, MS, T0_NS, lmcache, read, spans, vllm

TIMED_OUT = "LOOKUP to tcp://127.0.0.1:5555 timed out after 5.0s. Marking server as unhealthy."
BEATS = "PeriodicThread lmcache-heartbeat entering main loop (interval=10.0s)"
UNHEALTHY = "LMCache server is unhealthy — entering degraded mode"
HEALTHY = "LMCache server is healthy again — resuming normal operation"
STOPS = "Stopping PeriodicThread: lmcache-heartbeat"


def test_an_inquiry_that_timed_out_ends_with_its_line_and_names_no_request() -> None:
    found = read(lmcache(7_500, TIMED_OUT))
    columns = ("op", "outcome", "reason", "request_id", "start_ns", "end_ns", "observer")
    assert spans(found, *columns, op="lookup") == [
        ("lookup", "timeout", "timeout", None, T0_NS + 2_500 * MS, T0_NS + 7_500 * MS, "client"),
    ]  # fmt: skip


def test_a_poll_that_timed_out_lasted_as_long_as_the_client_was_set_to_wait() -> None:
    late = "QUERY_PREFETCH_STATUS to tcp://127.0.0.1:5555 timed out. Marking unhealthy."
    known = read(lmcache(0, "lmcache.mp.mq_timeout = 2.0 (overridden, default: 300.0)"), lmcache(9_000, late))
    assert spans(known, "start_ns", "end_ns", op="lookup") == [(T0_NS + 7_000 * MS, T0_NS + 9_000 * MS)]
    unknown = read(lmcache(9_000, late))
    assert spans(unknown, "start_ns", "end_ns", op="lookup") == [(T0_NS + 9_000 * MS, T0_NS + 9_000 * MS)]


def test_the_cache_is_degraded_from_the_first_line_that_says_so_to_the_first_that_says_it_is_over() -> None:
    """Each of scheduler and worker says so for itself.

    heartbeat 1   timeout 5   unhealthy 8   healthy 12   healthy 13   stops 20
    |---healthy---|------- degraded --------|------------ healthy ----|
    """
    found = read(
        lmcache(1_000, BEATS), lmcache(5_000, TIMED_OUT), lmcache(8_000, UNHEALTHY), lmcache(12_000, HEALTHY),
        lmcache(13_000, HEALTHY), lmcache(20_000, STOPS),
    )  # fmt: skip
    assert spans(found, "reason", "start_ns", "end_ns", op="health") == [
        ("healthy", T0_NS + 1_000 * MS, T0_NS + 5_000 * MS),
        ("degraded", T0_NS + 5_000 * MS, T0_NS + 12_000 * MS),
        ("healthy", T0_NS + 12_000 * MS, T0_NS + 20_000 * MS),
    ]


def test_an_interval_that_no_line_ends_is_open() -> None:
    assert spans(read(lmcache(5_000, UNHEALTHY)), "reason", "end_ns", op="health") == [("degraded", None)]


def test_a_lazy_store_whose_blocks_were_reused_is_a_stale_drop_of_its_request() -> None:
    found = read(lmcache(0, "Part block hashes mismatch for request cmpl-1-0-aa, skip it"))
    assert spans(found, "op", "reason", "request_id", "outcome") == [
        ("drop", "stale", "cmpl-1-0-aa", "skipped")
    ]


def test_a_failed_transfer_is_its_requests() -> None:
    wrong = "Something went wrong when processing the {} request for request_id=cmpl-{}{}"
    found = read(
        lmcache(0, wrong.format("store", 1, ""), level="ERROR"),
        lmcache(1, wrong.format("retrieve", 2, ", result=False"), level="ERROR"),
    )
    assert spans(found, "op", "request_id", "outcome", "tier_from", "tier_to") == [
        ("store", "cmpl-1", "failed", "gpu", "host"),
        ("load", "cmpl-2", "failed", "host", "gpu"),
    ]


def test_a_bypass_is_a_remark_on_its_request_and_no_operation() -> None:
    said = "Bypassing LMCache for request cmpl-1 after a failed async KV load; the prompt will be recomputed."
    assert spans(read(lmcache(0, said)), "op", "name", "request_id") == [(None, "bypass", "cmpl-1")]


def test_preempted_until_resumed_is_a_queue_of_each_request_that_is_named() -> None:
    found = read(
        lmcache(1_000, "<preempted> by preempted requests: {'cmpl-1', \"it's\"}"),
        lmcache(3_000, "<preempted> by resumed requests: {'cmpl-1'}"),
    )
    assert spans(found, "op", "reason", "request_id", "start_ns", "end_ns", "evidence") == [
        ("queue", "preempted", "cmpl-1", T0_NS + 1_000 * MS, T0_NS + 3_000 * MS, "derived"),
    ]
    assert "preempted requests that no line resumes: 1" in found.notes


def test_a_row_names_the_line_of_code_that_wrote_it_and_its_file_as_engine() -> None:
    (row,) = read(lmcache(0, UNHEALTHY, place="adapter.py:549")).table("span")
    assert (row["attributes"]["log_line"], row["engine"]) == ("adapter.py:549", "given")


def test_a_process_of_vllm_is_told_by_its_pid_and_has_a_role() -> None:
    found = read(
        BEGINS, vllm(1, "Recovered from KV load failure: 1 request(s) rescheduled (8 tokens affected).")
    )
    assert spans(found, "process", "tokens", "op") == [("given/12", 8, None)]


def test_another_start_in_the_same_file_ends_what_the_one_before_saw() -> None:
    """Between its last line and the next start nobody looked at the cache."""
    starts = "Initializing a V1 LLM engine (v0.32.0) with config: model='m'"
    found = read(
        lmcache(1_000, UNHEALTHY), vllm(3, "Using cache"), vllm(50, starts), lmcache(60_000, BEATS),
    )  # fmt: skip
    assert spans(found, "reason", "start_ns", "end_ns", op="health") == [
        ("degraded", T0_NS + 1_000 * MS, T0_NS + 3_000 * MS),
        ("healthy", T0_NS + 60_000 * MS, None),
    ]
