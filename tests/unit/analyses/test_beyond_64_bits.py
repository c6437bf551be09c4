"""Numbers that no engine has and a file can hold: sums beyond 64 bits are null, and nothing breaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kvtrace.analyses import question
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

Row = dict[str, Any]
HUGE = 2**62
SPACE = "dynamo:engine:unknown"
ASKED: Row = {
    "op": "request", "request_id": "r0", "start_ns": 100, "end_ns": 200, "engine": "e0", "process": "p0",
    "observer": "api", "evidence": "native", "prompt_tokens": HUGE,
}  # fmt: skip
KEYS = [
    {"request_id": "r0", "position": n, "key": f"k{n}", "key_space": SPACE, "tokens": HUGE} for n in range(4)
]
STORED = [
    {"time_ns": 110 + n, "event": "stored", "tier": "host", "component": "dynamo.host_pinned", "seq": n,
     "key": f"k{n}", "key_space": SPACE, "tokens": HUGE, "bytes": HUGE, "engine": "e0", "evidence": "native"}
    for n in range(4)
]  # fmt: skip
STORES = [
    {"op": "store", "request_id": "r0", "start_ns": 120 + n, "end_ns": 130 + n, "tier_from": "gpu",
     "tier_to": "host", "tokens": HUGE, "bytes": HUGE, "engine": "e0", "process": "p0", "observer": "worker",
     "transfer_id": f"t{n}", "evidence": "native"}
    for n in range(4)
]  # fmt: skip
LOOKUP: Row = {
    "op": "lookup", "request_id": "r0", "start_ns": 105, "end_ns": 106, "found_tokens": 0, "engine": "e0",
    "process": "p0", "observer": "scheduler", "evidence": "native",
}  # fmt: skip
STEPS = [
    {"op": "step", "start_ns": 140 + n, "end_ns": 141 + n, "engine": "e0", "process": "p0",
     "observer": "scheduler", "evidence": "shim", "members": [{
        "request_id": "r0", "phase": "prefill", "scheduled_tokens": 2**63 - 1, "computed_before": HUGE - 1}]}
    for n in range(2)
]  # fmt: skip
BLOCKS = {"device_blocks": str(HUGE), "host_pinned_blocks": str(HUGE), "disk_blocks": str(HUGE)}
ROUTE: Row = {
    "op": "route", "request_id": "r0", "start_ns": 101, "end_ns": 102, "engine": "e0", "observer": "router",
    "evidence": "native", "attributes": {**BLOCKS, "effective_blocks": "1e300"},
}  # fmt: skip
SAMPLES = [
    {"name": "dynamo_component_kv_cache_events_applied_total", "value": float("inf"), "kind": "counter",
     "labels": {"status": "ok"}},
    {"name": "lmcache_status.storage_manager.l1_manager.total_object_count", "value": 1e300, "kind": "gauge"},
]  # fmt: skip
QUESTIONS = (
    "hit_funnel", "hit_ratio", "ledger", "store_lag", "missed_by_lag", "four_events", "visibility",
    "residency", "miss_ratio_curve", "slo", "waste",
)  # fmt: skip


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Run:
    spans = [{"span_id": n, **row} for n, row in enumerate([ASKED, *STORES, LOOKUP, *STEPS, ROUTE], 1)]
    return write_run(
        tmp_path_factory.mktemp("huge") / "run", span=spans, request_key=KEYS, block=STORED, metric=SAMPLES
    )


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_has_an_answer(huge: Run, name: str) -> None:
    assert question(name)(huge) is not None


def test_tokens_beyond_64_bits_are_null(huge: Run) -> None:
    assert question("store_lag")(huge)["stored_tokens"].to_list() == [None]
    assert question("residency")(huge).filter(tier="host", component="dynamo.host_pinned")[
        "tokens"
    ].to_list() == [HUGE, None, None, None]
    (route,) = huge.sql("SELECT found_tokens, found_by_tier['gpu'], predicted_tokens FROM route").rows()
    assert route == (None, None, None)
    assert question("visibility")(huge).filter(backend="dynamo")["applied"].to_list() == [None]


def test_a_steps_tokens_beyond_the_prompt_are_those_up_to_its_end(tmp_path: Path) -> None:
    asked = {**ASKED, "gpu_hit_tokens": HUGE - 1}
    run = write_run(tmp_path / "run", span=[asked, STEPS[0]])
    (row,) = question("hit_funnel")(run).to_dicts()
    assert (row["loaded_tokens"], row["computed_tokens"]) in {(0, 1), (0, None)}
