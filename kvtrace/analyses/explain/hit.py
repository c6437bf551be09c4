"""Whether what a request read was the state it needs, still there, and worth its wait: `verdict` in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import duration, visible

if TYPE_CHECKING:
    from kvtrace.analyses.explain.gathering import Row, Story

_WORTH = {
    "yes": "It was worth its wait",
    "no": "It was not worth its wait",
    "unclear": "Whether it was worth its wait is not clear",
}
_GONE = {
    "vanished": "What it had found was gone when it was to be read",
    "expired": "The protection of what it had found ran out before it was read",
}


def hit(story: Story) -> tuple[str, str]:
    """What follows the cache's offer, a space before each sentence; nothing where nothing was read."""
    row = story.hit
    if row is None:
        return "", ""
    said, stands_on = "", []
    if row["same_state"] == "no":
        said += f" It read state of another kind ({visible(row['same_state_basis'])})."
        stands_on.append("compatibility")
    if row["still_there"] in _GONE:
        said += f" {_GONE[row['still_there']]}{_numbers(row['still_there_basis'])}."
        stands_on.append("verdict")
    if row["worth_it"] in _WORTH and row["cost_ns"] is not None:
        said += f" {_WORTH[row['worth_it']]}: {_against(row)}."
        stands_on.append("break_even")
    return said, "".join(f"; {name}" for name in stands_on)


def _numbers(basis: str) -> str:
    """What the contract of its locks says of it; a load that only says that it failed adds nothing."""
    return (
        "" if basis.startswith("a load failed") else f": {visible(basis.removeprefix('ttl_expired: '), 200)}"
    )


def unchecked(story: Story) -> list[str]:
    """What cannot be said of what it read."""
    row = story.hit
    if row is None or row["same_state"] != "unchecked" or not row["has_load"]:
        return []
    return [f"whether what it read is the state that it needs ({visible(row['same_state_basis'])})"]


def _against(row: Row) -> str:
    low, high, estimate = row["recompute_low"], row["recompute_high"], row["recompute_estimate_ns"]
    if low is not None and high is not None:
        ends = dict.fromkeys((duration(round(low)), duration(round(high))))
        other = f"computing those tokens takes {' to '.join(ends)}"
    elif estimate is not None:
        other = f"computing those tokens takes about {duration(estimate)}, with an error that is not known"
    else:
        other = "what computing those tokens takes cannot be estimated"
    return f"{_waited(row)}, and {other}"


def _waited(row: Row) -> str:
    """What was measured, at least so much where its end was not seen; else what its load takes."""
    cost = duration(row["cost_ns"])
    if not row["exact"]:
        return f"its load takes {cost}, of which an unknown part was hidden"
    more = row["cost_low"] is not None and row["cost_high"] is None
    return f"{cost} was waited for{' at least' if more else ''}"
