"""What an invariant says: one finding that it holds or cannot be judged, or one a violation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvtrace.run import Run

Status = Literal["pass", "violated", "inconclusive", "unobserved", "not_applicable"]
NO_LOSS = "duplicate"
"""The cause of a counted loss by which no information is lost."""
_EVIDENCE = ("native", "shim", "derived")


@dataclass(frozen=True)
class Asked:
    """The options of the question."""

    bound_ns: int


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


def lost(run: Run, ops: tuple[str, ...], processes: Iterable[str] | None = None) -> int:
    """Records of these ops (or of unknown ones) that are missing, of these processes or of unknown ones."""
    query = """
        SELECT coalesce(sum(count), 0)::DOUBLE FROM loss WHERE cause IS DISTINCT FROM $no_loss
            AND (op IS NULL OR op IN (SELECT unnest($ops)))
            AND ($all OR process IS NULL OR process IN (SELECT unnest($processes)))
    """
    names = list(processes or ())
    params = {"no_loss": NO_LOSS, "ops": list(ops), "all": processes is None, "processes": names}
    ((count,),) = run.connection().sql(query, params=params).fetchall()
    return int(count)
