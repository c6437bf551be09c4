"""What a router could see, event by event, route by route and counter by counter, in plain loops."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
SAID = {"gpu": "device_blocks", "host": "host_pinned_blocks", "disk": "disk_blocks"}
PREFIX = "dynamo_component_"


def places(run: dict[str, list[Row]]) -> dict[tuple[str, str | None], Row]:
    """(backend, tier) -> its row, of all places with keys and of all tiers that a router counted."""
    keys: dict[tuple[str, str | None], set[tuple[str, str]]] = {}
    published: dict[tuple[str, str | None], set[tuple[str, str]]] = {}
    applied: dict[tuple[str, str | None], int] = {}
    for row in run["block"]:
        if row["event"] not in ("stored", "written", "published") or row["key"] is None:
            continue
        if row.get("evidence") == "predicted":
            continue
        component = row["component"] or ""
        where = (row["component"] or row["key_space"].split(":")[0], row["tier"] or "unknown")
        key = (row["key_space"], row["key"])
        keys.setdefault(where, set()).add(key)
        if row["event"] == "published" or component.startswith("dynamo."):
            published.setdefault(where, set()).add(key)
        applied[where] = applied.get(where, 0) + (row["event"] == "published")
    told = _routes(run["span"])
    nobody: list[tuple[str, str | None]] = [
        ("router", tier) for tier in told if tier not in {tier for _, tier in keys}
    ]
    found = {}
    for where in [*keys, *nobody]:
        seen = told.get(where[1], [])
        number = len(published.get(where, ())) if where in keys else None
        found[where] = _row(
            where, keys=len(keys[where]) if where in keys else None, published_keys=number,
            applied=applied.get(where) or None, routes=len(seen),
            routes_counting=sum(each > 0 for each in seen) if seen else None,
        )  # fmt: skip
    return found


def _routes(spans: list[Row]) -> dict[str | None, list[int]]:
    """Tier -> what each choice that named it counted there."""
    told: dict[str | None, list[int]] = {}
    for row in spans:
        if row["op"] != "route" or row["evidence"] == "predicted":
            continue
        said, by_tier = dict(row["attributes"]), row["found_by_tier"]
        if by_tier is None and "device_blocks" not in said:
            continue
        for tier, name in SAID.items():
            number = dict(by_tier or []).get(tier)
            if number is None and said.get(name, "").isdigit():
                number = int(said[name])
            if number is not None:
                told.setdefault(tier, []).append(number)
    return told


def _row(where: tuple[str, str | None], **counts: int | None) -> Row:
    counting, routes = counts["routes_counting"] or 0, counts["routes"] or 0
    if counting or counts["applied"]:
        seen: tuple[str, str | None] = ("yes", "native")
    elif not counts["published_keys"] and routes and counts["keys"]:
        seen = ("no", "derived")
    else:
        seen = ("unknown", None)
    row = {"backend": where[0], "tier": where[1], **counts, "warned": None, "dropped": None}
    return row | {"visible": seen[0], "evidence": seen[1]}


def counted(run: dict[str, list[Row]]) -> dict[tuple[str, str | None], Row]:
    """The row of routers' own counters: of each counter of a process the largest that a page showed."""
    largest: dict[tuple[str, bool, str], float] = {}
    for row in run["metric"]:
        name = row["name"].removesuffix("_total").removeprefix(PREFIX)
        if row["value"] is None or name == "requests":
            continue
        where = (name, dict(row["labels"])["status"] == "ok", row["process"])
        largest[where] = max(largest.get(where, 0.0), row["value"])
    if not largest:
        return {}

    def total(*wanted: tuple[str, bool]) -> int | None:
        mine = [value for (name, is_ok, _), value in largest.items() if (name, is_ok) in wanted]
        return int(sum(mine)) if mine else None

    events, warned = "kv_cache_events_applied", "kv_cache_event_warnings"
    refused = "kv_publisher_engines_dropped_events"
    applied = total((events, True))
    is_router = any(name == events for name, *_ in largest)
    row = {
        "backend": "dynamo", "tier": None, "keys": None, "published_keys": None, "applied": applied,
        "warned": total((warned, True), (warned, False)),
        "dropped": total((events, False), (refused, True), (refused, False)),
        "routes": None, "routes_counting": None,
        "visible": "yes" if applied else "no" if is_router else "unknown",
        "evidence": "native" if is_router else None,
    }  # fmt: skip
    return {("dynamo", None): row}
