"""The closed lists of words. What is not in them becomes null, and the raw text stays in `attributes`."""

from __future__ import annotations

TIERS: tuple[str, ...] = ("gpu", "host", "peer", "disk", "object", "unknown")
"""Physical media in order of distance; ties are broken in this order."""

FIRST_DATE_NS = 31_536_000_000_000_000
"""1971-01-01: a time before it is of a clock that counts from its own start. Such rows have right distances
among themselves and no place beside dates."""

EXPOSED_TRANSFER: tuple[str, ...] = (
    "wait_load", "wait_store", "wait_lookup", "wait_lock", "load", "load_wait", "lock", "lookup", "store",
    "interference",
)  # fmt: skip
"""Classes of the partition that are exposed transfer in full; of `queue_capacity` `blockers` says a part."""

OPS: dict[str, str] = {
    "request": "arrival to finish",
    "queue": "not scheduled",
    "route": "a router chose a worker: predicted tokens by tier",
    "lookup": "asking whether a prefix exists outside the GPU, one row an inquiry",
    "lock_wait": "waiting for protection of cached state",
    "lock_hold": "holding protection of cached state",
    "load": "state moves towards the GPU, one row a hop",
    "store": "state moves away from the GPU, one row a hop",
    "wait": "the engine's own thread or step is blocked",
    "step": "one engine iteration; its members and their tokens",
    "hold": "GPU blocks that cannot be reused because a transfer still needs them",
    "publish": "point: became visible to a router",
    "evict": "point: left a tier",
    "drop": "a store that stored nothing",
    "blend": "selective recompute of reused non-prefix chunks",
    "health": "an engine's view of an external cache, an interval",
}

REASONS: dict[str, tuple[str, ...]] = {
    "queue": ("capacity", "remote_kv", "lookup", "preempted", "policy", "unknown"),
    "wait": ("load", "store", "lookup", "lock"),
    "hold": ("load", "store", "unknown"),
    "drop": ("duplicate", "no_room", "stale", "unhealthy", "unknown"),
    "health": ("healthy", "degraded", "down"),
    "evict": ("capacity", "ttl", "cleared", "unknown"),
    "load": ("not_found", "expired", "no_room", "io", "timeout", "unhealthy", "unknown"),
    "store": ("no_room", "io", "timeout", "unhealthy", "unknown"),
    "lookup": ("timeout", "unhealthy", "below_chunk", "no_context", "unknown"),
    "request": ("error", "aborted", "unknown"),
}
"""Operation -> the reasons it may give. An operation that is not a key has no reason."""

OUTCOMES: tuple[str, ...] = (
    "ok", "miss", "partial", "skipped", "failed", "timeout", "cancelled", "open", "unknown",
)  # fmt: skip
OBSERVERS: tuple[str, ...] = ("worker", "server", "client", "scheduler", "api", "router")
"""Who saw it, the nearest to the copy first: of one physical transfer the first of these wins."""
PURPOSES: tuple[str, ...] = ("reuse", "handoff", "prefetch", "promotion")
STATE_KINDS: tuple[str, ...] = ("kv", "window", "recurrent", "indexer", "static")
ATTRIBUTIONS: tuple[str, ...] = ("request", "operation", "key", "aggregate")
EVIDENCE: tuple[str, ...] = ("native", "shim", "derived", "predicted")
CLOCKS: tuple[str, ...] = ("host", "gpu")
MODES: tuple[str, ...] = ("read", "write", "reserve")
STATUSES: tuple[str, ...] = ("ok", "error", "aborted", "open")
ENFORCERS: tuple[str, ...] = ("key", "backend", "nobody")
ALIAS_KINDS: tuple[str, ...] = ("client", "external", "response", "session", "trace", "internal")
BLOCK_EVENTS: tuple[str, ...] = (
    "stored", "removed", "accessed", "reserved", "written", "failed",
    "locked", "unlocked", "expired", "cleared", "published",
)  # fmt: skip

LOSS_CAUSES: dict[str, str] = {
    "dropped": "the producer or a queue threw it away",
    "undecodable": "it arrived and could not be read",
    "late": "it arrived after the run was closed",
    "duplicate": "it arrived twice and counts once; no information is lost",
    "sequence_gap": "numbered messages are missing",
    "negative_duration": "its end lies before its start; set aside",
    "impossible_time": "a time is zero, or outside of what 64 bits of nanoseconds hold; set aside",
    "exporter_failure": "an exporter said that it could not deliver",
    "unclean_end": "a source ends without its closing mark, or another source contradicts it",
    "hook_failure": "an instrument's own code raised inside the engine; the engine went on without it",
    "disk_failure": "the recorder could not append to its spool: disk full, removed or forbidden",
    "ambiguous_join": "a name fits several requests equally well; not joined",
}
"""Why something is missing. `duplicate` is counted but is no loss: it changes no bound, check or gate."""

CLOSED: dict[str, tuple[str, ...]] = {
    "op": tuple(OPS),
    "tier_from": TIERS,
    "tier_to": TIERS,
    "state_kind": STATE_KINDS,
    "purpose": PURPOSES,
    "outcome": OUTCOMES,
    "mode": MODES,
    "observer": OBSERVERS,
    "clock": CLOCKS,
    "attribution": ATTRIBUTIONS,
    "evidence": EVIDENCE,
    "status": STATUSES,
}
"""Column of `span` -> the words it may hold (reasons depend on the operation: REASONS)."""
