"""What a lookup reports as found adds up (I7).

found by tier   |== host ==|=== disk ===|      the sum is what it found
chunks          |----|----|----|----|----|     it is whole chunks
L2 had          |==============|               no more than its own L1 and what the search in L2 had found
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvtrace.analyses._text import many
from kvtrace.analyses.lock_contract._findings import Asked, Finding, judged, missing, weakest

if TYPE_CHECKING:
    from kvtrace.run import Run

_LOOKUPS = """
WITH size AS (
    SELECT CASE WHEN count(DISTINCT value) = 1 THEN TRY_CAST(any_value(value) AS BIGINT) END AS chunk
    FROM identity WHERE field = 'chunk_size' AND TRY_CAST(value AS BIGINT) > 0
), searched AS (
    SELECT request_id, process, start_ns, TRY_CAST(attributes['prefix_hit_count'] AS BIGINT) AS chunks
    FROM span
    WHERE op IS NULL AND name = 'l2.prefetch.lookup' AND request_id IS NOT NULL
), answered AS (
    SELECT request_id, start_ns, end_ns, found_tokens, requested_tokens, evidence, s.chunk,
        list_sum(map_values(found_by_tier)) AS by_tier, coalesce(found_by_tier['host'], 0) AS in_l1,
        (SELECT max(chunks) FROM searched x WHERE x.request_id = l.request_id
            AND x.process IS NOT DISTINCT FROM l.process
            AND x.start_ns BETWEEN l.start_ns AND l.end_ns) AS chunks
    FROM span l, size s
    WHERE op = 'lookup' AND observer = 'server' AND starts_with(component, 'lmcache')
        AND found_tokens IS NOT NULL AND evidence IS DISTINCT FROM 'predicted'
), judged AS (
    SELECT *, CASE WHEN by_tier <> found_tokens THEN 'sum'
        WHEN found_tokens % chunk <> 0 THEN 'chunk'
        WHEN found_tokens > requested_tokens THEN 'asked'
        WHEN found_tokens - in_l1 > chunks * chunk THEN 'search' END AS broken
    FROM answered
)
"""
_COUNTS = """
SELECT count(*), count(*) FILTER (chunk IS NULL), count(*) FILTER (by_tier IS NULL), list(DISTINCT evidence)
FROM judged
"""
_VIOLATED = """
SELECT broken, request_id, coalesce(end_ns, start_ns), found_tokens, by_tier::BIGINT, chunk,
    requested_tokens, evidence
FROM judged WHERE broken IS NOT NULL ORDER BY 3, request_id
"""
_SAID = {
    "sum": "found {0:,} tokens, by tier {1:,}",
    "chunk": "found {0:,} tokens, no multiple of its chunk of {2:,}",
    "asked": "found {0:,} tokens of {3:,} that it was asked for",
    "search": "found {0:,} tokens, more than its L1 and the search in L2 had",
}


def found_adds_up(run: Run, asked: Asked) -> list[Finding]:
    """By lookup of an LMCache server; what one reports is wrong or right whatever is missing beside it."""
    ((lookups, unsized, untiered, words),) = asked.connection.sql(_LOOKUPS + _COUNTS).fetchall()
    if not lookups:
        if asked.has_lmcache:
            return [Finding("unobserved", "no lookup of the cache's server was recorded")]
        return [Finding("not_applicable", "no LMCache in this run")]
    rows = asked.connection.sql(_LOOKUPS + _VIOLATED).fetchall()
    violations = [
        Finding("violated", _SAID[broken].format(*numbers), evidence, "error", request_id, None, time_ns)
        for broken, request_id, time_ns, *numbers, evidence in rows
    ]
    reasons = (
        missing(run, ("lookup",)).said,
        "its chunk size is not known" if unsized else None,
        f"{many(untiered, 'lookup')} without tiers" if untiered else None,
    )
    told = f"{many(lookups, 'lookup')} found whole chunks that add up"
    return judged(violations, reasons, Finding("pass", told, weakest(words)))
