"""Every store and retrieve of an LMCache server that began ends, once (I8).

submitted   begins |-----------| ends                  once
submitted   begins |---------------------------- ...   leaked: its process recorded on beyond the bound
submitted                                              leaked before it began
submitted   begins |-----------| ends   ends again     told twice
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import duration, many
from kvtrace.analyses.lock_contract._findings import Asked, Finding, judged, missing, weakest

if TYPE_CHECKING:
    from kvtrace.run import Run

OPS = ("load", "store", "drop")
_TRANSFERS = """
WITH begun AS (
    SELECT process, request_id, transfer_id, name, start_ns, end_ns, evidence, trace_id IS NULL AS own,
        least(submit_ns, start_ns) AS asked_ns
    FROM span WHERE name IN ('mp.store', 'mp.retrieve') AND op IS NOT NULL AND observer = 'server'
), told AS (
    SELECT process, request_id, transfer_id, name, min(asked_ns) AS asked_ns, count(DISTINCT end_ns) AS ends,
        max(end_ns) AS end_ns, list(DISTINCT evidence) AS words
    FROM begun GROUP BY process, request_id, transfer_id, name, own,
        CASE WHEN transfer_id IS NULL THEN start_ns END
), submitted AS (
    SELECT process, request_id, replace(name, '.submitted', '') AS name, start_ns AS asked_ns, evidence,
        row_number() OVER (PARTITION BY process, request_id, name ORDER BY start_ns) AS place
    FROM span WHERE op IS NULL AND name IN ('mp.store.submitted', 'mp.retrieve.submitted')
), began AS (
    SELECT process, request_id, name, count(*) AS times FROM told GROUP BY ALL
), every AS (
    SELECT * EXCLUDE (asked_ns), asked_ns FROM told
    UNION ALL BY NAME
    SELECT s.process, s.request_id, s.name, s.asked_ns, 0 AS ends, [s.evidence] AS words
    FROM submitted s LEFT JOIN began b ON b.process IS NOT DISTINCT FROM s.process
        AND b.request_id IS NOT DISTINCT FROM s.request_id AND b.name = s.name
    WHERE s.place > coalesce(b.times, 0)
), judged AS (
    SELECT e.*, c.last_ns, CASE WHEN ends > 1 THEN 'twice' WHEN ends = 1 THEN 'once'
        WHEN c.last_ns::HUGEINT - asked_ns > $bound THEN 'leaked' ELSE 'open' END AS kind
    FROM every e LEFT JOIN cache_end c ON c.process IS NOT DISTINCT FROM e.process
)
"""
_COUNTS = """
SELECT kind, count(*), list_distinct(flatten(list(words))) FROM judged GROUP BY kind ORDER BY kind
"""
_VIOLATED = """
SELECT kind, name, request_id, coalesce(end_ns, asked_ns + $bound)::BIGINT, (last_ns - asked_ns)::DOUBLE,
    ends, words
FROM judged WHERE kind IN ('twice', 'leaked') ORDER BY 4, request_id, name
"""


def transfers_end_once(run: Run, asked: Asked) -> list[Finding]:
    """An end may be among lost records: then only what ended twice is a violation."""
    params = {"bound": asked.bound_ns}
    counts = asked.connection.sql(_TRANSFERS + _COUNTS, params=params).fetchall()
    if not counts:
        if asked.has_lmcache:
            return [Finding("unobserved", "no store or retrieve of the cache's server was recorded")]
        return [Finding("not_applicable", "no LMCache in this run")]
    number = {kind: count for kind, count, _ in counts}
    lost = missing(run, OPS)
    rows = asked.connection.sql(_TRANSFERS + _VIOLATED, params=params).fetchall()
    twice = [_violation(*row) for row in rows if row[0] == "twice"]
    leaked = lost.shows(_violation(*row) for row in rows if row[0] == "leaked")
    still = number.get("open", 0) + number.get("leaked", 0)
    reasons = (lost.said, f"{still:,} still open" if still else None)
    told = f"{many(number.get('once', 0), 'store or retrieve', 'stores and retrieves')} ended once"
    evidence = weakest(word for *_, words in counts for word in words)
    return judged([*twice, *leaked], reasons, Finding("pass", told, evidence))


def _violation(
    kind: str, name: str, request_id: str | None, time_ns: int, open_ns: float, ends: int, words: list[str]
) -> Finding:
    what = f"ended {ends} times" if kind == "twice" else f"submitted, and not ended {duration(open_ns)} later"
    return Finding("violated", f"{name} {what}", weakest(words), "error", request_id, None, time_ns)
