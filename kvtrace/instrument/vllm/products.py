"""What is a connector called, where does its state come from, and what does it know about its own answers?

A connector tells vLLM only how many tokens it may load beyond the GPU's own. LMCache's multiprocess client
knows more: the whole prefix that it found, whether it still asks its server, and when it gave up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    Answer = tuple[int | None, str, str | None]  # found tokens from the first one, outcome, reason

COMPONENTS: dict[str, tuple[str, str]] = {
    "LMCacheMPConnector": ("lmcache", "host"),
    "LMCacheMPConnectorUpstream": ("lmcache", "host"),
    "LMCacheConnectorV1": ("lmcache", "unknown"),
    "LMCacheConnectorV1Dynamic": ("lmcache", "unknown"),
    "OffloadingConnector": ("vllm.offloading", "host"),
    "SimpleCPUOffloadConnector": ("vllm.simple_offload", "host"),
    "ExampleConnector": ("vllm.example", "disk"),
    "MultiConnector": ("vllm.multi", "unknown"),
    "NixlConnector": ("nixl", "peer"),
    "NixlPullConnector": ("nixl", "peer"),
    "NixlPushConnector": ("nixl", "peer"),
    "MooncakeConnector": ("mooncake", "peer"),
    "MooncakeStoreConnector": ("mooncake.store", "unknown"),
    "MoRIIOConnector": ("moriio", "peer"),
    "HF3FSKVConnector": ("hf3fs", "disk"),
    "FlexKVConnectorV1": ("flexkv", "unknown"),
    "DynamoConnector": ("kvbm", "unknown"),
}
"""Class name -> the product's own name, and the medium from which it copies to the GPU."""

SOURCES = {"host": "host", "p2p": "peer", "disk": "disk", "device": "gpu", "external_unspecified": "unknown"}
"""vLLM's `CacheHitSource` -> the tier."""


def component(connector: Any) -> str:
    """The product's name; of a class nobody knows, its own name without `Connector`."""
    known = _known(connector)
    if known is not None:
        return known[0]
    return type(connector).__name__.lower().replace("connector", "") or "unknown"


def tier(connector: Any) -> str:
    """The medium from which this connector copies to the GPU, as far as known."""
    known = _known(connector)
    return "unknown" if known is None else known[1]


def _known(connector: Any) -> tuple[str, str] | None:
    for kind in type(connector).__mro__:
        if kind.__name__ in COMPONENTS:
            return COMPONENTS[kind.__name__]
    return None


def answer(
    connector: Any, request: Any, asked_from: int, returned: int, *, waited: bool, gave_up: bool
) -> Answer:
    """What an answer that is not None means.

    `waited`: earlier calls of this inquiry got None, or this one took long. `gave_up`: its server was given
    up since the call before: a timeout of this inquiry if it waited, else somebody else's.
    """
    adapter = getattr(connector, "scheduler_adapter", None)
    if gave_up and waited:
        return (None, "timeout", "timeout")
    found = None
    if adapter is not None and hasattr(adapter, "_finished_lookup_results"):
        found = adapter._finished_lookup_results.get(request.request_id)  # noqa: SLF001 - no public way
        if found is None:
            return _not_asked(adapter, waited=waited)
    if found is None:
        found = asked_from + returned if returned else 0
    if found:
        return (found, "ok", None)
    chunk = getattr(adapter, "lmcache_tokens_per_chunk", 0)
    return (0, "miss", "below_chunk" if request.num_tokens < chunk else None)


def _not_asked(adapter: Any, *, waited: bool) -> Answer:
    """LMCache answered 0 without a result of its own: it is degraded, or bypasses this request."""
    if adapter.is_healthy:
        return (None, "skipped", None)
    return (None, "failed" if waited else "skipped", "unhealthy")


def pin_owners(connector: Any) -> dict[int, str]:
    """Block id -> the request for whose store LMCache's lazy offload holds it; empty for others."""
    pending = getattr(connector, "_pending_store", None)
    owned = getattr(pending, "_request_block_ids", None) or {}
    return {block: request_id for request_id, blocks in owned.items() for block in blocks}
