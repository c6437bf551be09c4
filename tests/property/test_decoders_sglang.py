"""Laws of SGLang's decoders: hostile records cost only themselves, and what was written is read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrace.schema.vocabulary import CLOSED, LOSS_CAUSES, REASONS
from kvtrace.sources import sglang_log, sglang_request_metrics
from kvtrace.sources.sglang_words import storage
from tests.unit.sources.given import Found, decoded
from tests.unit.sources.test_sglang_request_metrics import record

RECORDED = Path(__file__).parents[1] / "unit/sources/recorded/sglang-request-metrics.jsonl"
S = 1_000_000_000
HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted(record())
TOKENS = st.integers(0, 2**40)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=12)
SENTENCES = [
    "HiCache prefetch success req={0} completed={1} matched={2} loaded={1} occupied=0",
    "HiCache hybrid prefetch discarded req={0} reason={0} completed={1} requested={2} a",
    "Prefetch operation {0} failed to retrieve page {1}.", "Revoking prefetch for request {0} due to x",
    "load_back: FAILED to load {1} tokens for node {2} ", "Write page to storage: {1} pages failed.",
    "server_args=ServerArgs(page_size={1}, hicache_storage_backend='{0}')",
    "Prefill batch, #new-seq: {1}, {0}",
]  # fmt: skip


def well_formed(found: Found) -> int:
    """Every word is one of ours, no span ends before it begins; returns how many rows there are."""
    assert all(loss.cause in LOSS_CAUSES and loss.count > 0 for loss in found.losses)
    for row in found.rows.get("span", []):
        for column, words in CLOSED.items():
            assert row.get(column) is None or row[column] in words
        assert row.get("reason") is None or row["reason"] in REASONS[row["op"]]
        assert row.get("end_ns", 2**63) >= row.get("start_ns", 1) > 0
        assert row.get("first_token_ns", row.get("start_ns", 0)) >= row.get("start_ns", 0)
    return sum(map(len, found.rows.values()))


def metrics(*records: Any) -> Found:
    lines = b"".join(json.dumps(each).encode() + b"\n" for each in records)
    return decoded(sglang_request_metrics, lines)


@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), HOSTILE, max_size=6), max_size=4))
@settings(deadline=None, max_examples=150)
def test_a_hostile_request_costs_itself_alone(changes: list[dict[str, Any]]) -> None:
    found = metrics(*(record(id=f"h{n}") | change for n, change in enumerate(changes)), record(id="good"))
    well_formed(found)
    assert [row["gpu_hit_tokens"] for row in found.table("span", op="request", request_id="good")] == [64]


@given(st.binary(max_size=60), st.integers(0, 3000), st.integers(0, 60))
@settings(deadline=None, max_examples=150)
def test_damaged_bytes_cost_their_lines_alone(noise: bytes, place: int, cut: int) -> None:
    raw = RECORDED.read_bytes()
    damaged = raw[:place] + noise + raw[place + cut :]
    sglang_request_metrics.looks_like(damaged)
    well_formed(decoded(sglang_request_metrics, damaged, piece=997))


@given(TOKENS, TOKENS, TOKENS, st.sampled_from(["HiCacheFile", "MooncakeStore", "Somebodys"]))
@settings(deadline=None, max_examples=60)
def test_what_each_tier_gave_is_what_left_it_less_what_came_into_it(
    device: int, host: int, stored: int, backend: str
) -> None:
    details = {"device": device, "host": host, "storage": stored, "storage_backend": backend}
    found = metrics(record(cached_tokens=device + host + stored, cached_tokens_details=details))
    flow = {"host": 0, storage(backend)[0]: 0}
    for row in found.table("span", op="load"):
        flow[row["tier_from"]] += row["tokens"]
        flow[row["tier_to"]] = flow.get(row["tier_to"], 0) - row["tokens"]
    (request,) = found.table("span", op="request")
    given_back = {"host": host, storage(backend)[0]: stored}
    assert {tier: flow[tier] for tier in given_back} == given_back
    assert request["gpu_hit_tokens"] - flow.get("gpu", 0) == request["reported_cached_tokens"]


@given(
    st.lists(st.tuples(st.sampled_from(SENTENCES), NAMES, st.integers(0, 2**70), st.integers(0, 99)),
             max_size=6),
    st.binary(max_size=30), st.integers(0, 200),
)  # fmt: skip
@settings(deadline=None, max_examples=150)
def test_a_log_of_any_bytes_is_read_to_its_end(lines: list[Any], noise: bytes, place: int) -> None:
    said = "".join(f"[2026-11-30 08:00:00 TP0] {text.format(*more)}\n" for text, *more in lines).encode()
    raw = said[:place] + noise + said[place:]
    raw += b"\n[2026-11-30 08:00:01] HiCache prefetch success req=end completed=9 matched=0 loaded=9 "
    raw += b"occupied=0\n"
    sglang_log.looks_like(raw)
    found = decoded(sglang_log, raw, piece=61)
    well_formed(found)
    assert [row["tokens"] for row in found.table("span", request_id="end", op="load")][-1] == 9
