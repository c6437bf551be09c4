"""What vLLM and LMCache report of themselves, of every recording with their pages of metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.analyses.engine_numbers import engine_numbers

if TYPE_CHECKING:
    from kvtrace.run import Run

TOKENS = (
    "vllm:external_prefix_cache_hits_total",
    "vllm:external_prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:prefix_cache_queries_total",
    'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}',
    'vllm:prompt_tokens_by_source_total{source="local_cache_hit"}',
    'vllm:prompt_tokens_by_source_total{source="local_compute"}',
    "usage.prompt_tokens_details.cached_tokens",
    "vllm:num_preemptions_total",
    "vllm:request_success_total",
)
QUEUES = ("vllm:request_queue_time_seconds_sum", "gen_ai.latency.time_in_queue")
LMCACHE = ("lmcache_mp.lookup_hit", "lmcache_mp.lookup_requested", "lmcache_mp.num_finished_stores")


def numbers(run: Run) -> dict[str, dict[str, Any]]:
    """Number -> its row."""
    return {row["number"]: row for row in engine_numbers(run).to_dicts()}


def what_vllm_counts_agrees(run: Run) -> None:
    """No load failed and nobody was preempted: to the token."""
    found = numbers(run)
    for name in TOKENS:
        row = found[name]
        assert (row["agrees"], row["difference"], row["reason"]) == (True, 0, None), row


def the_queue_time_holds_loads_and_lookups(run: Run, *, loads: bool = True) -> None:
    """Of the histogram and of the spans alike: what it says beyond the queue is theirs."""
    found = numbers(run)
    for name in QUEUES:
        row = found[name]
        assert row["agrees"] is False, row
        assert row["difference"] > 0
        assert ("in it are loads of" in row["reason"]) == loads
        assert "unexplained" not in row["reason"]
    assert found[QUEUES[0]]["reported"] == found[QUEUES[1]]["reported"]


def lmcaches_numbers_are_explained(run: Run) -> None:
    """What was found and not loaded, what was asked for behind the last chunk, stores that kept nothing."""
    found = numbers(run)
    for name in LMCACHE:
        assert found[name]["difference"] is not None
        assert "unexplained" not in (found[name]["reason"] or ""), found[name]
    assert found["lmcache_mp.lookup_requested"]["difference"] < 0
