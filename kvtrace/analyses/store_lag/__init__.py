"""The question `store_lag`: how long after a request is its state reusable?

stores.py   what each request stored, as SQL over the nouns
events.py   what events of keys say of it where nobody saw the store itself
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.store_lag.events import EVENTS
from kvtrace.analyses.store_lag.stores import MOVING, OFFERED, WAITING
from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "request_id": pl.String,
        "finished_ns": pl.Int64,
        "queued_ns": pl.Int64,
        "submitted_ns": pl.Int64,
        "completed_ns": pl.Int64,
        "published_ns": pl.Int64,
        "stored_tokens": pl.Int64,
        "skipped_tokens": pl.Int64,
        "skip_reason": pl.String,
        "never_stored": pl.Boolean,
        "lag_ns": pl.Int64,
    }
)

_ROWS = """
WITH storing AS (
    SELECT request_id FROM moving UNION SELECT request_id FROM waiting
), tiered AS (
    SELECT DISTINCT engine FROM request WHERE engine IS NOT NULL AND request_id IN (
        SELECT request_id FROM moving UNION ALL SELECT request_id FROM lookup
        UNION ALL SELECT request_id FROM hold WHERE reason = 'store'
        UNION ALL SELECT request_id FROM brought UNION ALL SELECT request_id FROM waiting)
    UNION SELECT engine FROM health
    UNION SELECT engine FROM block WHERE tier NOT IN ('gpu', 'unknown') AND engine IS NOT NULL
), seen AS (
    SELECT request_id, start_ns, end_ns, engine FROM request WHERE evidence IS DISTINCT FROM 'predicted'
), asked AS (
    FROM seen WHERE engine IN (FROM tiered) OR request_id IN (FROM storing)
    UNION ALL
    SELECT request_id, NULL::BIGINT, NULL::BIGINT, NULL FROM storing
    WHERE request_id NOT IN (SELECT request_id FROM seen)
), moved AS (
    SELECT
        request_id, min(queued_ns) AS queued_ns, min(submit_ns) FILTER (op = 'store') AS submitted_ns,
        count(*) FILTER (good) AS good, count(*) FILTER (good AND complete_ns IS NULL) AS open,
        count(*) FILTER (op = 'drop') AS drops, count(*) FILTER (op = 'store' AND NOT good) AS failed,
        bool_and(coalesce(reason = 'duplicate', false)) FILTER (op = 'drop') AS all_duplicates,
        max(complete_ns) FILTER (good) AS completed_ns,
        sum(tokens) FILTER (good AND complete_ns IS NOT NULL) AS stored,
        count(*) FILTER (good AND complete_ns IS NOT NULL AND tokens IS NULL) AS untold,
        sum(tokens) FILTER (op = 'drop') AS dropped,
        coalesce(arg_min(reason, start_ns) FILTER (op = 'drop' AND reason <> 'duplicate'),
            arg_min(reason, start_ns) FILTER (op = 'drop'),
            arg_min(reason, start_ns) FILTER (op = 'store' AND NOT good)) AS reason
    FROM moving GROUP BY request_id
), by_events AS (
    SELECT request_id, published_ns, CASE WHEN is_told THEN own_brought_ns ELSE brought_ns END AS brought_ns,
        CASE WHEN is_told THEN own_tokens ELSE tokens END AS tokens
    FROM (SELECT *, request_id IN (SELECT request_id FROM moving WHERE NOT only_drops
        UNION ALL SELECT request_id FROM waiting) AS is_told FROM from_events)
), queued AS (
    SELECT request_id, min(queued_ns) AS queued_ns, count(*) FILTER (left_ns IS NULL) AS stuck,
        coalesce(sum(tokens) FILTER (left_ns IS NULL), 0) AS stuck_tokens
    FROM waiting GROUP BY request_id
), held AS (
    SELECT request_id, bool_or(end_ns IS NULL) AS held_open FROM hold WHERE reason = 'store'
    GROUP BY request_id
), unwell AS (
    SELECT DISTINCT a.request_id FROM asked a JOIN health h ON h.engine = a.engine
    WHERE h.reason IN ('degraded', 'down') AND h.start_ns <= a.end_ns
        AND coalesce(h.end_ns, 9223372036854775807) > a.end_ns
), client AS (
    SELECT DISTINCT engine FROM span
    WHERE observer = 'client' AND op IN ('store', 'drop') AND engine IS NOT NULL
), lost AS (
    SELECT coalesce(to_ns, 9223372036854775807) AS to_ns,
        coalesce(process IN (SELECT process FROM span WHERE observer = 'server'), false) AS of_server
    FROM loss WHERE cause <> 'duplicate' AND (op IS NULL OR op IN ('store', 'drop'))
), asked_here AS (
    SELECT *, EXISTS (FROM moving WHERE NOT only_drops) OR EXISTS (FROM brought) OR EXISTS (FROM waiting)
            AS observable,
        coalesce((SELECT max(to_ns) FROM lost WHERE NOT (of_server AND engine IN (FROM client))) >= start_ns,
            false) AS maybe_lost
    FROM asked
), facts AS (
    SELECT
        a.request_id, a.end_ns AS finished_ns, least(m.queued_ns, q.queued_ns) AS queued_ns, m.submitted_ns,
        CASE WHEN coalesce(m.open, 0) = 0 THEN coalesce(m.completed_ns, e.brought_ns) END AS completed_ns,
        e.published_ns, coalesce(m.good, 0) AS good, coalesce(m.open, 0) AS open,
        coalesce(m.drops, 0) AS drops, coalesce(m.failed, 0) AS failed,
        coalesce(t.keys_there, 0) > 0 AS was_there,
        CASE WHEN m.good - m.open > 0 THEN CASE WHEN m.untold = 0 THEN m.stored END
            WHEN e.brought_ns IS NOT NULL THEN e.tokens
            WHEN observable AND coalesce(m.open, 0) = 0 AND NOT maybe_lost THEN 0 END AS stored_tokens,
        coalesce(m.dropped, 0) + coalesce(q.stuck_tokens, 0) AS dropped, coalesce(q.stuck, 0) AS stuck,
        o.keyed_tokens, o.found_tokens, coalesce(o.below_chunk, false) AS below_chunk, m.reason,
        coalesce(m.all_duplicates, false) AS all_duplicates, e.brought_ns,
        coalesce(h.held_open, false) AS held_open,
        a.request_id IN (SELECT request_id FROM unwell) AS unwell, observable, maybe_lost
    FROM asked_here a LEFT JOIN moved m USING (request_id) LEFT JOIN offered o USING (request_id)
    LEFT JOIN by_events e USING (request_id) LEFT JOIN held h USING (request_id)
    LEFT JOIN already t USING (request_id) LEFT JOIN queued q USING (request_id)
), judged AS (
    SELECT *,
        good - open > 0 OR brought_ns IS NOT NULL AS is_stored,
        CASE WHEN dropped > 0 THEN dropped
            WHEN keyed_tokens < stored_tokens THEN 0
            WHEN open = 0 THEN keyed_tokens - stored_tokens END AS skipped_tokens
    FROM facts
), said AS (
    SELECT *, CASE
        WHEN reason IS NOT NULL THEN reason
        WHEN stuck > 0 THEN 'never_drained'
        WHEN below_chunk THEN 'below_chunk'
        WHEN skipped_tokens > 0 AND found_tokens >= skipped_tokens THEN 'duplicate'
        WHEN was_there AND NOT is_stored THEN 'duplicate'
        WHEN unwell AND NOT is_stored THEN 'unhealthy' END AS skip_reason,
        NOT is_stored AND (below_chunk OR all_duplicates AND drops > 0 OR was_there
            OR coalesce(keyed_tokens > 0 AND found_tokens >= keyed_tokens, false)) AS nothing_to_do
    FROM judged
)
SELECT
    request_id, finished_ns, queued_ns, submitted_ns, completed_ns, published_ns,
    TRY_CAST(stored_tokens AS BIGINT) AS stored_tokens, TRY_CAST(skipped_tokens AS BIGINT) AS skipped_tokens,
    skip_reason, CASE
        WHEN is_stored OR nothing_to_do THEN false
        WHEN finished_ns IS NULL OR open > 0 OR held_open OR NOT observable OR maybe_lost THEN NULL
        WHEN keyed_tokens IS NULL AND found_tokens > 0 AND drops + stuck + failed = 0 THEN NULL
        ELSE true END AS never_stored,
    coalesce(published_ns, completed_ns) - finished_ns AS lag_ns
FROM said ORDER BY finished_ns NULLS LAST, request_id
"""


def store_lag(run: Run) -> pl.DataFrame:
    """How long after a request finished is its state stored, visible, and reusable?

    A row a request of an engine that has something to store to: a store, a drop, a lookup, a hold for a
    store, a health row or events of keys beyond the GPU say so; one that was only simulated has none. Only
    the hop that leaves the GPU counts; one further down moves what was reusable before. Where no store was
    recorded, events of the request's keys stand for it: what was stored beyond the GPU after the request
    began, and before another request with the same key did (Dynamo's host tier). Of one that recorded a
    store, a drop or a wait to be stored of its own only those that name it, or a key that no other request
    asked for: the rest may be another's store of its keys.

    never_stored is true when the request is over, no store of it ended well and none is open; false also
    where there was nothing to store: its keys were there, or its prompt has none. It is null where that
    cannot be told: the request or its store is still open, nobody in the run recorded stores, records of
    stores after its arrival are missing (a cache server's count only where its client did not record), or a
    part of it was found there and its keys, which would say how much there is to store, were not recorded.
    Output tokens have no keys before they are stored: they are not counted as skipped.

    Columns:
        request_id: the request
        finished_ns: its finish, unix ns; null while open
        queued_ns: when its first store was queued, unix ns
        submitted_ns: when its first store was asked for, unix ns; where nobody said so, when it began
        completed_ns: when its last store was complete, unix ns; null while one of them is open
        published_ns: when the last of its keys became visible to a router, unix ns
        stored_tokens: tokens that its stores wrote; null when one of them does not say, or nobody can know
        skipped_tokens: tokens that were not stored: those of its drops and those that never left the queue,
            else those of its prompt's keys less what was stored
        skip_reason: the drop's (or failed store's); never_drained (it waited in a queue to the end, as the
            tail of LMCache's lazy offload does); below_chunk; duplicate when its lookup had found as many, or
            events show its keys there; unhealthy when its engine saw the cache so at the finish; else null
        never_stored: whether no later request can reuse it from beyond the GPU
        lag_ns: (published_ns, else completed_ns) - finished_ns, ns; negative when it was reusable before
    """
    connection = spilling(run)
    for statement in (MOVING, WAITING, OFFERED, *EVENTS):
        connection.execute(statement)
    return pl.DataFrame(connection.sql(_ROWS).to_arrow_table()).cast(COLUMNS)
