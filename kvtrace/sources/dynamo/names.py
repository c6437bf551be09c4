"""Dynamo's words in ours: workers, tiers, keys, names of requests."""

from __future__ import annotations

import re
from typing import Any

from kvtrace.sources.records import text

MS = 1_000_000
KEY_SPACE = "dynamo:engine:unknown"
"""Keys of blocks as the engine names them. Neither KV events nor request_end name a model (1.6.1), and the
keys of both have to be of one space to compare."""
TIERS = {"device": "gpu", "host_pinned": "host", "disk": "disk", "external": "unknown"}
"""storage_tier of the event plane. `external` covers another machine's memory and any object store alike."""
UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LATEST_KEY = 2**64


def engine(worker: Any, rank: Any) -> str | None:
    """One worker is one engine; a data-parallel rank other than 0 is another one."""
    name = str(worker) if isinstance(worker, int) and not isinstance(worker, bool) else text(worker)
    at_rank = str(rank) if isinstance(rank, int | str) and not isinstance(rank, bool) else "0"
    if name is None or len(name) > 64 or at_rank in ("", "0"):
        return name and name[:64]
    return f"{name}/{at_rank[:20]}"


def key(block_hash: Any) -> str | None:
    """A 64-bit block hash as 16 hexadecimal digits, as vLLM's are; a negative one is read as unsigned."""
    if isinstance(block_hash, bool) or not isinstance(block_hash, int):
        return None
    return f"{block_hash % LATEST_KEY:016x}" if -LATEST_KEY < 2 * block_hash < 2 * LATEST_KEY else None


def outside_names(request: str) -> tuple[str, ...]:
    """What API servers call a request of this uuid; which endpoint it came through decides, if known."""
    return tuple(f"{prefix}-{request}" for prefix in ("chatcmpl", "cmpl")) if UUID.fullmatch(request) else ()


def alias(name: str, kind: str, request: str, source: str, evidence: str = "native") -> dict[str, Any]:
    """A row of `alias`."""
    return {"alias": name, "kind": kind, "request_id": request, "source": source, "evidence": evidence}
