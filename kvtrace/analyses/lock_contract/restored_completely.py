"""What a connector reports as restored was restored completely: a result of its own a connector.

asked for   |==========|
restored    |==========|     every group of layers     complete
restored    |======|         told so                   counted: the engine computes the rest again
restored    |======|         reported as good          violated: the engine uses what is not there

An engine's counters of loaded tokens show no difference between the first and the last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvtrace.analyses._text import many, visible
from kvtrace.analyses.lock_contract._findings import Asked, Finding, judged, missing, weakest
from kvtrace.analyses.lock_contract._retained import retained

if TYPE_CHECKING:
    from kvtrace.run import Run

_LOADS = """
WITH short AS (
    SELECT engine, request_id, transfer_id, count(DISTINCT number) AS groups,
        any_value(component) AS component, any_value(time_ns) AS time_ns, any_value(evidence) AS evidence
    FROM retained WHERE verdict = 'lacking' GROUP BY engine, request_id, transfer_id
), whole AS (
    FROM transfer WHERE op = 'load' AND tier_to = 'gpu' AND component IS NOT NULL
        AND purpose IS DISTINCT FROM 'prefetch' AND evidence IS DISTINCT FROM 'predicted'
), loaded AS (
    SELECT t.request_id, t.component, t.tokens, t.evidence, s.groups,
        coalesce(t.end_ns, t.start_ns) AS time_ns,
        CASE WHEN t.end_ns IS NULL THEN 'open' WHEN s.groups IS NOT NULL THEN 'lacking'
            WHEN t.outcome = 'ok' THEN 'complete'
            WHEN t.outcome IN ('failed', 'partial', 'timeout') THEN 'told'
            WHEN t.outcome = 'cancelled' THEN 'cancelled' ELSE 'open' END AS kind
    FROM whole t LEFT JOIN short s ON s.request_id = t.request_id AND s.transfer_id = t.transfer_id
        AND (s.engine IS NOT DISTINCT FROM t.engine OR t.observer = 'server')
    UNION ALL
    SELECT request_id, component, NULL, evidence, groups, time_ns, 'lacking'
    FROM short s WHERE component IS NOT NULL AND EXISTS (  -- two engines' loads of one name are one transfer
        FROM whole t WHERE t.request_id = s.request_id AND t.transfer_id = s.transfer_id)
        AND NOT EXISTS (
            FROM whole t WHERE t.request_id = s.request_id AND t.transfer_id = s.transfer_id
                AND (s.engine IS NOT DISTINCT FROM t.engine OR t.observer = 'server'))
)
"""
_COUNTS = """
SELECT component, kind, count(*), coalesce(sum(tokens), 0)::DOUBLE, list(DISTINCT evidence) FROM loaded
GROUP BY component, kind ORDER BY component, kind
"""
_VIOLATED = """
SELECT component, request_id, time_ns, tokens, groups, evidence FROM loaded
WHERE kind = 'lacking' ORDER BY time_ns, request_id, component
"""


def restored_completely(run: Run, asked: Asked) -> list[Finding]:
    """A row a connector, whose name is the key; of one that is violated a row a load that lacked state."""
    connection = retained(asked)
    counts = connection.sql(_LOADS + _COUNTS).fetchall()
    if not counts:
        ((rows,),) = connection.sql("SELECT (SELECT count(*) FROM span) + count(*) FROM process").fetchall()
        if rows:
            return [Finding("unobserved", "no connector's load to the GPU was recorded")]
        return [Finding("not_applicable", "nothing was recorded")]
    rows = []
    if any(kind == "lacking" for _, kind, *_ in counts):
        rows = connection.sql(_LOADS + _VIOLATED).fetchall()
    lost = missing(run, ("load",)).said
    return [
        finding
        for name in dict.fromkeys(component for component, *_ in counts)
        for finding in _of(name, [row[1:] for row in counts if row[0] == name],
                           [_violation(*row) for row in rows if row[0] == name], lost)
    ]  # fmt: skip


def _of(
    name: str, counts: list[tuple[str, int, float, list[str]]], violations: list[Finding], lost: str | None
) -> list[Finding]:
    """What is said of one connector."""
    loads = {kind: count for kind, count, *_ in counts}
    tokens = sum(number for kind, _, number, _ in counts if kind == "complete")
    told = (
        f"{visible(name)}: {many(loads.get('complete', 0), 'load')} restored completely, {tokens:,.0f} tokens"
    )
    for kind, word in (("told", "told to be bad"), ("cancelled", "of requests that were over")):
        told += f"; {loads[kind]:,} {word}" if kind in loads else ""
    still = f"{many(loads['open'], 'load')} without an end" if "open" in loads else None
    evidence = weakest(word for *_, words in counts for word in words)
    if not loads.keys() - {"cancelled", "told"} and lost is None:
        return [Finding("unobserved", told, None, None, None, name)]
    found = judged(violations, (lost, still), Finding("pass", told, evidence))
    return [replace(one, key=name) for one in found]


def _violation(
    name: str, request_id: str | None, time_ns: int, tokens: int | None, groups: int, evidence: str | None,
) -> Finding:  # fmt: skip
    load = f"{visible(name)}: a load" + ("" if tokens is None else f" of {tokens:,} tokens")
    detail = f"{load} was reported as good, and {many(groups, 'group')} of layers lacked state"
    return Finding("violated", detail, evidence, "error", request_id, None, time_ns)
