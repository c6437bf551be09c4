"""The contract of a cache's locks, object by object and event by event, as a plain state machine.

A lock is a count and a deadline: each further lock begins the deadline anew; past it, it counts as none, and
the next lock counts from 1. Every event takes or gives back one lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SECOND, SLACK = 1_000_000_000, 5_000_000
"""So much later than what it tells an event may be stamped."""


@dataclass
class Life:
    """What is known of one object between two removals."""

    locks: int = 0
    locked_ns: int | None = None
    reserved: list[int] = field(default_factory=list)
    unwritten: bool = False
    told: bool = False
    over: bool = False
    begun_with_release: bool = False


@dataclass
class Judged:
    """Violations of one object: invariant -> (time, first word of why)."""

    found: dict[str, set[tuple[int, str]]] = field(default_factory=dict)

    def add(self, invariant: str, time_ns: int, why: str) -> None:
        self.found.setdefault(invariant, set()).add((time_ns, why))


def judge(rows: list[tuple[str, int]], last_ns: int, ttl: int, write_ttl: int, bound: int) -> Judged:
    """All violations of one object: (event, second) in the order in which they happened."""
    said, life, ever_locked, at_removal = Judged(), Life(), None, None
    for word, seconds in rows:
        at = seconds * SECOND
        if word == "reserved":
            life.reserved.append(at)
            life.unwritten = True
        elif word == "written":
            _write(said, life, at, ttl, write_ttl)
        elif word == "locked":
            _lock(said, life, at, ttl)
            ever_locked = at
        elif word == "unlocked":
            _release(said, life, at)
        elif word in ("failed", "missed") and ever_locked is not None:
            if (at_removal if word == "missed" and at_removal is not None else life.locks) > 0:
                said.add("read_within_ttl", at, "ttl_expired" if at - ever_locked >= ttl else "1")
        elif word == "removed":
            _remove(said, life, at, ttl, write_ttl)
            life, at_removal = Life(), life.locks
    _reservations(said, life, last_ns, write_ttl)
    for limit, why in ((ttl, "ttl_expired"), (bound, "locked")):
        if life.locked_ns is not None and last_ns - life.locked_ns > limit:
            _leaked(said, life, life.locked_ns + limit, why)
            break
    return said


def _ran_out(life: Life, at: int, ttl: int) -> bool:
    return life.locked_ns is not None and at - life.locked_ns + SLACK > ttl


def _write(said: Judged, life: Life, at: int, ttl: int, write_ttl: int) -> None:
    _reservations(said, life, at, write_ttl)
    if life.locks > 0 and not _ran_out(life, at, ttl):
        said.add("not_written_while_locked", at, "written")
    life.unwritten = False


def _lock(said: Judged, life: Life, at: int, ttl: int) -> None:
    if life.locked_ns is not None and at - life.locked_ns > ttl:
        _leaked(said, life, life.locked_ns + ttl)
        life.locks, life.over, life.begun_with_release = 0, False, False
    if life.unwritten and not life.told:
        said.add("readable_was_written", at, "locked")
        life.told = True
    life.locks += 1
    life.locked_ns = at


def _release(said: Judged, life: Life, at: int) -> None:
    life.begun_with_release |= life.locked_ns is None
    life.locks -= 1
    if life.locks < 0 and not life.begun_with_release and not life.over:
        said.add("released_once", at, "released")
        life.over = True


def _remove(said: Judged, life: Life, at: int, ttl: int, write_ttl: int) -> None:
    _reservations(said, life, at, write_ttl)
    if life.locks > 0:
        over = _ran_out(life, at, ttl)
        said.add("not_removed_while_locked", at, "ttl_expired" if over else "removed")
        if over:
            _leaked(said, life, (life.locked_ns or 0) + ttl)


def _reservations(said: Judged, life: Life, at: int, ttl: int) -> None:
    """The reservations that end here, or never: over before, or in time."""
    for begun in life.reserved:
        if at - begun > ttl:
            said.add("reservation_written_or_returned", begun + ttl, "reserved")
    life.reserved = []


def _leaked(said: Judged, life: Life, at: int, why: str = "ttl_expired") -> None:
    """A lock that nobody released; where the balance was broken before, or began unknown, nothing is said."""
    if life.locks > 0 and not life.over and not life.begun_with_release:
        said.add("released_once", at, why)
