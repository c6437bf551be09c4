"""What did routers and caches say they had, as SQL?

    route    what the router saw      ┐ asked_ns = the earlier of both, else the arrival,
    lookup   what the cache reported  ┘            else the time of its first key

inquired  its inquiries: what the first decisive one found, whether one ended in time
routed    what a router saw when it first chose a worker; one decision may have several observers, and what a
          simulated router saw was never there, nor what a forecast found
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

_INQUIRED = """
CREATE OR REPLACE TEMP TABLE inquired AS
WITH mine AS (
    SELECT * EXCLUDE (request_id, members), unnest(list_distinct(list_append(
        list_transform(coalesce(members, []), lambda m: m.request_id), request_id))) AS request_id
    FROM (SELECT request_id, members, observer, attempt, start_ns, end_ns, span_id, found_tokens, outcome,
        reason, component, engine, process, attributes['asked_from_tokens'] IS NOT NULL AS from_hit
        FROM span WHERE op = 'lookup' AND evidence IS DISTINCT FROM 'predicted')
), ranked AS (
    SELECT m.*, coalesce(m.observer = 'scheduler', false) AS own,
        m.outcome IS DISTINCT FROM 'skipped' AND (a.again_ns IS NULL OR m.start_ns < a.again_ns) AS decides,
        coalesce(m.outcome = 'timeout', false) OR coalesce(m.reason = 'timeout', false) AS late,
        coalesce(m.component LIKE 'vllm.%', false) OR (from_hit AND (
            m.component NOT LIKE 'lmcache%' OR coalesce(list_contains($partial, m.engine), false))) AS beyond,
        row_number() OVER (PARTITION BY request_id
            ORDER BY m.observer IS DISTINCT FROM 'scheduler', coalesce(m.attempt, 1), m.start_ns, m.span_id)
            AS place
    FROM mine m LEFT JOIN admitted a USING (request_id)
    WHERE m.request_id IN (SELECT request_id FROM asked)
), decided AS (
    SELECT request_id, count(*) AS inquiries, min(start_ns) AS asked_ns,
        arg_min({'found': found_tokens, 'beyond': beyond, 'process': process}, place)
            FILTER (decides AND own AND found_tokens IS NOT NULL) AS mine,
        arg_min({'found': found_tokens, 'beyond': beyond, 'process': process}, place)
            FILTER (decides AND NOT own AND found_tokens IS NOT NULL) AS others,
        bool_or(late AND own AND decides) AS gave_up, bool_or(NOT own AND decides) AS knows_whole,
        arg_min(process, place) FILTER (NOT own) AS answerer,
        bool_or(late) AS timed_out,
        bool_or(coalesce(outcome IN ('ok', 'miss', 'partial'), found_tokens IS NOT NULL)) AS reached,
        bool_or(coalesce(outcome = 'open', false) OR end_ns IS NULL) AS unanswered,
        arg_min(reason, place) FILTER (reason IS NOT NULL) AS reason,
        bool_or(coalesce(reason = 'below_chunk', false)) AS below_chunk
    FROM ranked GROUP BY request_id
)
SELECT * EXCLUDE (mine, others, gave_up, knows_whole),
    coalesce(mine.found, CASE WHEN NOT gave_up THEN others.found END) AS found,
    CASE WHEN mine.found IS NOT NULL THEN mine.beyond AND NOT knows_whole ELSE others.beyond END AS beyond
FROM decided
"""
"""Whose answer counts: the scheduler's own inquiries in order, then what a cache says of the same one; an
answer that came after the scheduler gave up reached nobody. `beyond`: a connector of vLLM is asked for what
it has beyond the GPU's own tokens, so that a covered prefix reads as nothing found; LMCache's multiprocess
client reports the whole prefix, and so does a cache's own row."""

_ROUTED = """
CREATE OR REPLACE TEMP TABLE routed AS
SELECT request_id, min(start_ns) AS routed_ns,
    arg_min_null(found_tokens, attempt) AS visible
FROM route
WHERE request_id IN (SELECT request_id FROM asked) AND evidence IS DISTINCT FROM 'predicted'
GROUP BY request_id
"""


def inquire(connection: duckdb.DuckDBPyConnection, partial: list[str]) -> None:
    """Make both tables; `partial` are engines whose connector of LMCache answers only beyond the GPU hit."""
    connection.execute(_INQUIRED, {"partial": partial})
    connection.execute(_ROUTED)
