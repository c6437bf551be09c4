"""Literal rows of an LMCache server that was recorded from inside; times in seconds, locks live for 10."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.analyses.lock_contract import lock_contract
from tests.rows import write_run

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kvtrace.run import Run

S = 1_000_000_000
READ_TTL, WRITE_TTL, LAST = 10, 20, 200
SPACE = "lmcache:unknown:m"
Row = dict[str, Any]
DROPPED: tuple[Row, ...] = ({"cause": "dropped", "process": "l0", "count": 3},)
CONFIG = {"engines": {"l0": {"product": "lmcache", "eviction_policy": "LRU"}}}


def ns(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * S)


def event(word: str, at: float, key: str = "k", **more: Any) -> Row:
    """What the server says of an object."""
    row = {"event": word, "time_ns": ns(at), "key": key, "key_space": SPACE, "component": "lmcache.l1"}
    ttl = {"locked": READ_TTL * S, "reserved": WRITE_TTL * S}.get(word)
    row |= {
        "process": "l0",
        "tier": "host",
        "rank": 0,
        "object_group": "0",
        "evidence": "native",
        "ttl_ns": ttl,
    }
    return row | more


def asked(word: str, at: float, key: str = "k", **more: Any) -> Row:
    """What was asked of its storage; the only rows with counts."""
    count = 1 if word in ("locked", "unlocked") else None
    return event(word, at, key, **({"reason": "asked", "count": count} | more))


def written(at: float, key: str = "k", **more: Any) -> list[Row]:
    """Reserved and written within a tenth of a second."""
    return [event("reserved", at, key, **more), event("written", at + 0.1, key, **more)]


def span(name: str, at: float, end: float | None, **more: Any) -> Row:
    """A row of the server; without an op it is one of LMCache's own."""
    row = {"name": name, "start_ns": ns(at), "end_ns": ns(end), "process": "l0", "observer": "server"}
    row |= {"request_id": "r", "evidence": "native", "span_id": hash((name, at, end)) % 2**63}
    attributes = more.pop("attributes", None)
    return row | ({"attributes": list(attributes.items())} if attributes else {}) | more


def lookup(at: float, end: float | None, found: int | None, in_l1: int | None = None, **more: Any) -> Row:
    """A lookup of 128 tokens; what is not of L1 is of the disk."""
    tiers = None if found is None else [("host", found if in_l1 is None else in_l1)]
    if tiers and in_l1 is not None:
        tiers.append(("disk", (found or 0) - in_l1))
    row = {"op": "lookup", "component": "lmcache", "found_tokens": found, "requested_tokens": 128}
    return span("mp.lookup_prefetch", at, end, **(row | {"found_by_tier": tiers} | more))


def keys(*names: str, request: str = "r", at: float = 1) -> list[Row]:
    """What a request asked for, 64 tokens a key."""
    row = {"request_id": request, "key_space": SPACE, "tokens": 64, "time_ns": ns(at), "attempt": 1}
    return [row | {"position": place, "key": name} for place, name in enumerate(names)]


def drawn(tmp_path: Path, *blocks: Row, loss: Iterable[Row] = (), last: float = LAST, **tables: Any) -> Run:
    """A run of one server that recorded on until `last`."""
    server = {"process": "l0", "product": "lmcache", "role": "server", "last_ns": ns(last)}
    meta = tables.pop("meta", CONFIG)
    size = {"identity_id": "l0", "side": "writer", "field": "chunk_size", "value": "64"}
    tables = {"process": [server], "identity": [size]} | tables
    return write_run(tmp_path / "run", meta, block=list(blocks), loss=list(loss), **tables)


def findings(run: Run, invariant: str, **options: Any) -> list[Row]:
    return lock_contract(run, only=(invariant,), **options).to_dicts()


def only(run: Run, invariant: str, **options: Any) -> tuple[str, str | None, str]:
    """Status, severity and detail of the one row."""
    (row,) = findings(run, invariant, **options)
    return row["status"], row["severity"], row["detail"]


def status(run: Run, invariant: str, **options: Any) -> str:
    return only(run, invariant, **options)[0]
