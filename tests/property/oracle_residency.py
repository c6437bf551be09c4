"""Residency by replaying every event, one after another, over a set of objects."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
BRING, TAKE = ("stored", "written", "published"), ("removed", "expired")
SPOT = ("tier", "component", "engine", "locality", "key_space")
OBJECT = (*SPOT, "object_group", "key")


def in_order(blocks: list[Row]) -> list[Row]:
    """As they happened: by time, then message, then what takes before what brings."""
    known = [
        row for row in blocks if row["event"] in (*BRING, *TAKE, "cleared") and row["time_ns"] is not None
    ]
    known = [row for row in known if row.get("evidence") != "predicted"]
    return sorted(known, key=lambda row: (row["time_ns"], _number(row), row["event"] in BRING))


def _number(row: Row) -> int:
    return -1 if row["seq"] is None else int(row["seq"])


def states(blocks: list[Row]) -> dict[int, dict[tuple[Any, ...], Row]]:
    """Time -> what is there after all events of that time: object -> the rows that brought it, as one."""
    there: dict[tuple[Any, ...], Row] = {}
    found = {}
    for row in in_order(blocks):
        if row["event"] == "cleared":
            there = {name: kept for name, kept in there.items() if not _named(row, name)}
        elif row["event"] in TAKE:
            there.pop(tuple(row[part] for part in OBJECT), None)
        else:
            name = tuple(row[part] for part in OBJECT)
            before = there.get(name, {})
            there[name] = {part: _most(before.get(part), row.get(part)) for part in ("tokens", "bytes")}
        found[row["time_ns"]] = dict(there)
    return found


def _named(clearing: Row, name: tuple[Any, ...]) -> bool:
    return all(clearing[part] in (None, value) for part, value in zip(SPOT, name, strict=False))


def _most(one: int | None, other: int | None) -> int | None:
    return max((number for number in (one, other) if number is not None), default=None)


def tells_ends(blocks: list[Row]) -> set[tuple[Any, ...]]:
    """(tier, component, key space) of which some event is more than `written`."""
    rows = in_order(blocks)
    seen = {
        tuple(row[part] for part in ("tier", "component", "key_space"))
        for row in rows
        if row["event"] not in ("written", "cleared")
    }
    spots = {tuple(row[part] for part in SPOT) for row in rows if row["event"] != "cleared"}
    clearings = [row for row in rows if row["event"] == "cleared"]
    return seen | {(s[0], s[1], s[4]) for s in spots for row in clearings if _named(row, s)}
