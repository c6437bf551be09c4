"""OTLP attribute names of every column, and other conventions' names for the same facts.

Any OTLP span with `kvtrace.op` is a canonical row; so is a span of an engine that sources/dialects
decodes. We mint names below `kvtrace.` only; `gen_ai.*` and engines' own names are read, never written.
"""

from __future__ import annotations

OP = "kvtrace.op"

CANONICAL: dict[str, str] = {
    OP: "op",
    "kvtrace.request.id": "request_id",
    "kvtrace.transfer.id": "transfer_id",
    "kvtrace.identity.id": "identity_id",
    "kvtrace.engine": "engine",
    "kvtrace.process": "process",
    "kvtrace.observer": "observer",
    "kvtrace.rank": "rank",
    "kvtrace.device": "device",
    "kvtrace.stream": "stream",
    "kvtrace.tier.from": "tier_from",
    "kvtrace.tier.to": "tier_to",
    "kvtrace.component": "component",
    "kvtrace.state_kind": "state_kind",
    "kvtrace.purpose": "purpose",
    "kvtrace.tokens": "tokens",
    "kvtrace.bytes": "bytes",
    "kvtrace.blocks": "blocks",
    "kvtrace.free_blocks": "free_blocks",
    "kvtrace.attempt": "attempt",
    "kvtrace.outcome": "outcome",
    "kvtrace.reason": "reason",
    "kvtrace.mode": "mode",
    "kvtrace.queued_ns": "queued_ns",
    "kvtrace.submit_ns": "submit_ns",
    "kvtrace.usable_ns": "usable_ns",
    "kvtrace.attribution": "attribution",
    "kvtrace.evidence": "evidence",
    "kvtrace.clock": "clock",
    "kvtrace.prompt_tokens": "prompt_tokens",
    "kvtrace.output_tokens": "output_tokens",
    "kvtrace.gpu_hit_tokens": "gpu_hit_tokens",
    "kvtrace.selected_tokens": "selected_tokens",
    "kvtrace.reported_cached_tokens": "reported_cached_tokens",
    "kvtrace.predicted_tokens": "predicted_tokens",
    "kvtrace.first_token_ns": "first_token_ns",
    "kvtrace.status": "status",
    "kvtrace.workload.key": "workload_key",
    "kvtrace.user_request.id": "user_request_id",
    "kvtrace.parent_request.id": "parent_request_id",
    "kvtrace.requested_tokens": "requested_tokens",
    "kvtrace.found_tokens": "found_tokens",
}
"""Attribute -> column of `span`."""

FOUND_BY_TIER_PREFIX = "kvtrace.found_tokens."
"""`kvtrace.found_tokens.<tier>` fills the map found_by_tier."""

MEMBERS: dict[str, str] = {
    "kvtrace.step.request_ids": "request_id",
    "kvtrace.step.phases": "phase",
    "kvtrace.step.tokens": "scheduled_tokens",
    "kvtrace.step.output_tokens": "output_tokens",
    "kvtrace.step.computed_before": "computed_before",
}
"""Array attribute -> field of `members`; arrays of one span have equal length."""

RESOURCE: dict[str, str] = {
    "kvtrace.engine": "engine",
    "kvtrace.process": "process",
    "kvtrace.observer": "observer",
    "kvtrace.rank": "rank",
    "kvtrace.device": "device",
    "kvtrace.stream": "stream",
}
"""Attributes that may stand on the resource and hold for all of its spans."""

ALIASES_VERSION = 1
"""Bumped whenever a name below is added or changes its meaning."""

ALIASES: dict[str, tuple[str, ...]] = {
    "request_id": ("gen_ai.request.id",),
    "prompt_tokens": ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens"),
    "output_tokens": ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens"),
    "reported_cached_tokens": ("gen_ai.usage.cached_tokens", "gen_ai.usage.cache_read.input_tokens"),
}
"""Column -> names that others give the same fact, the preferred one first (old and new gen_ai names)."""

FIRST_TOKEN_SECONDS: tuple[str, ...] = (
    "gen_ai.latency.time_to_first_token",
    "gen_ai.response.time_to_first_chunk",
)
"""Seconds from the start of a request's span to its first token."""

QUEUE_SECONDS: tuple[str, ...] = ("gen_ai.latency.time_in_queue",)
"""Seconds in the engine's queue. vLLM counts the asynchronous load into it, and subtracts clocks that
can make it negative or as long as the uptime (vLLM 0.32): such values are dropped and counted."""
