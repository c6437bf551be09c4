"""SGLang's metrics files: one request, in seconds of the day.

received 100.0 |---[== queue ==|-- forward --|---- first token 100.5 ----| finished 102.0
                  100.1      100.3                       device 64 | host 32 | storage 16 | computed 88
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from kvtrace.sources import sglang_request_metrics
from kvtrace.sources.sglang_words import room, storage
from tests.unit.sources.given import Found, given

S = 1_000_000_000
DETAILS = {"device": 64, "host": 32, "storage": 16, "storage_backend": "HiCacheFile"}


def record(**more: Any) -> dict[str, Any]:
    asked = {"text": "a secret prompt", "stream": True, "sampling_params": {"max_new_tokens": 12}}
    asked |= more.pop("asked", {})
    found = {
        "request_parameters": json.dumps(asked), "id": "r0", "finish_reason": {"type": "stop", "matched": 2},
        "prompt_tokens": 200, "weight_version": "default", "num_retractions": 0,
        "storage_prefetch_wait": 0.05, "storage_staging_wait": 0.0, "forward_entry_time": 100.3,
        "prefill_finished_time": 100.45, "queue_time": 0.2, "reasoning_tokens": 0, "completion_tokens": 12,
        "cached_tokens": 112, "cached_tokens_details": DETAILS, "e2e_latency": 2.0,
        "request_received_ts": 100.0, "first_token_latency": 0.5, "request_finished_ts": 102.0,
    } | more  # fmt: skip
    return {name: value for name, value in found.items() if value is not ...}


def read(*records: Any) -> Found:
    return given(sglang_request_metrics, *records)


def request(**more: Any) -> dict[str, Any]:
    (row,) = read(record(**more)).table("span", op="request")
    return row


def test_a_request_has_its_times_tokens_and_gpu_hit() -> None:
    row = request()
    assert (row["request_id"], row["id_kind"], row["engine"], row["observer"], row["evidence"]) == (
        "r0", "internal", "sglang", "api", "native",
    )  # fmt: skip
    assert (row["start_ns"], row["first_token_ns"], row["end_ns"]) == (
        100 * S, 100 * S + S // 2, 102 * S,
    )  # fmt: skip
    counted = ("prompt_tokens", "output_tokens", "gpu_hit_tokens", "reported_cached_tokens", "status")
    assert [row[name] for name in counted] == [200, 12, 64, 112, "ok"]
    said = dict(row["attributes"])
    assert said["storage_prefetch_wait"] == "0.05"
    assert said["max_new_tokens"] == "12"


def test_what_was_used_of_each_tier_is_a_load_without_times() -> None:
    loads = read(record()).table("span", op="load")
    named = ("tier_from", "tier_to", "tokens", "component", "purpose")
    assert [tuple(row[name] for name in named) for row in loads] == [
        ("host", "gpu", 48, "hicache.l2", "reuse"), ("disk", "host", 16, "hicache.l3.file", "prefetch"),
    ]  # fmt: skip
    assert {row["outcome"] for row in loads} == {"ok"}
    assert not any("start_ns" in row or "end_ns" in row for row in loads)


def test_tiers_that_gave_nothing_have_no_load() -> None:
    found = read(record(cached_tokens=64, cached_tokens_details={"device": 64, "host": 0}))
    assert found.table("span", op="load") == []


@pytest.mark.parametrize(
    ("changed", "hit"),
    [
        ({"cached_tokens": 0, "cached_tokens_details": None}, 0),
        ({"cached_tokens": 0, "cached_tokens_details": ...}, 0),
        ({"cached_tokens_details": None}, None),
        ({"cached_tokens_details": {"device": -1}}, None),
        ({"cached_tokens_details": {"device": True}}, None),
        ({"cached_tokens": ..., "cached_tokens_details": ...}, None),
    ],
)
def test_a_gpu_hit_that_nobody_said_is_null(changed: dict[str, Any], hit: int | None) -> None:
    assert request(**changed).get("gpu_hit_tokens") == hit


def test_the_wait_before_the_first_forward_is_its_queue() -> None:
    (row,) = read(record()).table("span", op="queue")
    assert (row["start_ns"], row["end_ns"]) == (100_100_000_000, 100_300_000_000)
    assert (row["reason"], row["evidence"], row["observer"]) == ("unknown", "derived", "scheduler")


def test_the_summed_waits_of_a_retracted_request_are_no_interval() -> None:
    found = read(record(num_retractions=2))
    assert found.table("span", op="queue") == []
    assert any("retracted" in note for note in found.notes)
    assert found.losses == []


@pytest.mark.parametrize(
    "changed", [{"queue_time": -1.0}, {"queue_time": 3.0}, {"forward_entry_time": 109.0}]
)
def test_a_queue_that_cannot_be_is_counted(changed: dict[str, Any]) -> None:
    found = read(record(**changed))
    assert (found.table("span", op="queue"), found.lost()) == ([], {"negative_duration": 1})


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ({"type": "length", "length": 12}, "ok"),
        ({"type": "abort", "message": "gone"}, "aborted"),
        ({"type": "abort", "message": "no", "status_code": 503}, "error"),
        ("stop", "ok"),
        (None, None),
        ([], None),
    ],
)
def test_a_finish_reason_is_a_status(reason: Any, status: str | None) -> None:
    assert request(finish_reason=reason).get("status") == status


def test_a_time_that_is_missing_follows_from_the_latency() -> None:
    assert request(request_finished_ts=...)["end_ns"] == 102 * S
    assert request(request_received_ts=...)["start_ns"] == 100 * S


def test_without_metrics_there_are_no_times_and_no_row() -> None:
    found = read(record(request_received_ts=..., request_finished_ts=...))
    assert (found.rows, found.lost()) == ({}, {"impossible_time": 1})


def test_the_prompt_is_counted_and_dropped() -> None:
    found = read(record(), record(asked={"text": None, "input_ids": [77_001]}, id="r1"))
    assert found.content == {"text": 1, "input_ids": 1}
    assert "secret" not in repr(found)
    assert "77001" not in repr(found)


def test_halves_of_a_request_share_a_room_and_a_handed_over_hit_is_nobodys_second() -> None:
    asked = {"bootstrap_room": 0x1F}
    prefill = record(asked=asked, completion_tokens=1)
    found = read(prefill, record(asked=asked, id="r1"))
    first, second = found.table("span", op="request")
    assert (first["user_request_id"], second["user_request_id"]) == ("0x1f", "0x1f")
    assert (first["gpu_hit_tokens"], second.get("gpu_hit_tokens")) == (64, None)
    assert second.get("reported_cached_tokens") is None
    assert dict(second["attributes"])["cached_tokens_details.host"] == "32"
    assert {row["request_id"] for row in found.table("span", op="load")} == {"r0"}


def test_a_data_parallel_rank_is_an_engine_of_its_own() -> None:
    assert request(dp_rank=3)["engine"] == "sglang/dp3"
    assert request(dp_rank=0)["engine"] == "sglang"


def test_the_external_tiers_are_an_identity() -> None:
    parts = list(sglang_request_metrics.Records("f").identities("f"))
    assert parts == []
    taker = sglang_request_metrics.Records("f")
    taker.take(record())
    assert [(row["identity_id"], row["field"], row["value"]) for row in taker.identities("f")] == [
        ("sglang:hicache", "host_memory", "pinned"), ("sglang:hicache", "storage_backend", "file"),
    ]  # fmt: skip


def test_fields_that_nobody_knows_are_named() -> None:
    (note,) = read(record(new_field=1)).notes
    assert "'new_field' (1)" in note


@pytest.mark.parametrize("bad", [[], 1, {}, {"request_parameters": "{}"}, record(id=7)])
def test_what_is_no_request_is_counted(bad: Any) -> None:
    found = read(bad)
    assert (found.rows, found.lost()) == ({}, {"undecodable": 1})


def test_it_is_told_by_its_first_field_however_long_the_prompt() -> None:
    line = json.dumps(record(asked={"text": "x" * 99_999})).encode()
    assert sglang_request_metrics.looks_like(line[: 1 << 16])
    assert not sglang_request_metrics.looks_like(b'{"request_parameters": 1}')


@pytest.mark.parametrize(
    ("backend", "tier", "component"),
    [
        ("HiCacheFile", "disk", "hicache.l3.file"),
        ("mooncake", "object", "hicache.l3.mooncake"),
        ("LMCache", "unknown", "hicache.l3.LMCache"),
        (None, "unknown", "hicache.l3"),
    ],
)
def test_a_storage_backend_is_a_tier(backend: str | None, tier: str, component: str) -> None:
    assert storage(backend) == (tier, component)


def test_a_room_is_one_text_in_every_source() -> None:
    assert [room(each) for each in (31, "0x1f", None, 0, True, 2**64)] == [
        "0x1f", "0x1f", None, None, None, None,
    ]  # fmt: skip
