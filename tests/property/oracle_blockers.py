"""Blockers by brute force: every tick of a window is divided among those to blame, in exact fractions.

Written from the definition in words, on the windows of oracle_rows.py, apart from the implementation.

    capacity   queue of r0 lacks 10      tick: holds a (8), b (8)  ->  H = 16 >= 10 > 0: a 1/2, b 1/2
    waits      r0 between its steps      tick: wait names a and c  ->  a 1/2, c 1/2
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tests.property.oracle import OTHER, WAIT_REASONS, active, bottleneck_first, holding, interferes
from tests.property.oracle_rows import (
    FOREVER_NS,
    Interval,
    Row,
    Window,
    counting,
    engine_of,
    last_record,
    named_by,
    windows_of,
)

Key = tuple[str, str | None, str, str | None]  # request, blocker, class, reason


@dataclass
class Part:
    """What one blocker has of one request: a fraction of ns or unknown, and the ticks of its overlap."""

    exposed: Fraction = Fraction(0)
    unknown: bool = False
    ticks: set[int] = field(default_factory=set)


def blockers_by_ticks(
    spans: Sequence[Row], losses: Sequence[Row] = (), processes: Sequence[Row] = (), window: str = "e2e"
) -> dict[Key, Part]:
    """Every (request, blocker, class, reason) of one window."""
    parts: dict[Key, Part] = defaultdict(Part)
    rows = counting(spans)
    requests = {row["request_id"]: row for row in rows if row["op"] == "request"}
    for seen in windows_of(spans, losses, processes):
        if seen.name != window:
            continue
        engine = engine_of(requests[seen.request_id], rows)
        kept = [lasting(row, spans, processes) for row in rows if row["op"] == "hold"]
        kept = [hold for hold in kept if engine is not None and hold.row.get("engine") == engine]
        hops = bottleneck_first(seen)
        for tick in seen.ticks:
            winner = next(iter(holding(seen, tick, hops)), OTHER)[0]
            by_waits(parts, seen, tick, winner)
            by_holds(parts, seen, tick, winner, active(kept, tick))
    return dict(parts)


def lasting(hold: Row, spans: Sequence[Row], processes: Sequence[Row]) -> Interval:
    """A hold; an open one lasts to its process's last record."""
    end_ns = hold.get("end_ns")
    if end_ns is not None:
        return Interval(hold["start_ns"], end_ns, hold, is_open=False)
    process = hold.get("process")
    last_ns = FOREVER_NS if process is None else last_record(process, "process", spans, processes)
    return Interval(hold["start_ns"], last_ns, hold, is_open=True)


def by_waits(parts: dict[Key, Part], seen: Window, tick: int, winner: str) -> None:
    """Waits that do not name the request: in a step of it their own class, else interference."""
    steps, waits = active(seen.steps, tick), active(seen.waits, tick)
    for reason in WAIT_REASONS if steps else ():
        same = [wait for wait in waits if wait.row.get("reason") == reason]
        others = {
            (name, reason)
            for wait in same
            for name in named_by(wait.row)
            if seen.request_id not in named_by(wait.row)
        }
        itself = any(seen.request_id in named_by(wait.row) for wait in same)
        blame(parts, seen, tick, f"wait_{reason}", others, won=winner == f"wait_{reason}" and not itself)
    others = set()
    for wait in waits:
        reason = wait.row.get("reason")
        if interferes(wait, seen, steps) and not (steps and reason is not None):
            others |= {(name, reason) for name in named_by(wait.row) or [None]}
    blame(parts, seen, tick, "interference", others, won=winner == "interference")


def blame(parts: dict[Key, Part], seen: Window, tick: int, kind: str, others: set[Any], *, won: bool) -> None:
    """One tick, divided equally."""
    for name, reason in others:
        part = parts[seen.request_id, name, kind, reason]
        part.ticks.add(tick)
        if won:
            part.exposed += Fraction(1, len(others))


def by_holds(parts: dict[Key, Part], seen: Window, tick: int, winner: str, kept: Sequence[Interval]) -> None:
    """One tick of a queue for capacity, divided by blocks among the holds of the engine."""
    queues = [queue for queue in active(seen.queues, tick) if queue.row.get("reason") == "capacity"]
    if not queues:
        return
    first = min(queues, key=lambda queue: (queue.start_ns, queue.row["span_id"])).row
    needed, free = first.get("blocks"), first.get("free_blocks")
    lacked = None if needed is None or free is None else needed - free
    sizes = [hold.row.get("blocks") for hold in kept]
    total = None if None in sizes else sum(sizes)
    for hold, size in zip(kept, sizes, strict=True):
        part = parts[seen.request_id, hold.row.get("request_id"), "queue_capacity", hold.row.get("reason")]
        part.ticks.add(tick)
        if winner != "queue_capacity" or (lacked is not None and lacked <= 0):
            continue
        if lacked is None or total is None:
            part.unknown = True
        elif total >= lacked:
            part.exposed += Fraction(size, total)
