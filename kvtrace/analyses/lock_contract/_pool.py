"""What did the scheduler's process compare between vLLM's block pool and its holds?

The comparison is made inside the engine (instrument/vllm/pool_checks.py): it writes a row only when a
contract is broken, and says of its process how many allocations it compared. No other record has blocks by
number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.analyses._text import many
from kvtrace.analyses.lock_contract._findings import NO_LOSS, Finding, Status, products

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.run import Run

_SCHEDULERS = """
WITH piece AS (
    SELECT process, coalesce(attributes['hold'], span_id::VARCHAR) AS hold, end_ns FROM hold
), held AS (  -- a hold whose count of blocks changed has several adjacent rows
    SELECT process, count(DISTINCT hold) AS holds,
        count(DISTINCT hold) - count(DISTINCT hold) FILTER (end_ns IS NULL) AS ended
    FROM piece GROUP BY process
), missing AS (
    SELECT process, sum(count)::DOUBLE AS lost FROM loss
    WHERE cause IS DISTINCT FROM $no_loss GROUP BY process
)
SELECT
    coalesce(p.instruments['BlockPool.get_new_blocks'] = 'active'
        AND p.instruments['BlockPool.free_blocks'] = 'active', false),
    coalesce(TRY_CAST(p.attributes['checked_allocations'] AS BIGINT), 0),
    coalesce(h.holds, 0), coalesce(h.ended, 0), coalesce(m.lost, 0)
FROM process p LEFT JOIN held h USING (process) LEFT JOIN missing m USING (process)
WHERE lower(p.product) = 'vllm' AND contains(p.role, 'scheduler') AND p.attributes['kvtrace'] IS NOT NULL
"""
_BROKEN = """
SELECT request_id, key, time_ns, evidence FROM block
WHERE event = 'failed' AND component = 'vllm.gpu' AND reason = $reason ORDER BY time_ns, key, request_id
"""


@dataclass(frozen=True)
class Compared:
    """Over all schedulers that recorded from inside."""

    schedulers: int
    checking: int
    allocations: int
    holds: int
    ended: int
    lost: int


def answer(
    run: Run, reason: str, detail: str, held: Callable[[Compared], tuple[Status, str]]
) -> list[Finding]:
    """Every violation that was seen; without one why it cannot be judged, else what `held` says."""
    rows = run.connection().sql(_BROKEN, params={"reason": reason}).fetchall()
    if rows:
        return [
            Finding("violated", detail.format(key=key), evidence, "error", request_id, key, time_ns)
            for request_id, key, time_ns, evidence in rows
        ]
    found = _compared(run)
    if (why := _unjudged(run, found)) is not None:
        return [why]
    status, told = held(found)
    return [Finding(status, told, "shim" if status == "pass" else None)]


def _compared(run: Run) -> Compared:
    """What was compared where."""
    rows = run.connection().sql(_SCHEDULERS, params={"no_loss": NO_LOSS}).fetchall()
    mine = [row for row in rows if row[0]]
    allocations, holds, ended = (sum(row[place] for row in mine) for place in (1, 2, 3))
    return Compared(len(rows), len(mine), allocations, holds, ended, int(sum(row[4] for row in rows)))


def _unjudged(run: Run, found: Compared) -> Finding | None:
    """Why neither invariant of the pool can be judged; None when they can."""
    if not found.schedulers:
        if "vllm" in products(run):
            return Finding("unobserved", "vLLM was not recorded from inside (kvtrace run would)")
        return Finding("not_applicable", "no vLLM in this run")
    if not found.checking:
        return Finding("unobserved", "its instrument did not compare blocks with holds (an earlier kvtrace)")
    if not found.holds:
        return Finding("unobserved", "no block was held for a transfer")
    if found.lost:
        return Finding(
            "inconclusive", f"{many(found.lost, 'record')} of the scheduler's process missing", "shim"
        )
    if found.checking < found.schedulers:
        part = f"{found.checking} of {many(found.schedulers, 'scheduler')} compared blocks with holds"
        return Finding("inconclusive", part, "shim")
    return None
