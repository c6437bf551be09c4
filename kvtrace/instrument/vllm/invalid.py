"""Whose state did not arrive in a step that counted on it?

    worker       start_load_kv ── forward ── get_block_ids_with_load_errors: blocks, no names
    scheduler    update_from_output ─► _handle_invalid_blocks cuts each request back to its valid prefix

Only the scheduler knows which requests use a block. It says of every load inside that step what of it can be
used, under the transfer_id of the worker's row, and names everybody who was cut back: a request may run on
blocks that another one was to load. Of an asynchronous load it is noted here what is left, before its request
may fail for it; loads.py tells of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.vllm import loads, products
from kvtrace.instrument.vllm.carrier import carried_by
from kvtrace.instrument.vllm.track import of

if TYPE_CHECKING:
    from typing import Any

    Before = list[tuple[Any, int, int]]

_INVALID = recorder.shape(
    "span", ("start_ns", "end_ns", "blocks", "tokens", "members", "component"),
    name="kv_blocks_invalid", observer="scheduler", evidence="shim", outcome="failed",
    attribution="operation",
)  # fmt: skip
_LOAD = recorder.shape(
    "span",
    ("request_id", "transfer_id", "submit_ns", "start_ns", "end_ns", "tokens", "tier_from", "component",
     "outcome", "attributes.usable_tokens", "attributes.failed_by"),
    name="load_inside_step", op="load", tier_to="gpu", purpose="reuse", observer="scheduler", evidence="shim",
    attribution="request",
)  # fmt: skip


def reported(scheduler: Any, _block_ids: Any, scheduled: Any, *_: Any, **__: Any) -> Before:
    """Before the engine looks who is hit: running requests, their tokens before the step and in it."""
    return [
        (request, request.num_computed_tokens - tokens, tokens)
        for request in scheduler.running
        if (tokens := scheduled.get(request.request_id, 0))
    ]


def handled(before: Before, _result: Any, scheduler: Any, block_ids: Any, *_: Any, **__: Any) -> None:
    """After it: who was cut back, and what is left of each load of the step."""
    tracks = of(scheduler)
    step = None if tracks is None else tracks.handled
    if tracks is None:
        return
    loads.cut_back(tracks, scheduler, block_ids)
    if step is None:
        return
    now_ns = recorder.now()
    lost = {
        request.request_id: computed - request.num_computed_tokens
        for request, computed, tokens in before
        if request.num_computed_tokens != computed + tokens
    }
    if lost:
        nothing = (None,) * len(lost)
        recorder.record((
            _INVALID, now_ns, now_ns, len(block_ids), max(0, sum(lost.values())),
            (tuple(lost), nothing, nothing, nothing, nothing), products.component(scheduler.connector),
        ))  # fmt: skip
    carried = carried_by(getattr(step.output, "kv_connector_metadata", None))
    if carried is not None:
        running = {request.request_id for request, *_ in before}
        told = zip(carried["loads"], carried["attempts"], carried["tokens"], strict=True)
        for request_id, attempt, tokens in told:
            if attempt is None and request_id in running:
                usable = tokens - max(0, min(lost.get(request_id, 0), tokens))
                outcome = "ok" if usable == tokens else "partial" if usable else "failed"
                recorder.record((
                    _LOAD, request_id, f"{request_id}/load/step-{carried['step']}", step.start_ns,
                    step.start_ns, now_ns, tokens, products.tier(scheduler.connector),
                    products.component(scheduler.connector), outcome, usable,
                    loads.BLOCKS if usable < tokens else None,
                ))  # fmt: skip
