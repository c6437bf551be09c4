"""break_even by plain loops: over the nouns, the partition and the measured paths, each tested on its own."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

Row = dict[str, Any]
WRONG = ("failed", "timeout", "cancelled")
COUNTED = ("load", "load_wait", "lookup", "lock", "wait_load", "wait_lookup", "wait_lock")


def first_loads(transfers: list[Row], again: dict[str, int | None]) -> dict[str, list[Row]]:
    """Loads of the first admission by request: no handoffs, forecasts or skipped ones."""
    found: dict[str, list[Row]] = {}
    for row in transfers:
        if row["op"] != "load" or row["purpose"] == "handoff" or row["evidence"] == "predicted":
            continue
        if row["outcome"] == "skipped" or row["request_id"] not in again:
            continue
        until = again[row["request_id"]]
        if until is None or row["start_ns"] is None or row["start_ns"] < until:
            found.setdefault(row["request_id"], []).append(row)
    return found


def arrived(loads: list[Row], what: str) -> int | None:
    """Bytes or tokens of the loads that did not fail; null where one of them is open or does not say."""
    good = [row for row in loads if row["outcome"] not in WRONG]
    if any(row[what] is None or row["end_ns"] is None for row in good):
        return None
    return sum(row[what] for row in good)


def moved(loads: list[Row], what: str) -> int | None:
    """What reached the GPU; null where no hop into it was recorded."""
    landing = [row for row in loads if row["tier_to"] in ("gpu", "unknown")]
    return arrived(landing, what) if landing else None


def bound(loads: list[Row], paths: list[Row], moves: list[Row]) -> tuple[int | None, int | None]:
    """(slowest hop, sum of hops), ns."""
    hops: dict[tuple[str, str], float] = {}
    key = ("tier_from", "tier_to", "component")
    places = {tuple(row[name] for name in key) for row in loads}
    told = False
    for place in sorted(places, key=str):
        mine = [row for row in loads if tuple(row[name] for name in key) == place]
        if all(row["outcome"] in WRONG for row in mine):
            continue
        told = True
        size = arrived(mine, "bytes")
        speed = next(
            (p for p in paths if tuple(p[n] for n in key) == place and not p["includes_queue"]), None
        )
        if size is None or (size > 0 and speed is None):
            return None, None
        time = 0.0
        if size > 0 and speed is not None:
            if speed["bandwidth_bytes_per_s"] is None:
                steady = [m["end_ns"] - m["start_ns"] for m in moves
                          if tuple(m[n] for n in key) == place and not m["includes_queue"]]  # fmt: skip
                time = float(np.median(steady))
            else:
                time = max(0.0, speed["latency_ns"] or 0.0) + size / speed["bandwidth_bytes_per_s"] * 1e9
        hops[place[:2]] = hops.get(place[:2], 0.0) + time  # type: ignore[index]
    return (round(max(hops.values())), round(sum(hops.values()))) if told else (None, None)


def paid(exposure: list[Row], name: str) -> int | None:
    """What is exposed of a request's loads until its first token; null where that is no measure."""
    own = [row for row in exposure if row["request_id"] == name and row["window"] == "ttft"]
    if not own or own[0]["bound"] != "exact":
        return None
    return sum(row["exposed_ns"] for row in own if row["class"] in COUNTED)


def computing(steps: list[Row], waits: list[Row]) -> list[tuple[int, int]]:
    """(ns, tokens) of every prefill step of one engine, tick by tick."""
    stalled = {tick for row in waits if row["end_ns"] for tick in range(row["start_ns"], row["end_ns"])}
    found, reached = [], -1
    for row in sorted(steps, key=lambda row: (row["start_ns"], row["end_ns"])):
        ticks = [t for t in range(row["start_ns"], row["end_ns"]) if t >= reached and t not in stalled]
        reached = max(reached, row["end_ns"])
        members = row["members"]
        told = all(m["scheduled_tokens"] is not None and m["computed_before"] is not None for m in members)
        prompt = any(
            m["phase"] == "prefill" or (m["phase"] is None and (m["scheduled_tokens"] or 0) > 1)
            for m in members
        )
        tokens = sum(m["scheduled_tokens"] or 0 for m in members)
        if ticks and told and prompt and tokens:
            found.append((len(ticks), tokens))
    return found


def least_deviation(sizes: np.ndarray[Any, Any], took: np.ndarray[Any, Any]) -> float:
    """The smallest sum of absolute deviations of any line >= 0: a best one goes through points."""
    number, width = sizes.shape
    best = float(np.abs(took).sum())
    for parts in range(1, width + 1):
        for columns in itertools.combinations(range(width), parts):
            for points in itertools.combinations(range(number), parts):
                square = sizes[np.ix_(points, columns)]
                if abs(np.linalg.det(square)) < 1e-9:
                    continue
                line = np.zeros(width)
                line[list(columns)] = np.linalg.solve(square, took[list(points)])
                if (line >= -1e-12).all():
                    best = min(best, float(np.abs(took - sizes @ line).sum()))
    return best
