"""store_lag and missed_by_lag, request by request and key by key, in plain loops."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
BAD = ("failed", "timeout", "cancelled", "skipped")
FOREVER = 2**63 - 1


def of(spans: list[Row], op: str, name: str) -> list[Row]:
    return [row for row in spans if row["op"] == op and row["request_id"] == name]


def stores(spans: list[Row], name: str) -> list[Row]:
    """What left the GPU; where nothing did, what moved further down."""
    every = of(spans, "store", name)
    return [row for row in every if row["tier_from"] in ("gpu", "unknown")] or every


def good(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["outcome"] not in BAD]


def over_ns(row: Row) -> int | None:
    """When a store is complete: the later of its end and of when it is usable."""
    return None if row["end_ns"] is None else max(row["end_ns"], row["usable_ns"] or 0)


def whole(values: list[int | None]) -> int | None:
    return None if None in values else sum(value or 0 for value in values)


def lag(spans: list[Row], keys: list[Row], name: str) -> Row:
    """One row of store_lag, where somebody records stores and no record is missing."""
    (request,) = of(spans, "request", name)
    mine = stores(spans, name)
    ended = [row for row in good(mine) if row["end_ns"] is not None]
    still_open = [row for row in good(mine) if row["end_ns"] is None]
    holds = [row for row in of(spans, "hold", name) if row["reason"] == "store"]
    drops = of(spans, "drop", name)
    completed = None if still_open or not ended else max(over_ns(row) or 0 for row in ended)
    asked = whole([key["tokens"] for key in keys if key["request_id"] == name] or [None])
    found = next((row["found_tokens"] for row in of(spans, "lookup", name)), None)
    nothing = bool(drops) and all(row["reason"] == "duplicate" for row in drops)
    nothing = nothing or (asked is not None and asked > 0 and found is not None and found >= asked)
    never: bool | None = True
    untold = asked is None and bool(found) and not drops and len(good(mine)) == len(mine)
    if ended or nothing:
        never = False
    elif request["end_ns"] is None or still_open or untold or any(row["end_ns"] is None for row in holds):
        never = None
    finished = request["end_ns"]
    return {
        "finished_ns": finished,
        "completed_ns": completed,
        "stored_tokens": whole([row["tokens"] for row in ended]) if ended else None if still_open else 0,
        "never_stored": never,
        "lag_ns": None if completed is None or finished is None else completed - finished,
    }


def missed(
    spans: list[Row], keys: list[Row], names: list[str]
) -> dict[tuple[str, str], tuple[int, int | None]]:
    """(request, producer) -> (tokens, late by), as missed_by_lag says it."""
    rows: dict[tuple[str, str], list[tuple[int, int | None]]] = {}
    for name in names:
        lookups = [row for row in of(spans, "lookup", name) if row["found_tokens"] is not None]
        if not lookups:
            continue
        at, stop = lookups[0]["start_ns"], 0
        for key in prompt(keys, name):
            stop += key["tokens"]
            if stop <= lookups[0]["found_tokens"]:
                continue
            waiting = [
                found
                for other in names
                if other != name and (found := pending(spans, keys, other, key["key"], at)) is not None
            ]
            if not waiting:
                break
            complete, _, producer = min(waiting)
            rows.setdefault((name, producer), []).append((key["tokens"], complete - at))
    return {pair: (sum(tokens for tokens, _ in parts), _latest(parts)) for pair, parts in rows.items()}


def _latest(parts: list[tuple[int, int | None]]) -> int | None:
    """The latest of the keys; not known where the end of one was not seen."""
    lates = [late for _, late in parts if late is not None]
    return max(lates) if max(lates) < FOREVER // 2 else None


def prompt(keys: list[Row], name: str) -> list[Row]:
    """Keys from the first on, as long as each says its tokens."""
    known: list[Row] = []
    for key in sorted((key for key in keys if key["request_id"] == name), key=lambda key: key["position"]):
        if key["tokens"] is None or key["position"] != len(known):
            break
        known.append(key)
    return known


def pending(spans: list[Row], keys: list[Row], name: str, key: str, at: int) -> tuple[int, int, str] | None:
    """(complete, decided, request) of the store of this key that is decided by `at` and not over."""
    begin = next(
        (row["found_tokens"] for row in of(spans, "lookup", name) if row["found_tokens"] is not None), 0
    )
    order = sorted(good(stores(spans, name)), key=_place)
    found: list[tuple[int, int]] = []
    unknown = False
    for row in order:
        unknown = unknown or row["tokens"] is None
        end = FOREVER if unknown else begin + row["tokens"]
        stop = 0
        for asked in prompt(keys, name):
            stop += asked["tokens"]
            if asked["key"] == key and stop - asked["tokens"] >= begin and stop <= end:
                decided = min(time for time in (row["queued_ns"], row["start_ns"]) if time is not None)
                complete = over_ns(row)
                found.append((FOREVER if complete is None else complete, decided))
        begin += row["tokens"] or 0
    waiting = [(complete, decided) for complete, decided in found if decided <= at < complete]
    return (*min(waiting), name) if waiting else None


def _place(row: Row) -> tuple[int, int, int]:
    complete = over_ns(row)
    return row["start_ns"], FOREVER if complete is None else complete, row["tokens"] or FOREVER
