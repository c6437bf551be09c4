"""What is asked of which run, and what an answer says: one finding that all fits, or one a difference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from kvtrace.analyses.compatibility._accesses import ACCESSES
from kvtrace.analyses.compatibility._identities import Identities
from kvtrace.analyses.lock_contract._findings import missing
from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import duckdb

    from kvtrace.run import Run

Status = Literal["pass", "violated", "inconclusive", "unobserved", "not_applicable"]


@dataclass(frozen=True)
class Asked:
    """What is asked of which run."""

    run: Run

    @cached_property
    def identities(self) -> Identities:
        """What every engine, server and tenant said of itself."""
        return Identities.of(self.run)

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """A database of the run that has the tables of `_accesses` and which engines share keys."""
        connection = spilling(self.run)
        for statement in ACCESSES:
            connection.execute(statement)
        connection.execute("CREATE TEMP TABLE apart (product VARCHAR, writer VARCHAR, reader VARCHAR)")
        if rows := self.identities.apart():
            connection.executemany("INSERT INTO apart VALUES (?, ?, ?)", rows)
        return connection

    @cached_property
    def lost(self) -> str | None:
        """Records whose absence could hide a difference, in words; None without any."""
        return missing(self.run, ("load", "store", "lookup")).said


@dataclass(frozen=True)
class Finding:
    """One row of the answer, without its invariant's name."""

    status: Status
    detail: str
    evidence: str | None = None
    request_id: str | None = None
    key: str | None = None
    time_ns: int | None = None
    field: str | None = None
    writer: str | None = None
    reader: str | None = None
    tokens: int | None = None
    enforced_by: str | None = None


def judged(violations: Sequence[Finding], undecided: Iterable[str | None], held: Finding) -> list[Finding]:
    """The violations; without one why none can be excluded; else that it holds."""
    if violations:
        return list(violations)
    if why := "; ".join(part for part in undecided if part):
        return [Finding("inconclusive", f"{held.detail}; {why}", held.evidence)]
    return [held]
