"""Whom a request waited for: others' waits and held blocks, and a cache that was not well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import bounded, duration, listed, many, visible

if TYPE_CHECKING:
    from kvtrace.analyses.explain.gathering import Row, Story

_FOR = {"store": "stores", "load": "loads"}
_NOBODY_LOOKED = (
    "Whom it waited for was not observed: neither waits of its engine nor held GPU blocks are in this run."
)
_WAITS = ("interference", "wait_load", "wait_store", "wait_lookup", "wait_lock")


def whom(story: Story) -> tuple[str, str]:
    """By name: holders of GPU blocks, others' waits, the health of the cache."""
    rows = [row for row in story.blockers if row["window"] == "e2e"]
    held = [row for row in rows if row["class"] == "queue_capacity"]
    waits = [row for row in rows if row["class"] in _WAITS and row["exposed_ns"]]
    told = [*_holders(story, held), *_waits(story, waits), *_health(story)]
    if told:
        text = "; ".join(told)
        return f"{text[0].upper()}{text[1:]}.", "blockers, window e2e; health"
    seen = [
        words
        for fact, words in (("engine_waits", "wait of an engine"), ("gpu_blocks_held", "hold of GPU blocks"))
        if story.observed.get(fact)
    ]
    if not seen:
        return _NOBODY_LOOKED, "coverage: engine_waits, gpu_blocks_held"
    return f"No {' and no '.join(seen)} of another request is recorded to have held it up.", "blockers"


def _time(ns: int, story: Story) -> str:
    """A part of its time, which is a bound where its partition is one."""
    return bounded(duration(ns), story.bound or "exact")


def _by(row: Row) -> str:
    name = row["blocker_request_id"]
    own = name is not None and name == row["request_id"]
    return "itself" if own else "somebody unnamed" if name is None else visible(name)


def _holders(story: Story, rows: list[Row]) -> list[str]:
    """How long for blocks that whom held for what."""
    if not rows:
        return []
    given = [row for row in rows if row["exposed_ns"]]
    unknown = [row for row in rows if row["exposed_ns"] is None]
    lack = next((row for row in story.of("queue", reason="capacity") if row["blocks"] is not None), None)
    needed = ""
    if lack is not None and lack["free_blocks"] is not None:
        needed = f" (needed {lack['blocks']:,}, free {lack['free_blocks']:,})"
    if given:
        whole = sum(row["exposed_ns"] for row in given)
        why = sorted({_FOR.get(row["reason"], "an unknown reason") for row in given})
        parts = [f"{_by(row)} {_time(row['exposed_ns'], story)}" for row in given]
        holders = f"{many(len(given), 'request')} held for {listed(why)}: {listed(parts, 4)}"
        return [f"for {_time(whole, story)} it waited for GPU blocks{needed} that {holders}"]
    during = "while it waited for capacity"
    if unknown:
        longest = max(row["overlap_ns"] for row in unknown)
        holders = f"{many(len(unknown), 'request')} held GPU blocks for up to {duration(longest)}"
        return [f"{during} {holders}; which part of it they caused is not observed"]
    return [f"{during} {many(len(rows), 'request')} held GPU blocks{needed}, too few to be why"]


def _waits(story: Story, rows: list[Row]) -> list[str]:
    """How long it stood still for whose waits."""
    if not rows:
        return []
    whole = sum(row["exposed_ns"] for row in rows)
    parts = [
        f"{_by(row)} ({row['reason'] or 'unknown reason'}) {_time(row['exposed_ns'], story)}" for row in rows
    ]
    return [f"for {_time(whole, story)} its engine was blocked on others: {listed(parts, 4)}"]


def _health(story: Story) -> list[str]:
    life = story.request["duration_ns"]
    told = []
    for row in story.health:
        whole = row["lasted_ns"] > 2**61 if life is None else row["lasted_ns"] >= life
        lasted = "all its life" if whole else f"{duration(row['lasted_ns'])} of it"
        told.append(f"its engine saw the cache as {row['reason']} for {lasted}")
    return told
