"""Who read across a difference, and what was asked for in vain, request by request and key by key.

The plain words of the two contracts over drawn requests of a server (`Ask`) and drawn blocks of engines that
hash for themselves (`Block`): no join, no window, every pair looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

CHUNK = 64
Sides = dict[str, dict[str, str]]


@dataclass(frozen=True)
class Ask:
    """A request: what it asked for when, as whom, how many of its keys were found, loaded and stored."""

    name: str
    engine: str
    tenant: str
    model: str
    keys: tuple[str, ...]
    at: int
    found: int
    loaded: int | None
    stored: int | None


@dataclass(frozen=True)
class Block:
    """A block that an engine computed, or wrote to a disk that all share."""

    engine: str
    content: str
    at: int
    shared: bool


def fits(sides: Sides, writer: str, reader: str) -> bool:
    """Whether LMCache's keys of both are one: their world sizes."""
    return sides[writer]["tensor_parallel_size"] == sides[reader]["tensor_parallel_size"]


def writes(asks: list[Ask]) -> list[tuple[int, tuple[str, str, str], str | None]]:
    """(time, object, writer) of every key that a request stored, in the midst of its store."""
    moves = [(ask.stored, ask.stored + 4, ask) for ask in asks if ask.stored is not None]
    found = []
    for _, end, ask in moves:
        at = end - 2
        for key in ask.keys[ask.found :]:
            fitting = {
                other.engine
                for start, stop, other in moves
                if start <= at <= stop and key in other.keys and other.model == ask.model
            }
            found.append((at, (ask.model, ask.tenant, key), fitting.pop() if len(fitting) == 1 else None))
    return found


def reads_across(asks: list[Ask], sides: Sides) -> dict[tuple[str, str, str], tuple[int, int]]:
    """(field, writer, reader) -> (reads, time of the first), and how many reads were of the reader's kind."""
    written, found = writes(asks), {}
    for ask in asks:
        if ask.loaded is None:
            continue
        for key in ask.keys[max(0, ask.found - ask.loaded) : ask.found]:
            at = ask.at + 5
            known = [
                (time, writer)
                for time, name, writer in written
                if name == (ask.model, ask.tenant, key) and writer is not None and time <= at
            ]
            good = [each for each in known if fits(sides, each[1], ask.engine)]
            last = {writer for time, writer in good if time == max(good)[0]}
            if len(last) != 1:  # written before the records began, or by two at once
                continue
            (writer,) = last
            for field in ("dtype", "lora"):
                if sides[writer][field] != sides[ask.engine][field]:
                    reads, first = found.get((field, writer, ask.engine), (0, at))
                    found[field, writer, ask.engine] = (reads + 1, min(first, at))
    return found


def useless(asks: list[Ask], sides: Sides) -> dict[tuple[str | None, str, str], set[str]]:
    """(writer, model, tenant) -> keys, of which nothing was ever found after it was there."""
    groups: dict[tuple[str | None, str, str], set[str]] = {}
    used = set()
    for at, (model, tenant, key), writer in writes(asks):
        group = (writer, model, tenant)
        groups.setdefault(group, set()).add(key)
        for ask in asks:
            apart = writer is not None and not fits(sides, writer, ask.engine)
            same = (ask.model, ask.tenant) == (model, tenant) and not apart
            if same and ask.at >= at and key in ask.keys[: ask.found]:
                used.add(group)
    return {group: keys for group, keys in groups.items() if group not in used}


def in_vain(asks: list[Ask], sides: Sides) -> set[tuple[str, str | None, str]]:
    """(field, writer, reader) of what was asked for under another name than it was written under."""
    first: dict[tuple[str | None, str, str, str], int] = {}
    for at, (model, tenant, key), writer in writes(asks):
        where = (writer, model, tenant, key)
        first[where] = min(first.get(where, at), at)
    found = set()
    for (writer, model, tenant), keys in useless(asks, sides).items():
        for ask in asks:
            for key in keys & set(ask.keys[ask.found :]):
                if ask.at < first[writer, model, tenant, key]:
                    continue
                named = set()
                if ask.model != model:
                    named.add("model")
                if ask.tenant != tenant:
                    named.add("cache_salt")
                if not named and writer is not None and not fits(sides, writer, ask.engine):
                    named.add("tensor_parallel_size")
                found |= {(field, writer, ask.engine) for field in named}
    return found


def hashed_apart(blocks: list[Block], seeds: dict[str, str]) -> dict[tuple[str, str], set[str]]:
    """(writer, reader) -> contents written by one and later computed by another that hashes otherwise.

    A writer of whose blocks one was found would be of use; nobody looks blocks up here.
    """
    found: dict[tuple[str, str], set[str]] = {}
    for one in blocks:
        for other in blocks:
            later = one.shared and not other.shared and other.at >= one.at
            if later and one.content == other.content and seeds[one.engine] != seeds[other.engine]:
                found.setdefault((one.engine, other.engine), set()).add(one.content)
    return found
