"""Literal rows of engines that share a cache: who asked, stored and loaded what. Seconds.

r0 on a: asks k0 k1, misses, stores  |--[1 ===== 2]|    the server writes them at 1.5
r1 on b: asks k0 k1, finds, loads                  |--[6 == 7]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.analyses.compatibility import COLUMNS, compatibility, invariants
from tests.rows import write_run

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000
SPACE = "lmcache:unknown:m"
Row = dict[str, Any]
SERVER = {"process": "l0", "engine": "l0", "role": "server", "product": "lmcache"}


def said(name: str, told: str | None = None, **fields: str) -> list[Row]:
    """An identity, alike on both sides."""
    row = {"identity_id": name, "source": "VllmConfig", "enforced_by": told}
    return [
        row | {"side": side, "field": field, "value": value}
        for side in ("writer", "reader")
        for field, value in fields.items()
    ]


def keys(request: str, at: float, *names: str, space: str = SPACE, size: int = 64) -> list[Row]:
    row: Row = {
        "request_id": request,
        "key_space": space,
        "tokens": size,
        "time_ns": round(at * S),
        "attempt": 1,
    }
    return [row | {"position": place, "key": name} for place, name in enumerate(names)]


def span(op: str, request: str, engine: str, at: float, end: float, **more: Any) -> Row:
    row: Row = {
        "op": op,
        "request_id": request,
        "engine": engine,
        "process": f"{engine}/1",
        "evidence": "shim",
    }
    row |= {"start_ns": round(at * S), "end_ns": round(end * S), "observer": "scheduler", "outcome": "ok"}
    return row | {"span_id": hash((op, request, engine, at)) % 2**63} | more


def lookup(request: str, engine: str, at: float, found: int, asked: int = 128, **more: Any) -> Row:
    return span("lookup", request, engine, at, at + 0.1, found_tokens=found, requested_tokens=asked,
                component="lmcache", **more)  # fmt: skip


def store(request: str, engine: str, at: float, **more: Any) -> Row:
    return span("store", request, engine, at, at + 1, tier_from="gpu", tier_to="host", observer="client",
                component="lmcache", **more)  # fmt: skip


def load(request: str, engine: str, at: float, tokens: int | None = None, **more: Any) -> Row:
    row = {"tier_from": "host", "tier_to": "gpu", "observer": "client", "component": "lmcache"}
    return span("load", request, engine, at, at + 1, tokens=tokens, **(row | more))


def written(at: float, *names: str, **more: Any) -> list[Row]:
    row: Row = {"event": "written", "time_ns": round(at * S), "key_space": SPACE, "component": "lmcache.l1"}
    row |= {"tier": "host", "engine": "l0", "process": "l0", "evidence": "native"} | more
    return [row | {"key": name} for name in names]


def produced(engine: str = "a", request: str = "r0", at: float = 1, *names: str) -> dict[str, list[Row]]:
    """A request that found nothing and stored two keys."""
    names = names or ("k0", "k1")
    return {
        "span": [lookup(request, engine, at - 0.5, 0), store(request, engine, at)],
        "request_key": keys(request, at - 0.5, *names),
        "block": written(at + 0.5, *names),
    }


def reused(engine: str = "b", request: str = "r1", at: float = 5) -> dict[str, list[Row]]:
    """One that found and read both."""
    return {
        "span": [lookup(request, engine, at, 128), load(request, engine, at + 1, 128)],
        "request_key": keys(request, at, "k0", "k1"),
    }


def drawn(path: Path, *parts: dict[str, list[Row]], **more: list[Row]) -> dict[str, list[Row]]:
    """Findings by invariant of the run with all these rows."""
    tables: dict[str, list[Row]] = {"process": [SERVER]}
    for part in (*parts, more):
        for table, rows in part.items():
            tables[table] = [*tables.get(table, []), *rows]
    found: dict[str, list[Row]] = {name: [] for name in invariants()}
    frame = compatibility(write_run(path / "run", None, **tables))
    assert frame.schema == COLUMNS
    for row in frame.to_dicts():
        found[row["invariant"]].append(row)
    return found
