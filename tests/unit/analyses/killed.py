"""The killed cache server, drawn in literal rows as a native recording shows it; times in ms.

40 blocks of 128 tokens, prompts of 1,500 tokens need 12. The server dies before r0 arrives.

           0        1000      5000  5250  5500    6000   7000        20000
    r0     [lookup, timeout ------) [step][step   hold of 12 ---------------)
    r1                              [step]        hold of 12 ---------------)
    r2                                      [step]  hold of 12 -------------)
    r3                                              [queue(capacity) -------)[step]   needs 13, free 4: L = 9
    health  [healthy --------------)[down ---------------------------------------
"""

from __future__ import annotations

from typing import Any

MS = 1_000_000
T0_NS = 1_764_400_000_000_000_000
ENGINE = "vllm-7"
POOL = {"engines": {ENGINE: {"product": "vllm", "version": "0.32.0", "config": {"num_gpu_blocks": "40"}}}}

Row = dict[str, Any]


def at(ms: float | None) -> int | None:
    return None if ms is None else T0_NS + round(ms * MS)


def row(op: str, name: str | None, start: float, end: float | None, number: int, **more: Any) -> Row:
    """A row that the scheduler saw."""
    seen = {"engine": ENGINE, "process": "host/2", "observer": "scheduler", "evidence": "shim"}
    when = {"start_ns": at(start), "end_ns": at(end)}
    return {**seen, "run_id": "r", "op": op, "request_id": name, "span_id": number, **when, **more}


def step(name: str, start: float, end: float, number: int, tokens: int, before: int, phase: str) -> Row:
    member = {
        "request_id": name, "phase": phase, "scheduled_tokens": tokens, "output_tokens": 1,
        "computed_before": before,
    }  # fmt: skip
    return row("step", None, start, end, number, members=[member])


def request(name: str, start: float, first: float, end: float, number: int, **more: Any) -> Row:
    """As the API process saw it, and what the scheduler knows of its tokens."""
    api = {"process": "host/1", "observer": "api", "first_token_ns": at(first), "status": "ok"}
    known = {"prompt_tokens": 1500, "output_tokens": 2, "gpu_hit_tokens": 0, "selected_tokens": 0}
    return row("request", name, start, end, number, **{**api, **known, **more})


def tables() -> dict[str, list[Row]]:
    """Four requests after the kill."""
    spans = [
        request("cmpl-r0-0-aa", 0, 5250, 5500, 1),
        row("queue", "cmpl-r0-0-aa", 0, 5000, 2, reason="lookup", attempt=1),
        row("lookup", "cmpl-r0-0-aa", 0, 5000, 3, requested_tokens=1500, outcome="timeout", reason="timeout"),
        step("cmpl-r0-0-aa", 5000, 5250, 4, 1500, 0, "prefill"),
        step("cmpl-r0-0-aa", 5250, 5500, 5, 1, 1500, "decode"),
        request("cmpl-r1-0-bb", 5510, 5750, 5950, 6),
        step("cmpl-r1-0-bb", 5520, 5750, 7, 1500, 0, "prefill"),
        step("cmpl-r1-0-bb", 5750, 5950, 8, 1, 1500, "decode"),
        request("cmpl-r2-0-cc", 5960, 6200, 6500, 9),
        step("cmpl-r2-0-cc", 5970, 6200, 10, 1500, 0, "prefill"),
        step("cmpl-r2-0-cc", 6200, 6500, 11, 1, 1500, "decode"),
        request("cmpl-r3-0-dd", 6510, 20250, 20500, 12),
        row("queue", "cmpl-r3-0-dd", 6510, 20000, 13, reason="capacity", blocks=13, free_blocks=4),
        step("cmpl-r3-0-dd", 20000, 20250, 14, 1500, 0, "prefill"),
        step("cmpl-r3-0-dd", 20250, 20500, 15, 1, 1500, "decode"),
        row("hold", "cmpl-r0-0-aa", 5500, 20000, 16, blocks=12, reason="store", transfer_id="s0"),
        row("hold", "cmpl-r1-0-bb", 5950, 20000, 17, blocks=12, reason="store", transfer_id="s1"),
        row("hold", "cmpl-r2-0-cc", 6500, 20000, 18, blocks=12, reason="store", transfer_id="s2"),
        row("health", None, -1000, 5000, 19, reason="healthy", component="lmcache"),
        row("health", None, 5000, None, 20, reason="down", component="lmcache"),
    ]
    aliases = [
        {"alias": f"req-{n}", "kind": "client", "request_id": f"cmpl-r{n}-0-{x * 2}", "evidence": "derived"}
        for n, x in enumerate("abcd")
    ]
    aliases += [{**one, "alias": "twice"} for one in aliases[:2]]
    return {"span": spans, "alias": aliases}
