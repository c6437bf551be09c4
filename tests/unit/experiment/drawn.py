"""Rounds of groups: small runs of the same requests, each group quicker or slower than another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

START = 1_700_000_000_000_000_000
MS = 1_000_000
ENGINE = {"product": "vllm", "model": "tiny", "block_size": "16", "tensor_parallel_size": "1"}


def draw_round(
    path: Path,
    group: str | None,
    ttft_ms: list[float | None],
    *,
    stored: int | None = None,
    prompt_tokens: int = 64,
    **meta: Any,
) -> Run:
    """A request a value, asked one second apart; null: it failed before its first token.

    It puts out three tokens, 5 ms apart, by steps; `stored`: each leaves a store of 1,000 bytes, complete so
    many ms after the start of the last request.
    """
    span: list[dict[str, Any]] = []
    last = START + (len(ttft_ms) - 1) * 1000 * MS
    for number, value in enumerate(ttft_ms):
        name, begin = f"{path.name}-{number}", START + number * 1000 * MS
        first = None if value is None else begin + round(value * MS)
        span.append(
            {
                "op": "request", "request_id": name, "start_ns": begin,
                "end_ns": (first or begin) + 10 * MS, "first_token_ns": first, "observer": "api",
                "evidence": "shim", "status": "error" if first is None else "ok", "engine": "e",
                "process": "p", "prompt_tokens": prompt_tokens, "output_tokens": None if first is None else 3,
            }
        )  # fmt: skip
        for token in range(3 if first is not None else 0):
            end = first + token * 5 * MS
            member = {"request_id": name, "phase": "decode" if token else "prefill",
                      "scheduled_tokens": 1 if token else 64, "output_tokens": 1,
                      "computed_before": 64 + token if token else 0}  # fmt: skip
            span.append({"op": "step", "start_ns": end - MS, "end_ns": end, "engine": "e", "process": "p",
                         "observer": "scheduler", "evidence": "shim", "members": [member]})  # fmt: skip
        if stored is not None:
            span.append({"op": "store", "request_id": name, "start_ns": begin + MS,
                         "end_ns": last + stored * MS, "submit_ns": begin + MS, "tier_from": "gpu",
                         "tier_to": "host", "bytes": 1000,
                         "tokens": 64, "engine": "e", "process": "p", "transfer_id": name,
                         "outcome": "ok", "observer": "worker", "evidence": "shim"})  # fmt: skip
    alias = [
        {"alias": f"kvx-{number}", "kind": "client", "request_id": f"{path.name}-{number}"}
        for number in range(len(ttft_ms))
    ]
    said = {"group": group, "engines": {"e": ENGINE}} | meta
    return write_run(path, said, span=span, alias=alias)
