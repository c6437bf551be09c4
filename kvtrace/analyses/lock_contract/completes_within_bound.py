"""What was submitted completes within a bound: nothing else tells a backend that hangs (I5).

submit |------------ bound ------------|
load   |------------------------------------|        completed late: violated
load   |---------------------------------- ...       open, its process recorded on beyond: violated
load   |------------- ... end of the records         open, not long enough recorded: inconclusive

A server's search in its L2 (`l2.prefetch.lookup`) is judged as a transfer is: a dead L2 stops it first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import duration, many, visible
from kvtrace.analyses.hold import LASTING
from kvtrace.analyses.lock_contract._findings import NO_LOSS, Asked, Finding, missing, weakest

if TYPE_CHECKING:
    from typing import Any

    from kvtrace.run import Run

OPS = ("load", "store")
_SUBMITTED = """
, blind AS (
    SELECT op, process, min(coalesce(from_ns, -1)) AS from_ns FROM loss
    WHERE cause IS DISTINCT FROM $no_loss GROUP BY op, process
), asked AS (
    SELECT op, request_id, tier_from, tier_to, evidence, submit_ns, start_ns, end_ns, outcome, process
    FROM transfer
    WHERE attributes['log_line'] IS NULL -- a line is written when it is over: none tells what hangs
    UNION ALL
    SELECT 'l2 lookup', request_id, NULL, NULL, evidence, submit_ns, start_ns, end_ns, outcome, process
    FROM span
    WHERE op IS NULL AND name = 'l2.prefetch.lookup' AND (end_ns IS NULL OR end_ns >= start_ns)
), submitted AS (
    SELECT
        t.op, t.request_id, t.tier_from, t.tier_to, t.evidence, t.end_ns, p.last_ns,
        least(t.submit_ns, t.start_ns)::HUGEINT AS asked_ns,
        EXISTS (SELECT 1 FROM blind b
            WHERE (b.op IS NULL OR b.op = t.op) AND (b.process IS NULL OR b.process = t.process)
                AND b.from_ns <= least(t.submit_ns, t.start_ns)::HUGEINT + $bound) AS lossy
    FROM asked t LEFT JOIN process_end p ON p.process = t.process
    WHERE t.evidence IS DISTINCT FROM 'predicted'
        AND (t.end_ns IS NOT NULL OR t.outcome IS NULL OR t.outcome IN ('open', 'unknown', 'ok', 'partial'))
), judged AS (
    SELECT *, CASE
        WHEN end_ns IS NOT NULL AND end_ns - asked_ns > $bound THEN 'late'
        WHEN end_ns IS NOT NULL THEN 'complete'
        WHEN coalesce(last_ns - asked_ns <= $bound, true) THEN 'short'
        WHEN lossy THEN 'lossy' ELSE 'hung' END AS kind
    FROM submitted
)
"""
_COUNTS = "SELECT kind, count(*), list(DISTINCT evidence) FROM judged GROUP BY kind"
_VIOLATED = """
SELECT request_id, op, tier_from, tier_to, evidence, least(asked_ns + $bound, 9223372036854775807)::BIGINT,
    (coalesce(end_ns, last_ns) - asked_ns)::DOUBLE, end_ns IS NULL
FROM judged WHERE kind IN ('late', 'hung') ORDER BY asked_ns, request_id, op, tier_from, tier_to
"""


def completes_within_bound(run: Run, asked: Asked) -> list[Finding]:
    """Loads and stores, from submit (else start) to end; one that failed has completed."""
    params = {"bound": asked.bound_ns, "no_loss": NO_LOSS}
    connection = run.connection()
    counts = connection.sql(LASTING + _SUBMITTED + _COUNTS, params=params).fetchall()
    if not counts:
        return [_nothing(run)]
    number = {kind: count for kind, count, _ in counts}
    if number.keys() & {"late", "hung"}:
        rows = connection.sql(LASTING + _SUBMITTED + _VIOLATED, params=params).fetchall()
        return [_violated(*row) for row in rows]
    evidence = weakest(word for *_, words in counts for word in words or [None])
    undecided = []
    if number.get("short"):
        undecided.append(f"{many(number['short'], 'transfer')} open, not recorded for the bound")
    if number.get("lossy"):
        undecided.append(f"{many(number['lossy'], 'transfer')} open, whose end may be among lost records")
    if (lost := missing(run, OPS)).count:
        undecided.append(f"{lost.said} that may be transfers")
    if undecided:
        return [Finding("inconclusive", "; ".join(undecided), evidence)]
    within = duration(asked.bound_ns)
    return [Finding("pass", f"{many(number['complete'], 'transfer')} completed within {within}", evidence)]


def _violated(
    request_id: str | None, op: str, start: str, end: str, evidence: str | None, time_ns: int, took_ns: float,
    still: Any,
) -> Finding:  # fmt: skip
    what = f"{op} {visible(start)} -> {visible(end)}" if op in OPS else op
    detail = (
        f"{what} open after {duration(took_ns)}" if still else f"{what} completed after {duration(took_ns)}"
    )
    return Finding("violated", detail, evidence, "error", request_id, None, time_ns)


def _nothing(run: Run) -> Finding:
    ((rows,),) = run.connection().sql("SELECT (SELECT count(*) FROM span) + count(*) FROM process").fetchall()
    if rows:
        return Finding("unobserved", "no load or store was recorded")
    return Finding("not_applicable", "nothing was recorded")
