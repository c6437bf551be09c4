"""What a load restored for a group of layers, token by token: sets of positions, no intervals."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """One group of a load on one rank; ranges are whole blocks, (first, behind the last)."""

    kind: str
    span: int
    first: int
    block: int
    cached: tuple[tuple[int, int], ...]
    restored: tuple[tuple[int, int], ...] | None
    """None: its worker said nothing of this group."""


def needed(group: Group) -> set[int]:
    """The tokens whose state the first computed token looks at."""
    every = range(group.first)
    if group.kind == "window":
        return {token for token in every if group.first - token < group.span}
    if group.kind == "chunked":
        return {token for token in every if token // group.span == group.first // group.span}
    return {token for token in every if group.kind != "recurrent" or token == group.first - 1}


def lacking(group: Group) -> int:
    """How many of them nobody brought; of a recurrent state 1, where it is not that of exactly this token."""
    if group.kind == "recurrent":
        return 0 if group.first in _states(group) else len(needed(group))
    ranges = [*group.cached, *(group.restored or ())]
    given = {token for low, high in ranges for token in range(low * group.block, high * group.block)}
    return len(needed(group) - given)


def _states(group: Group) -> set[int]:
    """After how many tokens there is a state: at the end of each block, and where a load ended inside one."""
    found = set()
    for low, high in [*group.cached, *(group.restored or ())]:
        found |= {number * group.block for number in range(low + 1, high + 1)}
    for low, high in group.restored or ():
        if low < high:
            found |= set(range((high - 1) * group.block + 1, high * group.block + 1))
    return found


def verdict(group: Group, outcome: str | None) -> str:
    """The word that the analysis has for it."""
    told = {
        "failed": "failed",
        "partial": "failed",
        "cancelled": "cancelled",
        None: "open",
        "unknown": "open",
    }
    if outcome in told:
        return told[outcome]
    if group.restored is None:
        return "untold"
    return "lacking" if lacking(group) else "covered"
