"""What does HiCache move between host memory and its storage?

    _storage_hit_query   lookup  how many tokens of a request the storage has
    _page_transfer       load    storage to host, the pages of one request; partial when pages are missing
    _page_backup         store   host to storage, the pages of a node, which belongs to no request

The I/O threads' own calls, on the host's clock. Bytes are not said: pages have the layout of their pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace import recorder
from kvtrace.instrument.sglang.caches import name
from kvtrace.instrument.wrapping import around

if TYPE_CHECKING:
    from typing import Any

TIERS = {
    "file": "disk", "hf3fs": "disk", "shm": "host", "mooncake": "peer", "simm": "peer", "mori": "peer",
    "npu_memcache": "peer", "eic": "object", "aibrix": "object", "seaweedfs": "object",
}  # fmt: skip
"""SGLang's `--hicache-storage-backend` -> the medium; of others it is unknown."""
_ALL: dict[str, str] = {"observer": "client", "evidence": "shim", "clock": "host"}
_COLUMNS = (
    "component", "request_id", "start_ns", "end_ns", "outcome", "reason", "attribution", "attributes.error",
)  # fmt: skip
LOOKUP = recorder.shape(
    "span", (*_COLUMNS, "requested_tokens", "found_tokens"), op="lookup", name="storage_hit_query", **_ALL
)
LOAD = recorder.shape(
    "span", (*_COLUMNS, "submit_ns", "tokens", "tier_from", "attributes.pages"), op="load", tier_to="host",
    purpose="prefetch", name="page_transfer", **_ALL,
)  # fmt: skip
STORE = recorder.shape(
    "span", (*_COLUMNS, "submit_ns", "tokens", "tier_to", "attributes.pages"), op="store", tier_from="host",
    name="page_backup", **_ALL,
)  # fmt: skip


def _began(_controller: Any, operation: Any) -> tuple[int, int]:
    return recorder.now(), operation.completed_tokens


def _where(controller: Any) -> tuple[str, str]:
    """The component and the medium of the storage."""
    backend = str(getattr(controller, "storage_backend_type", None) or "unknown")
    return f"hicache.l3.{backend}", TIERS.get(backend, "unknown")


def _query(cls: type, method: str) -> None:
    def told(begun: tuple[int, int], result: Any, controller: Any, operation: Any) -> None:
        asked, found = len(operation.token_ids), result[1]
        outcome = "miss" if not found else "ok" if found >= asked else "partial"
        row = (_where(controller)[0], name(operation.request_id), begun[0], recorder.now(), outcome, None)
        recorder.record((LOOKUP, *row, "request", None, asked, found))

    def failed(begun: tuple[int, int], error: BaseException, controller: Any, operation: Any) -> None:
        row = (
            _where(controller)[0],
            name(operation.request_id),
            begun[0],
            recorder.now(),
            "failed",
            "unknown",
        )
        recorder.record((LOOKUP, *row, "request", type(error).__name__, len(operation.token_ids), None))

    around(cls, method, _began, told, failed)


def _moved(cls: type, method: str) -> None:
    loads = method == "_page_transfer"

    def row(begun: tuple[int, int], error: str | None, controller: Any, operation: Any) -> None:
        end_ns, (component, tier), pages = recorder.now(), _where(controller), len(operation.hash_value)
        tokens = operation.completed_tokens - begun[1]
        wanted = pages * (getattr(controller, "page_size", 0) or 0)
        outcome = "ok" if wanted and tokens >= wanted else "partial" if tokens else "failed"
        if error is not None and not tokens:
            outcome = "failed"
        reason = None if outcome == "ok" else "io" if error else "unknown"
        who = (name(operation.request_id), "request") if loads else (None, "operation")
        start_ns = begun[0]
        columns = (component, who[0], start_ns, end_ns, outcome, reason, who[1], error)
        recorder.record((LOAD if loads else STORE, *columns, start_ns, tokens, tier, pages))

    def done(begun: tuple[int, int], _result: Any, controller: Any, operation: Any) -> None:
        row(begun, None, controller, operation)

    def failed(begun: tuple[int, int], error: BaseException, controller: Any, operation: Any) -> None:
        row(begun, type(error).__name__, controller, operation)

    around(cls, method, _began, done, failed)


HOOKS = {"_storage_hit_query": _query, "_page_transfer": _moved, "_page_backup": _moved}
