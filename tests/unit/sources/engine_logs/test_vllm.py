"""vLLM: what its lines mean, each as its source writes it."""

from __future__ import annotations

import pytest
from tests.unit.sources.engine_logs.logged import BEGINS, T0_NS, lmcache, read, samples, spans, vllm

PERIODIC = (
    "Engine 001: Avg prompt throughput: 696.1 tokens/s, Avg generation throughput: 5.6 tokens/s, "
    "Running: 3 reqs, Waiting: 2 reqs, Deferred: 1 reqs, KV fetch: 4 waiting to start, 5 in progress, "
    "6 completed waiting, Preemptions: 7, GPU KV cache usage: 92.3%, Prefix cache hit rate: 26.4%, "
    "External prefix cache hit rate: 21.1%"
)


def test_a_periodic_line_is_a_gauge_for_each_of_its_numbers_in_its_own_unit() -> None:
    found = read(BEGINS, vllm(5, PERIODIC, name="APIServer"))
    assert samples(found) == {
        "vllm_log.avg_prompt_throughput_tokens_per_s": 696.1,
        "vllm_log.avg_generation_throughput_tokens_per_s": 5.6,
        "vllm_log.running_reqs": 3.0,
        "vllm_log.waiting_reqs": 2.0,
        "vllm_log.deferred_reqs": 1.0,
        "vllm_log.kv_fetch_waiting_reqs": 4.0,
        "vllm_log.kv_fetch_in_progress_reqs": 5.0,
        "vllm_log.kv_fetch_completed_reqs": 6.0,
        "vllm_log.preemptions_count": 7.0,
        "vllm_log.gpu_kv_cache_usage_percent": 92.3,
        "vllm_log.prefix_cache_hit_rate_percent": 26.4,
        "vllm_log.external_prefix_cache_hit_rate_percent": 21.1,
    }
    row = found.table("metric")[0]
    assert row["time_ns"] == T0_NS + 5_000_000_000
    assert row["labels"] == {"engine": "1", "kvtrace.source": "given"}


@pytest.mark.parametrize(
    "said",
    [
        "vllm:kv_offload_store_bytes=11534336, Num failed=0",
        "C={'vllm:kv_offload_store_bytes': 11534336, 'Num failed': 0}",
    ],
    ids=["one connector", "several"],
)
def test_transfer_metrics_are_gauges_of_the_time_since_the_last_line(said: str) -> None:
    found = read(BEGINS, vllm(5, f"KV Transfer metrics: {said}"))
    assert samples(found) == {
        "vllm_log.kv_transfer.vllm:kv_offload_store_bytes": 11534336.0,
        "vllm_log.kv_transfer.num_failed": 0.0,
    }


def test_an_iteration_is_no_step_because_nobody_says_whom_it_served() -> None:
    line = (
        "Engine 000: Iteration(7): 1 context requests, 1500 context tokens, 2 generation requests, "
        "2 generation tokens, iteration elapsed time: 250.00 ms, GPU KV cache usage: 3.1%"
    )
    found = read(BEGINS, vllm(5, line))
    assert spans(found, "op", "name", "start_ns", "end_ns") == [
        (None, "Iteration", T0_NS + 4_750_000_000, T0_NS + 5_000_000_000)
    ]
    assert found.table("span")[0]["attributes"]["context_tokens"] == "1500"


def test_requests_that_fail_with_their_load_have_a_failed_load_each() -> None:
    line = (
        "Failing 2 request(s) due to KV load failure (failure_policy=fail, 512 tokens affected). "
        "Request IDs: {'cmpl-1', 'cmpl-2'}"
    )
    assert sorted(spans(read(BEGINS, vllm(5, line)), "request_id", "op", "outcome")) == [
        ("cmpl-1", "load", "failed"), ("cmpl-2", "load", "failed"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Request cmpl-1: cannot store chunks", ("drop", "skipped", "no_room", "cmpl-1")),
        ("Recovered from KV load failure: 1 request(s) rescheduled (512 tokens affected).",
         (None, "failed", None, None)),
        ("Sequence group cmpl-1 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough",
         (None, "failed", None, "cmpl-1")),
        ("Releasing expired KV blocks for request cmpl-1 which were retrieved by 0 remote worker(s)",
         (None, "timeout", None, "cmpl-1")),
        ("Request cmpl-1 timed out after 480 seconds without being sent. Freeing its blocks",
         (None, "timeout", None, "cmpl-1")),
    ],
)  # fmt: skip
def test_what_goes_wrong_is_a_row(message: str, expected: tuple[str | None, ...]) -> None:
    assert spans(read(BEGINS, vllm(5, message)), "op", "outcome", "reason", "request_id") == [expected]


def test_the_pool_is_a_gauge() -> None:
    said = "GPU KV cache size: 5,120 tokens, Maximum concurrency for 4,096 tokens per request: 1.25x"
    assert samples(read(BEGINS, vllm(5, said))) == {"vllm_log.kv_cache_size_tokens": 5120.0}


def test_a_line_of_vllm_alone_has_no_time_where_no_year_is_known_and_is_a_loss() -> None:
    found = read(vllm(5, "Request cmpl-1: cannot store chunks"))
    assert found.table("span") == []
    assert found.lost() == {"impossible_time": 1}


def test_an_engine_that_dies_is_a_row_and_looks_at_its_cache_no_more() -> None:
    found = read(
        BEGINS,
        lmcache(1_000, "LMCache server is unhealthy — entering degraded mode"),
        vllm(5, "EngineCore encountered a fatal error."),
    )
    end_ns = T0_NS + 5_000_000_000
    assert spans(found, "op", "name", "end_ns") == [
        (None, "engine died", end_ns),
        ("health", "cache health", end_ns),
    ]
