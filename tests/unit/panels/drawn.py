"""One small engine with a cache, drawn in literal rows; everything a page can show is in it.

e0/api         request r0    |------------------|---------------------|
e0/scheduler   queue         |--|      lookup |--|      step          |--|--|--|--|
lmcache/0      load disk->host |-----|  load host->gpu |---|  store gpu->host      |----|
"""

from __future__ import annotations

from typing import Any

MS = 1_000_000
START_NS = 1_764_400_000_000_000_000
HOSTILE = (
    "</script><script>alert(1)</script>",
    "::set-env name=x::y",
    "]]><img src=x onerror=alert(1)>",
    "<b>bold</b>&lt;%{x}\u202e\x1b[31m",
)

Row = dict[str, Any]


def request(name: str, at: float, first: float | None, end: float | None, **more: Any) -> Row:
    """A request's row; times in ms after START_NS."""
    return {
        "op": "request",
        "request_id": name,
        "start_ns": _ns(at),
        "end_ns": _ns(end),
        "first_token_ns": _ns(first),
        "engine": "e0",
        "process": "e0/api",
        "observer": "api",
        "evidence": "native",
        "span_id": _span(name, 0),
    } | more


def span(name: str | None, op: str, at: float, end: float | None, number: int = 1, **more: Any) -> Row:
    """Any other row; times in ms after START_NS."""
    return {
        "op": op,
        "request_id": name,
        "start_ns": _ns(at),
        "end_ns": _ns(end),
        "engine": "e0",
        "process": "e0/scheduler",
        "observer": "scheduler",
        "evidence": "native",
        "span_id": _span(name or op, number) + int(at * 1000),
    } | more


def served(name: str, at: float, *, steps: bool, scale: float = 1.0) -> list[Row]:
    """One request that loads from disk, with or without the steps that make its bound exact."""
    first, end = at + 42 * scale, at + 90 * scale
    rows = [
        request(name, at, first, end, prompt_tokens=1536, output_tokens=16, status="ok"),
        span(name, "queue", at, at + 3 * scale, 1, reason="capacity", blocks=12, free_blocks=4),
        span(
            name,
            "lookup",
            at + 3 * scale,
            at + 8 * scale,
            2,
            requested_tokens=1536,
            found_tokens=1024,
            outcome="partial",
        ),
        span(
            name,
            "load",
            at + 8 * scale,
            at + 22 * scale,
            3,
            tier_from="disk",
            tier_to="host",
            tokens=1024,
            bytes=2 << 20,
            outcome="ok",
        ),
        span(
            name,
            "load",
            at + 18 * scale,
            at + 30 * scale,
            4,
            tier_from="host",
            tier_to="gpu",
            tokens=1024,
            bytes=2 << 20,
            submit_ns=_ns(at + 8 * scale),
            usable_ns=_ns(at + 32 * scale),
            outcome="ok",
        ),
        span(
            name,
            "store",
            at + 86 * scale,
            at + 98 * scale,
            5,
            tier_from="gpu",
            tier_to="host",
            tokens=256,
            bytes=1 << 19,
            outcome="ok",
        ),
    ]
    if steps:
        for number in range(6):
            begin = at + (32 + number * 9.6) * scale
            member = {
                "request_id": name,
                "phase": "prefill" if number == 0 else "decode",
                "scheduled_tokens": 1 + 511 * (number == 0),
            }
            rows.append(span(None, "step", begin, begin + 9 * scale, 10 + number, members=[member]))
        rows.append(
            span(name, "wait", at + 32 * scale, at + 34 * scale, 20, reason="load", process="e0/worker")
        )
    return rows


def small(*, steps: bool, requests: int = 9) -> dict[str, list[Row]]:
    """Tables of a run: hostile ids, a hung request, failures, drops, a loss, a duplicate."""
    rows: list[Row] = []
    for number in range(requests):
        name = HOSTILE[number] if number < len(HOSTILE) else f"cmpl-req-{number:03d}-0-8fe01e50"
        rows += served(name, number * 55.0, steps=steps, scale=1.0 + (number % 5) * 0.4)
    rows += [
        request("cmpl-hung-0", 100, None, None, prompt_tokens=900),
        span("cmpl-hung-0", "lookup", 104, None, requested_tokens=768, outcome="open"),
        span("cmpl-miss-0", "lookup", 300, 304, requested_tokens=512, found_tokens=0, outcome="miss"),
        span("cmpl-time-0", "lookup", 310, 410, requested_tokens=512, outcome="timeout", reason="timeout"),
        span(
            "cmpl-fail-0",
            "load",
            420,
            520,
            tier_from="host",
            tier_to="gpu",
            tokens=512,
            outcome="failed",
            reason="not_found",
        ),
        span("cmpl-open-0", "store", 500, None, tier_from="host", tier_to="disk", tokens=512, outcome="open"),
        span("cmpl-drop-0", "drop", 600, 600, tier_from="gpu", tier_to="host", tokens=256, reason="no_room"),
    ]
    losses = [
        {
            "source": HOSTILE[0],
            "process": "lmcache/0",
            "op": "store",
            "cause": "sequence_gap",
            "count": 3,
            "from_ns": _ns(2000),
            "to_ns": _ns(2010),
        },
        {"source": "otlp.binpb", "cause": "duplicate", "count": 2},
    ]
    processes = [
        {"process": "vllm-1", "engine": "e0", "product": "vllm", "version": "0.32.0"},
        {"process": "lmcache-1", "engine": "e0", "product": "lmcache", "version": "0.5.5"},
    ]
    return {"span": rows, "loss": losses, "process": processes}


def _ns(ms: float | None) -> int | None:
    return None if ms is None else START_NS + round(ms * MS)


def _span(name: str, number: int) -> int:
    return sum(ord(char) * 131**place for place, char in enumerate(name[:9])) % (1 << 60) + number
