"""Laws of the decoders of logs: what is written comes back, in any pieces; hostile lines cost themselves."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvtrace.schema.vocabulary import CLOSED, REASONS
from kvtrace.sources import lmcache_log, vllm_log
from kvtrace.sources.engine_logs.forms import record
from tests.unit.sources.given import decoded

if TYPE_CHECKING:
    from tests.unit.sources.given import Found

LAW = settings(deadline=None, max_examples=60)
MS_NS = 1_000_000
START_MS, END_MS = 1_600_000_000_000, 1_900_000_000_000
TIMES = st.integers(START_MS, END_MS)
ASKED = (
    "Reqid: {}, Total tokens {}, Inference Engine computed tokens: {}, LMCache hit tokens: {}, "
    "need to load: {}"
)
FOUND = (
    "Prefetch request completed (L1+L2): {}/{} retained keys ({} L1, {} L2) in {} ms "
    "(external_request_id={}, prefetch_request_id=1)"
)
ITERATION = (
    "Engine 000: Iteration({}): {} context requests, {} context tokens, {} generation requests, "
    "{} generation tokens, iteration elapsed time: {} ms"
)
FAILING = (
    "Failing {} request(s) due to KV load failure (failure_policy=fail, {} tokens affected). "
    "Request IDs: {{'{}'}}"
)
LINES = [
    "LOOKUP to {} timed out after {}s. Marking server as unhealthy.",
    "QUERY_PREFETCH_STATUS to {} timed out. Marking unhealthy.",
    "lmcache.mp.mq_timeout = {}",
    "PeriodicThread lmcache-heartbeat entering main loop ({})",
    "Stopping PeriodicThread: lmcache-heartbeat",
    "LMCache server is unhealthy — entering degraded mode",
    "LMCache server is healthy again — resuming normal operation",
    "Bypassing LMCache for request {} after a failed async KV load; the prompt",
    "Part block hashes mismatch for request {}, skip it",
    "Something went wrong when processing the store request for request_id={}",
    "[req={}] LMCache hit mismatch across servers: {} → take min={}",
    "<preempted> by preempted requests: {{'{}', '{}'}}",
    "<preempted> by resumed requests: {{'{}'}}",
    ASKED,
    "Request {} is still waiting for async lookup after {} seconds",
    "[req_id={}] Retrieved {} out of {} required tokens (from {} total tokens). size: {} gb, cost {} ms, t",
    "[req_id={}] Stored {} out of total {} tokens. size: {} GB, cost {} ms, throughput",
    "Stored {} tokens in {} seconds",
    "Retrieved {} tokens in {} seconds",
    FOUND,
    "TokenHasher initialized: chunk_size={}, hash_algorithm=blake3",
    "Registered KV cache for GPU ID {} with 4 layers",
    "L1 memory usage {} above watermark {}; triggering eviction.",
    "L1Manager memcheck: total objects = {}, write-locked = {}, read-locked = {}",
    "Engine 000: Avg prompt throughput: {} tokens/s, Running: {} reqs, Waiting: {} reqs",
    ITERATION,
    "KV Transfer metrics: {}={}, {}={}",
    "GPU KV cache size: {} tokens",
    FAILING,
    "Received request {}: params: x",
    "Generated response {}: output: 'x', finish_reason: stop",
    "Request {} aborted.",
    "Request {}: cannot store chunks",
]
WORDS = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.floats().map(str),
    st.sampled_from(
        ["1e400", "9" * 200, "0.0.0", "", ".", "NaN", "٣", "'", '"', "\\", "(", "x" * 600, "a, b"]
    ),
    st.text(st.characters(exclude_characters="\n"), max_size=20),
)


def when(time_ms: int) -> str:
    """A time as LMCache writes it."""
    found = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{found:%Y-%m-%d %H:%M:%S},{time_ms % 1000:03}"


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """A line of either product, known in form or not at all, with anything in it, cut or not."""
    message = draw(st.sampled_from(LINES))
    for _ in range(message.count("{}")):
        message = message.replace("{}", draw(WORDS).replace("{}", ""), 1)
    time_ms = draw(TIMES)
    lmcache = f"[{when(time_ms)}] LMCache INFO: {message} (a.py:1:lmcache.a)"
    vllm = f"(EngineCore pid={draw(st.integers(0, 10**12))}) INFO {when(time_ms)[5:19]} [a.py:1] {message}"
    line = draw(st.sampled_from([lmcache, vllm, message])).encode("utf-8", "replace")
    return line[: draw(st.integers(0, len(line)))] if draw(st.integers(0, 9)) == 0 else line


def sound(found: Found) -> None:
    """What every row keeps to, whatever was read."""
    for row in found.table("span"):
        assert row["start_ns"] > 0
        assert row.get("end_ns", row["start_ns"]) >= row["start_ns"]
        assert all(row.get(column) in (None, *words) for column, words in CLOSED.items())
        assert row.get("reason") in (None, *REASONS.get(row.get("op", ""), ()))
        assert 0 < len(row.get("request_id", "x")) <= 512
        assert all(
            row.get(column, 0) >= 0 for column in ("tokens", "found_tokens", "requested_tokens", "blocks")
        )
    assert all(row["value"] == row["value"] for row in found.table("metric"))


@LAW
@given(st.lists(hostile() | st.binary(max_size=40), max_size=30), st.sampled_from([vllm_log, lmcache_log]))
def test_hostile_lines_never_raise_and_give_sound_rows(lines: list[bytes], module: Any) -> None:
    content = b"\n".join(lines)
    module.looks_like(content)
    sound(decoded(module, content))


@LAW
@given(st.lists(hostile(), max_size=12), st.integers(1, 400))
def test_in_whatever_pieces_a_file_comes_its_rows_are_the_same(lines: list[bytes], piece: int) -> None:
    """Where the year is known from the first line: it is looked for in the first lines that come."""
    content = b"[2026-11-30 04:00:00,000] LMCache INFO: begins\n" + b"\n".join(lines)
    whole, cut = decoded(vllm_log, content), decoded(vllm_log, content, piece=piece)
    assert cut.rows == whole.rows
    assert (cut.losses, cut.content, cut.notes) == (whole.losses, whole.content, whole.notes)


@LAW
@given(st.lists(st.tuples(TIMES, st.booleans(), st.integers(0, 10**12), st.integers(0, 10**6)), max_size=20))
def test_every_transfer_that_a_server_writes_comes_back(moves: list[tuple[int, bool, int, int]]) -> None:
    lines = [
        f"[{when(at)}] LMCache INFO: {'Retrieved' if load else 'Stored'} {tokens} tokens in "
        f"{took // 1000}.{took % 1000:03} seconds (a.py:1:lmcache.a)"
        for at, load, tokens, took in moves
    ]
    found = decoded(lmcache_log, "\n".join(lines).encode())
    rows = [(row["name"], row["tokens"], row["start_ns"], row["end_ns"]) for row in found.table("span")]
    assert rows == [
        ("Retrieved" if load else "Stored", tokens, (at - took) * MS_NS, at * MS_NS)
        for at, load, tokens, took in moves
    ]


@LAW
@given(st.lists(st.tuples(st.integers(0, 10_000), st.sampled_from(range(4))), max_size=20))
def test_health_is_one_state_at_a_time_without_a_gap(changes: list[tuple[int, int]]) -> None:
    """Lines in the order of time: the intervals follow each other, each another state than the one before."""
    said = [
        "PeriodicThread lmcache-heartbeat entering main loop",
        "LMCache server is unhealthy — entering degraded mode",
        "LMCache server is healthy again — resuming normal operation",
        "LOOKUP to u timed out after 1.0s.",
    ]
    lines = [f"[{when(START_MS + at)}] LMCache INFO: {said[which]}" for at, which in sorted(changes)]
    rows = decoded(vllm_log, "\n".join(lines).encode()).table("span", op="health")
    assert bool(rows) == bool(changes)
    for before, after in pairwise(rows):
        assert before["end_ns"] == after["start_ns"]
        assert before["reason"] != after["reason"]
    assert all("end_ns" not in row for row in rows[-1:])


@LAW
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_any_line_is_a_record_or_none(line: bytes) -> None:
    found = record(line)
    assert found is None or found.product in ("vllm", "lmcache")


@pytest.mark.parametrize("message", LINES)
def test_every_form_that_is_drawn_is_one_that_means_something(message: str) -> None:
    """Else the laws above would hold of nothing."""
    left_out = []
    for number in ("1", "1.50"):
        filled = message.replace("{}", number).replace("{{", "{").replace("}}", "}")
        for line in (f"[{when(START_MS)}] LMCache INFO: {filled}", f"INFO 09-13 12:26:40 [a.py:1] {filled}"):
            found = decoded(vllm_log, f"[{when(START_MS)}] LMCache INFO: x\n{line}\n".encode())
            left_out.append("records of other things, left out: 1" not in found.notes)
    assert not all(left_out)
