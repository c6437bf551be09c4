"""Literal rows of loads by group of layers, as the scheduler and the workers of a vLLM write them."""

from __future__ import annotations

from typing import Any

S = 1_000_000_000
BLOCK = 4
Row = dict[str, Any]
VLLM: Row = {"process": "e0", "product": "vllm", "role": "scheduler", "last_ns": 200 * S}
STATES = {"full": "kv", "latent": "kv", "window": "window", "chunked": "window", "recurrent": "recurrent"}


def load(request: str = "a", outcome: str | None = "ok", **more: Any) -> Row:
    """The scheduler's row of a load: asked for at 1 s, over at 2 s."""
    row = {"op": "load", "tier_from": "host", "tier_to": "gpu", "observer": "scheduler", "process": "e0"}
    row |= {
        "evidence": "shim",
        "component": "vllm.offloading",
        "purpose": "reuse",
        "tokens": 12,
        "span_id": 1,
    }
    row |= {"request_id": request, "transfer_id": f"{request}/load/1", "start_ns": S, "submit_ns": S}
    usable = more.pop("usable", 12)
    row |= {"end_ns": None if outcome is None else 2 * S, "outcome": outcome}
    return row | {"attributes": [("usable_tokens", str(usable))]} | more


def need(
    group: int, kind: str, low: int, first: int, *, request: str = "a", on_gpu: str = "", groups: int = 2,
    span: int | None = None, had: int = 0, block: int = BLOCK, **more: Any,
) -> Row:  # fmt: skip
    """What a group needs before token `first`, and which tokens of it the GPU has."""
    told = {"group": group, "kind": kind, "window": span, "block_tokens": block, "groups": groups}
    told |= {"from_token": low, "first_computed": first, "asked_from_tokens": had, "on_gpu": on_gpu}
    row = {"name": "retained_state", "observer": "scheduler", "process": "e0", "evidence": "shim"}
    row |= {"state_kind": STATES[kind], "component": "vllm.offloading", "start_ns": S, "end_ns": S}
    row |= {"request_id": request, "transfer_id": f"{request}/load/1", "tokens": first - low}
    attributes = [(name, str(value)) for name, value in told.items() if value is not None]
    return row | {"attributes": attributes} | more


def restored(
    group: int, start: int, stop: int, *, request: str = "a", outcome: str = "ok", rank: int | None = 0,
    **more: Any,
) -> Row:  # fmt: skip
    """What a worker restored of a group."""
    row = {"name": "restored_state", "observer": "worker", "process": "w0", "evidence": "shim"}
    row |= {"request_id": request, "transfer_id": f"{request}/load/1", "rank": rank, "outcome": outcome}
    row |= {"start_ns": S, "end_ns": 2 * S, "tokens": stop - start}
    return row | {"attributes": [("group", str(group)), ("from_token", str(start))]} | more
