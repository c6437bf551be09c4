"""What was loaded of each request: how much, how well, and why not all of it, as SQL over `transfer`.

    failed, reason not_found           -> vanished   found, and gone before it was read
    failed, reason expired, or a lock  -> lock       its protection ran out, or was not given
    failed, any other reason           -> failed     io, timeout, unhealthy, no room to land

A forecast is no load. A load without a count of what it lost may have lost all: its limit is LIMIT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

LIMIT = 2**62

_MOVED = """
CREATE OR REPLACE TEMP TABLE moved AS
WITH own AS (
    SELECT t.*, TRY_CAST(t.attributes['usable_tokens'] AS BIGINT) AS usable,
        a.again_ns IS NULL OR t.start_ns IS NULL OR t.start_ns < a.again_ns AS first,
        t.tier_to IN ('gpu', 'unknown') AS lands,
        coalesce(t.end_ns IS NOT NULL OR (t.start_ns IS NULL AND t.outcome = 'ok'), false) AS over,
        coalesce(t.outcome IN ('failed', 'timeout', 'cancelled', 'skipped'), false) AS wrong,
        t.observer = 'scheduler' AND t.outcome IN ('failed', 'timeout')
            AND (a.admitted_ns IS NULL OR t.start_ns < a.admitted_ns) AS before_admission
    FROM transfer t LEFT JOIN admitted a USING (request_id)
    WHERE t.op = 'load' AND t.evidence IS DISTINCT FROM 'predicted'
        AND t.request_id IN (SELECT request_id FROM asked)
), each AS (
    SELECT *,
        CASE WHEN wrong THEN coalesce(usable, 0) WHEN over THEN least(usable, tokens) END
            AS carried,
        CASE WHEN usable IS NOT NULL AND tokens IS NOT NULL THEN tokens - usable
            WHEN outcome IS DISTINCT FROM 'partial' AND tokens > 0 THEN tokens END AS lost,
        CASE WHEN NOT first OR NOT (coalesce(outcome IN ('failed', 'timeout', 'cancelled', 'partial'), false)
            OR coalesce(reason = 'no_room', false)) THEN NULL
            WHEN reason = 'not_found' THEN 'vanished' WHEN reason = 'expired' THEN 'lock' ELSE 'failed' END
            AS cause
    FROM own
)
SELECT
    request_id, count(*) AS loads,
    count(*) FILTER (coalesce(outcome, 'ok') = 'ok' AND over AND lands) AS good,
    count(*) FILTER (outcome IN ('failed', 'timeout', 'cancelled') AND reason IS DISTINCT FROM 'no_room')
        AS bad,
    count(*) FILTER (outcome = 'partial') AS partly,
    count(*) FILTER ((lands OR outcome IS DISTINCT FROM 'skipped')
        AND NOT (coalesce(outcome, 'ok') = 'ok' AND over)) AS undone,
    count(*) FILTER (reason = 'no_room') AS no_room,
    bool_or(coalesce(outcome = 'timeout', false) OR coalesce(reason = 'timeout', false)) AS timed_out,
    arg_min(reason, start_ns) FILTER (reason IS NOT NULL) AS reason,
    TRY_CAST(CASE WHEN count(carried) FILTER (first AND lands) = count(*) FILTER (first AND lands)
        THEN coalesce(sum(carried) FILTER (first AND lands), 0) END AS BIGINT) AS moved,
    max(tokens) FILTER (before_admission) AS tried,
    count(*) FILTER (purpose = 'handoff' AND first) AS handoffs,
    count(*) FILTER (purpose IS DISTINCT FROM 'handoff' AND first AND lands AND carried IS DISTINCT FROM 0)
        AS reuses,
    TRY_CAST(CASE WHEN count(bytes) FILTER (lands AND NOT wrong AND end_ns IS NOT NULL) = count(*) FILTER (
            lands AND NOT wrong)
        THEN coalesce(sum(bytes) FILTER (lands AND NOT wrong), 0) END AS BIGINT) AS loaded_bytes,
    TRY_CAST(CASE WHEN count(*) FILTER (cause = 'vanished' AND lost IS NULL) > 0 THEN $limit
        ELSE least($limit, coalesce(sum(lost) FILTER (cause = 'vanished'), 0)) END AS BIGINT) AS vanished,
    TRY_CAST(CASE WHEN count(*) FILTER (cause = 'lock' AND lost IS NULL) > 0 THEN $limit
        ELSE least($limit, coalesce(sum(lost) FILTER (cause = 'lock'), 0)) END AS BIGINT) AS unlocked,
    TRY_CAST(CASE WHEN count(*) FILTER (cause = 'failed' AND lost IS NULL) > 0 THEN $limit
        ELSE least($limit, coalesce(sum(lost) FILTER (cause = 'failed'), 0)) END AS BIGINT) AS broken
FROM each GROUP BY request_id
"""
"""`least(usable, tokens)` is the tokens where nobody counted the usable ones. What a failed load carried is
what was usable of it. A load without any time is over where its engine counts what it used of it, and one of
the first admission."""

_STORED = """
CREATE OR REPLACE TEMP TABLE stored AS
SELECT request_id,
    CASE WHEN bool_and(end_ns IS NOT NULL) THEN max(coalesce(usable_ns, end_ns)) END AS store_completed_ns,
    count(*) FILTER (tier_from IN ('gpu', 'unknown')) AS stores,
    min(coalesce(usable_ns, end_ns)) FILTER (tier_from IN ('gpu', 'unknown')) AS first_stored_ns
FROM transfer
WHERE op = 'store' AND evidence IS DISTINCT FROM 'predicted' AND request_id IN (SELECT request_id FROM asked)
    AND coalesce(outcome, 'ok') NOT IN ('failed', 'timeout', 'cancelled', 'skipped')
GROUP BY request_id
"""

_TELLING = """
CREATE OR REPLACE TEMP TABLE telling AS
SELECT DISTINCT process FROM transfer
WHERE op = 'load' AND evidence IS DISTINCT FROM 'predicted' AND process IS NOT NULL
"""
"""Processes that record loads: where one of them answered an inquiry and no load follows, there was none."""


def move(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the tables moved, stored and telling."""
    connection.execute(_MOVED, {"limit": LIMIT})
    connection.execute(_STORED)
    connection.execute(_TELLING)
