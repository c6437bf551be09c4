"""Log of Dynamo's router (JSON lines): which worker a request went to, and what the router saw of each tier.

    Queried lower-tier indexer    a tier below the device was asked for the workers that have the prefix
    [ROUTING_INPUT] ...           tokens of the prompt and of a block
    Formula for worker_id=...     effective blocks of each worker (debug)
    Selected worker               the choice: logit, blocks of host and disk beyond those of the device (info)
    [ROUTING] Best ...            effective blocks of the choice, rounded, and blocks of the prompt (debug)

All lines of a request until its `Best`, or its next choice, are one `route` row; a request that is routed
again has several, numbered by `attempt`. What the router credits is a forecast, in blocks: `effective`
counts a host block as 0.75 and a disk block as 0.25 unless configured otherwise. The device's own blocks are
no field: they are what the default weights leave of `effective`, and null where that cannot be. Blocks become
tokens only where a line says how large one is; they are always in `attributes`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kvtrace.sources.dynamo.names import alias, engine
from kvtrace.sources.records import (
    LATEST_NS,
    Rows,
    at,
    attributes,
    first_values,
    number,
    read_lines,
    text,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.sources.decoded import Decoded, Options
    from kvtrace.sources.stream import Stream

FORMAT = "dynamo-router-log"
MAX_OPEN, MAX_REQUESTS, MAX_WORKERS = 10_000, 100_000, 1_000
"""Requests with lines that wait, requests whose attempts are counted, and workers of one formula, at once."""
HOST_WEIGHT, DISK_WEIGHT = 0.75, 0.25
"""--router-host-cache-hit-weight and --router-disk-cache-hit-weight where nobody set them (1.5.1, 1.6.1)."""
QUERIED, INPUT, SELECTED = "Queried lower-tier indexer", "[ROUTING_INPUT]", "Selected worker"
BEST, FORMULA = "[ROUTING] Best", "Formula for worker_id="
_FORMULA = re.compile(
    r"Formula for worker_id=(\d+) dp_rank=(\d+) with (\d{1,18}(?:\.\d*)?) effective cached blocks", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ASKED = ("queried_workers", "matched_workers")
_KEPT = ("worker_id", "dp_rank", "worker_type", "router_mode", "logit", "host_pinned_blocks", "disk_blocks",
         "overlap_blocks", "total_blocks", "effective_cached_blocks", "total_kv_blocks")  # fmt: skip
_JOINED = ("block_size", "isl_tokens", "trace_id", "span_id", "x_request_id")


def looks_like(head: bytes) -> bool:
    """Whether the first line is a log record, and one of the first is of a part of Dynamo."""
    found = first_values(head, 50)
    if not found or not all(isinstance(at(found[0], name), str) for name in ("time", "level", "target")):
        return False
    return any(str(at(value, "target")).startswith("dynamo") for value in found)


def read(stream: Stream, source: str, options: Options) -> Iterator[Decoded]:
    """The parts of a file."""
    del options
    return read_lines(stream, Log(source))


@dataclass
class _Route:
    """What the lines of one routing have said so far."""

    start_ns: int
    end_ns: int
    said: dict[str, Any] = field(default_factory=dict)
    tiers: dict[str, Any] = field(default_factory=dict)
    workers: dict[tuple[str, str], float] = field(default_factory=dict)


class Log:
    """Takes log records, adds a route a routing."""

    def __init__(self, source: str) -> None:
        self.rows = Rows(source)
        self._open: dict[str, _Route] = {}
        self._attempts: dict[str, int] = {}

    def take(self, value: Any) -> None:
        """One log record."""
        message = at(value, "message")
        if not isinstance(message, str):
            self.rows.refuse("lines that are no log records", op="route")
            return
        if not message.startswith((QUERIED, INPUT, SELECTED, BEST, FORMULA)):
            self.rows.remark("log lines of other things, left out")
            return
        request, time = text(value.get("request_id")), moment(value.get("time"))
        if request is None or time is None:
            self.rows.refuse("routing lines without a request or a time", op="route")
            return
        self._line(request, time, message, value)

    def finish(self) -> None:
        """Routings whose last line is missing are routings all the same."""
        for request in list(self._open):
            self._close(request, unclean=True)

    def _line(self, request: str, time: int, message: str, value: dict[str, Any]) -> None:
        """Put a line to its routing, which it may open or close."""
        known = self._open.get(request)
        if known and message.startswith(SELECTED) and "logit" in known.said:
            self._close(request)
            known = None
        if known is None:
            if len(self._open) >= MAX_OPEN:
                self._close(next(iter(self._open)))
            known = self._open[request] = _Route(time, time)
        known.start_ns, known.end_ns = min(known.start_ns, time), max(known.end_ns, time)
        if message.startswith(QUERIED):
            tier = (text(value.get("storage_tier")) or "unknown")[:32]
            if len(known.tiers) < 16:
                known.tiers |= {
                    f"{tier}.{name}": value.get(name) for name in ("queried_workers", "matched_workers")
                }
        elif found := _FORMULA.match(message):
            if len(known.workers) < MAX_WORKERS:
                known.workers[found[1], found[2]] = float(found[3])
        else:
            known.said |= {name: value[name] for name in (*_KEPT, *_JOINED) if _small(value.get(name))}
        if message.startswith(BEST):
            self._close(request)

    def _close(self, request: str, *, unclean: bool = False) -> None:
        """The row of a routing and the caller's name of its request."""
        route = self._open.pop(request)
        said = route.said
        if "worker_id" not in said:
            cause = "unclean_end" if unclean else "undecodable"
            self.rows.refuse("routings without a choice", op="route", cause=cause)
            return
        while len(self._attempts) >= MAX_REQUESTS and request not in self._attempts:
            del self._attempts[next(iter(self._attempts))]
        attempt = self._attempts[request] = self._attempts.get(request, 0) + 1
        trace, parent = text(said.get("trace_id")), text(said.get("span_id"))
        self.rows.add("span", {
            "op": "route", "name": SELECTED, "request_id": request, "id_kind": "internal",
            "start_ns": route.start_ns, "end_ns": route.end_ns, "attempt": attempt, "observer": "router",
            "engine": engine(said.get("worker_id"), said.get("dp_rank")), "attribution": "request",
            "evidence": "native", "outcome": "ok",
            "trace_id": trace if trace and re.fullmatch("[0-9a-f]{32}", trace) else None,
            "parent_span_id": int(parent, 16) if parent and re.fullmatch("[0-9a-f]{16}", parent) else None,
            **_tokens(route),
        })  # fmt: skip
        client = text(said.get("x_request_id"))
        if client and client != request:
            self.rows.add("alias", alias(client, "client", request, self.rows.source))


def _small(value: Any) -> bool:
    """Whether a value is a number or a name: only these wait."""
    return number(value) is not None or text(value) is not None


def _tokens(route: _Route) -> dict[str, Any]:
    """Tokens asked, seen and forecast, where the size of a block is known; blocks as attributes."""
    said = route.said
    size = whole(said.get("block_size")) or None
    host, disk = whole(said.get("host_pinned_blocks")), whole(said.get("disk_blocks"))
    effective, exact = _effective(route)
    device = _device(effective, host, disk, whole(said.get("total_blocks")), exact=exact)
    blocks = {"gpu": device, "host": host, "disk": disk}
    if device is not None and host is not None and disk is not None:  # exact, where the log rounds to blocks
        effective = device + HOST_WEIGHT * host + DISK_WEIGHT * disk
    tokens = {tier: whole(count * size) for tier, count in blocks.items() if count is not None and size}
    found = {tier: known for tier, known in tokens.items() if known is not None}
    basis = "default weights" if device is not None and (host or disk) else None
    best = max(route.workers.values(), default=None)
    return {
        "requested_tokens": whole(said.get("isl_tokens")),
        "found_tokens": whole(sum(found.values())) if len(found) == len(blocks) else None,
        "found_by_tier": found or None,
        "predicted_tokens": _forecast(effective, size),
        "attributes": attributes(
            **{name: said.get(name) for name in _KEPT}, device_blocks=device, effective_blocks=effective,
            block_size=size, best_available_blocks=best,
            device_blocks_basis=basis, candidates=len(route.workers) or None,
            **{f"lower_tier.{name}": given for name, given in route.tiers.items()},
        ),
    }  # fmt: skip


def _forecast(effective: float | None, size: int | None) -> int | None:
    """Tokens of the effective blocks; null where either is unknown, or no count of tokens comes of it."""
    if effective is None or size is None or not effective * size < LATEST_NS:
        return None
    return whole(int(effective * size))


def _effective(route: _Route) -> tuple[float | None, bool]:
    """Effective blocks of the chosen worker, and whether they are exact: `overlap_blocks` is rounded."""
    chosen = (str(route.said.get("worker_id")), str(route.said.get("dp_rank", "0")))
    given = route.workers.get(chosen, number(route.said.get("effective_cached_blocks")))
    return (number(route.said.get("overlap_blocks")), False) if given is None else (given, True)


def _device(
    effective: float | None, host: int | None, disk: int | None, total: int | None, *, exact: bool
) -> int | None:
    """Blocks of the device's own prefix: what the default weights leave; null where that cannot be.

    33 host blocks are 24.75 effective ones and show as 25 in `overlap_blocks`.
    """
    if effective is None or host is None or disk is None:
        return None
    left = effective - HOST_WEIGHT * host - DISK_WEIGHT * disk
    if not -0.5 <= left < LATEST_NS:
        return None
    found = round(left)
    fits = abs(left - found) <= (0.01 if exact else 0.5)
    return found if fits and found >= 0 and (total is None or found + host + disk <= total) else None


def moment(value: Any) -> int | None:
    """A time in ISO 8601 as unix ns; one without an offset is UTC."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    fraction = re.search(r"\.(\d+)", value)
    try:
        found = datetime.fromisoformat(
            value[: fraction.start()] + value[fraction.end() :] if fraction else value
        )
    except ValueError:
        return None
    since = (found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH
    nanoseconds = int((fraction[1] if fraction else "0")[:9].ljust(9, "0"))
    whole_seconds = since.days * 86_400 + since.seconds
    return whole_seconds * 1_000_000_000 + nanoseconds if 0 < whole_seconds < 9_000_000_000 else None
