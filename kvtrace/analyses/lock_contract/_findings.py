"""What an invariant says: one finding that it holds or cannot be judged, or one a violation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from kvtrace.analyses._text import many
from kvtrace.analyses.lock_contract._objects import OBJECTS
from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import duckdb

    from kvtrace.run import Run

Status = Literal["pass", "violated", "inconclusive", "unobserved", "not_applicable"]
NO_LOSS = "duplicate"
"""The cause of a counted loss by which no information is lost."""
_EVIDENCE = ("native", "shim", "derived")


@dataclass(frozen=True)
class Asked:
    """What is asked of which run."""

    run: Run
    bound_ns: int

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """A database of the run that has the tables of `_objects`, made when the first invariant needs it."""
        connection = spilling(self.run)
        for statement in OBJECTS:
            connection.execute(statement)
        return connection

    @cached_property
    def has_steps(self) -> bool:
        """Whether a cache told what it did with its objects."""
        return bool(self.connection.sql("SELECT 1 FROM object_step LIMIT 1").fetchall())

    @cached_property
    def has_lmcache(self) -> bool:
        """Whether LMCache took part in the run."""
        query = """SELECT 1 FROM span WHERE starts_with(component, 'lmcache')
            UNION ALL SELECT 1 FROM block WHERE starts_with(component, 'lmcache') LIMIT 1"""
        return bool(self.run.connection().sql(query).fetchall()) or "lmcache" in products(self.run)


@dataclass(frozen=True)
class Finding:
    """One row of the answer, without its invariant's name."""

    status: Status
    detail: str
    evidence: str | None = None
    severity: Literal["error", "warning"] | None = None
    request_id: str | None = None
    key: str | None = None
    time_ns: int | None = None


def weakest(evidence: Iterable[str | None]) -> str | None:
    """The weakest of them; None when one did not say."""
    found = set(evidence)
    if not found or None in found:
        return None
    return max((word for word in found if word), key=lambda word: (word not in _EVIDENCE, _order(word)))


def _order(word: str) -> int:
    return _EVIDENCE.index(word) if word in _EVIDENCE else len(_EVIDENCE)


def products(run: Run) -> set[str]:
    """Products that recorded something, in lower case."""
    found = run.connection().sql("SELECT DISTINCT lower(product) FROM process WHERE product IS NOT NULL")
    return {name for (name,) in found.fetchall()}


@dataclass(frozen=True)
class Missing:
    """Records that are missing: how many, and until when nothing is."""

    count: int
    until_ns: int

    @property
    def said(self) -> str | None:
        """What they leave open; None without any."""
        return f"{many(self.count, 'record')} missing" if self.count else None

    def shows(self, findings: Iterable[Finding]) -> list[Finding]:
        """Those that rest on the absence of a record, and come before the first that can be missing."""
        return [one for one in findings if one.time_ns is not None and one.time_ns < self.until_ns]


def missing(run: Run, ops: tuple[str, ...] = (), processes: Iterable[str | None] | None = None) -> Missing:
    """Losses of these ops (or of unknown ones), of these processes or of unknown ones."""
    named = None if processes is None else list(processes)
    query = """
        SELECT coalesce(sum(count), 0)::DOUBLE, coalesce(min(coalesce(from_ns, -1)), 9223372036854775807)
        FROM loss WHERE cause IS DISTINCT FROM $no_loss AND (op IS NULL OR op IN (SELECT unnest($ops)))
            AND ($all OR process IS NULL OR process IN (SELECT unnest($processes)))
    """
    everyone = named is None or None in named
    params = {"no_loss": NO_LOSS, "ops": list(ops), "all": everyone, "processes": named or []}
    ((count, until_ns),) = run.connection().sql(query, params=params).fetchall()
    return Missing(int(count), until_ns)


def missing_events(run: Run, asked: Asked) -> Missing:
    """Losses of the caches whose objects are judged."""
    rows = asked.connection.sql("SELECT DISTINCT process FROM object_event").fetchall()
    return missing(run, (), [name for (name,) in rows])


def untold(asked: Asked) -> Finding | None:
    """Why nothing that rests on a cache's own events can be judged; None when it has some."""
    if asked.has_steps:
        return None
    if asked.has_lmcache:
        return Finding("unobserved", "no event of the cache itself was recorded (kvtrace run would)")
    return Finding("not_applicable", "no cache with locks in this run")


def judged(violations: Sequence[Finding], undecided: Iterable[str | None], held: Finding) -> list[Finding]:
    """The violations; without one why none can be excluded; else that it holds."""
    if violations:
        return list(violations)
    why = "; ".join(part for part in undecided if part)
    if why:
        return [Finding("inconclusive", f"{held.detail}; {why}" if held.detail else why, held.evidence)]
    return [held]


def late(count: int) -> str | None:
    """What objects leave open that were there before the records began."""
    return f"{many(count, 'key')} there before the records began" if count else None
