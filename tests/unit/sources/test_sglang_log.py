"""SGLang's log: the sentences of 0.5.18 and 0.5.23, each with the row that it is."""

from __future__ import annotations

from typing import Any

import pytest
from kvtrace.sources import sglang_log
from kvtrace.sources.sglang_log.reading import Log
from tests.unit.sources.given import Found, decoded

AT = 1_796_025_600_000_000_000
"""2026-11-30 08:00:00 UTC."""
S = 1_000_000_000
FILE = (
    "server_args=ServerArgs(model_path='tiny', page_size=64, hicache_write_policy='write_back', "
    "hicache_storage_backend='file', kv_cache_dtype='auto', tp_size=2)"
)
SUCCESS = "HiCache prefetch success req=r0 completed=1024 matched=256 loaded=768 occupied=0"


def said(*messages: str, prefix: str = "2026-11-30 08:00:00") -> Found:
    return decoded(sglang_log, "".join(f"[{prefix}] {each}\n" for each in messages).encode())


def row(*messages: str) -> dict[str, Any]:
    (found,) = said(*messages).table("span")
    return found


def test_a_prefetch_is_a_load_into_host_memory_at_the_end_of_it() -> None:
    found = row(FILE, SUCCESS)
    named = ("op", "request_id", "purpose", "tier_from", "tier_to", "component", "tokens", "outcome")
    assert [found[name] for name in named] == [
        "load", "r0", "prefetch", "disk", "host", "hicache.l3.file", 768, "ok",
    ]  # fmt: skip
    assert (found["start_ns"], found["end_ns"], found["observer"]) == (AT, AT, "scheduler")
    assert dict(found["attributes"])["matched"] == "256"


def test_without_its_beginning_a_log_names_no_storage() -> None:
    assert (row(SUCCESS)["tier_from"], row(SUCCESS)["component"]) == ("unknown", "hicache.l3")


@pytest.mark.parametrize(
    "backend", ["Attaching HiCache storage backend: mooncake", "Creating storage backend 'mooncake' (a.b)"]
)
def test_a_backend_may_also_be_attached(backend: str) -> None:
    assert row(backend, SUCCESS)["component"] == "hicache.l3.mooncake"


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (
            (
                "HiCache prefetch success req=a b completed_local=9 completed_synced=8 matched=2 loaded=6 "
                "released=1 occupied=0"
            ),
            {"request_id": "a b", "tokens": 6, "outcome": "ok"},
        ),
        (
            "HiCache prefetch dropped req=r0 completed=64 matched=0 loaded=0 occupied=0",
            {"tokens": 64, "outcome": "failed", "reason": "no_room"},
        ),
        (
            (
                "HiCache hybrid prefetch discarded req=r0 reason=deadline completed=64 requested=128 "
                "kv_beliefs_kept_pages=None aux_pool_hit_pages={}"
            ),
            {"tokens": 128, "outcome": "failed", "reason": "timeout"},
        ),
        (
            "HiCache hybrid prefetch discarded req=r0 completed=64 requested=128",
            {"tokens": 128, "outcome": "failed", "reason": "unknown"},
        ),
        (
            "HiCache prefetch declined req=r0 reason=unservable_prefix device_prefix=64 hit=512",
            {"tokens": 512, "outcome": "skipped", "reason": "unknown"},
        ),
        (
            "Revoking prefetch for request r0 due to insufficient hits (16).",
            {"tokens": 16, "outcome": "skipped", "reason": "unknown"},
        ),
        (
            "Revoking prefetch for request r0 due to host memory allocation failure.",
            {"outcome": "skipped", "reason": "no_room"},
        ),
        (
            "Prefetch operation r0 failed to retrieve page ab12.",
            {"op": "load", "outcome": "failed", "reason": "not_found"},
        ),
        ("HiCache prefetch transfer failed for request r0", {"outcome": "failed", "reason": "io"}),
        ("HiCache sidecar prefetch failed for request r0", {"outcome": "failed", "reason": "io"}),
        ("HiCache storage query failed for request r0", {"op": "lookup", "outcome": "failed"}),
        (
            (
                "HiCache storage prefetch reissue cap reached req=r0 attempts=8; the request is admitted "
                "without further L3 lookups"
            ),
            {"op": "lookup", "outcome": "skipped", "attempt": 8},
        ),
        (
            (
                "HiCache device prefix shrank before admission req=r0 lookup_match=128 current_match=64; "
                "reissuing storage lookup"
            ),
            {"name": "hicache_prefix_shrank", "request_id": "r0"},
        ),
        (
            "write_back: KV subtree dropped without backup due to host memory pressure, root node 7",
            {"op": "drop", "reason": "no_room", "attribution": "aggregate", "tier_to": "host"},
        ),
        (
            (
                "write_back: KV cache on device are dropped without backup due to host memory pressure, "
                "subtree root 7, num_nodes 3"
            ),
            {"op": "drop", "reason": "no_room"},
        ),
        (
            (
                "write_back: backup failed under host memory pressure but subtree drop declined "
                "(node locked); root node 7 stays device-resident until host space frees"
            ),
            {"op": "store", "outcome": "failed", "reason": "no_room", "tier_from": "gpu", "tier_to": "host"},
        ),
        (
            "load_back: FAILED to load 640 tokens for node 7 even after eviction (evictable_size=0)",
            {"op": "load", "outcome": "failed", "reason": "no_room", "tokens": 640, "tier_to": "gpu"},
        ),
        (
            "Write page to storage: 4 pages failed.",
            {"op": "store", "outcome": "failed", "reason": "io", "tier_from": "host"},
        ),
        ("HiCache backup failed after 256 tokens", {"op": "store", "outcome": "failed", "reason": "io"}),
    ],
)
def test_every_sentence_is_its_row(message: str, wanted: dict[str, Any]) -> None:
    found = row(message)
    assert {name: found.get(name) for name in wanted} == wanted


def test_ranks_tell_one_prefetch_and_a_second_one_is_another() -> None:
    ranks = b"".join(
        f"[2026-11-30 08:00:0{second} DP2 TP{rank}] {SUCCESS}\n".encode()
        for second in (0, 1) for rank in (0, 1)
    )  # fmt: skip
    rows = decoded(sglang_log, ranks).table("span")
    assert [(each["rank"], each["transfer_id"], each["engine"]) for each in rows] == [
        (0, "hicache.l3", "sglang/dp2"), (1, "hicache.l3", "sglang/dp2"),
        (0, "hicache.l3#2", "sglang/dp2"), (1, "hicache.l3#2", "sglang/dp2"),
    ]  # fmt: skip


def test_times_are_taken_as_utc_and_that_is_said() -> None:
    found = said(SUCCESS, prefix="2026-11-30 08:00:00.250 TP0")
    assert [each["start_ns"] for each in found.table("span")] == [AT + S // 4]
    assert any("read as UTC" in note for note in found.notes)


def test_a_time_that_cannot_be_is_counted() -> None:
    found = said(SUCCESS, prefix="2026-02-31 08:00:00")
    assert (found.rows, found.lost()) == ({}, {"impossible_time": 1})


def test_what_a_batch_counts_is_samples() -> None:
    found = said(
        "Prefill batch [7], #new-seq: 2, #new-token: 512, #cached-token: 128, token usage: 0.25, "
        "input throughput (token/s): 12.50",
        prefix="2026-11-30 08:00:00 TP0",
    )
    assert [(each["name"], each["value"]) for each in found.table("metric")] == [
        ("sglang_log:prefill_new_seq", 2.0), ("sglang_log:prefill_new_token", 512.0),
        ("sglang_log:prefill_cached_token", 128.0), ("sglang_log:prefill_token_usage", 0.25),
        ("sglang_log:prefill_input_throughput_token_s", 12.5),
    ]  # fmt: skip
    assert found.rows["metric"][0]["labels"] == {"rank": "TP0"}


def test_the_arguments_of_the_server_are_an_identity() -> None:
    log = Log("f")
    log.line(f"[2026-11-30 08:00:00] {FILE}".encode())
    assert {(each["field"], each["value"]) for each in log.identities()} >= {
        ("storage_backend", "file"), ("block_size", "64"), ("hicache_write_policy", "write_back"),
    }  # fmt: skip


def test_logged_requests_are_dropped_and_sentences_in_them_are_not_the_caches() -> None:
    found = said(f"Receive: obj=GenerateReqInput(text='{SUCCESS}')", f"Finish: obj={SUCCESS}")
    assert (found.rows, found.content) == ({}, {"logged requests": 2})


def test_sentences_in_the_middle_of_a_line_say_nothing() -> None:
    assert said(f"somebody said: {SUCCESS}").table("span") == []


def test_a_sentence_about_prefetches_that_nobody_knows_is_remarked() -> None:
    assert any("does not know" in note for note in said("HiCache prefetch teleported req=r0").notes)


@pytest.mark.parametrize(
    ("head", "own"),
    [
        (f"noise\n[2026-11-30 08:00:00 TP0] {SUCCESS}\n", True),
        (f"[2026-11-30 08:00:00] {FILE}\n", True),
        (f"[2026-11-30 08:00:00,123] LMCache INFO: {SUCCESS}\n", False),
        ("[2026-11-30 08:00:00] anything else\n", False),
        (f"INFO 11-30 08:00:00 [x.py:1] {SUCCESS}\n", False),
    ],
)
def test_a_log_is_told_by_its_prefix_and_its_own_words(head: str, own: bool) -> None:  # noqa: FBT001
    assert sglang_log.looks_like(head.encode()) is own
