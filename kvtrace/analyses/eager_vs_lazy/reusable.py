"""Which share of the time after a request is its state reusable from beyond the GPU?

    finished       completed            gone     window ends
--------|--------------|==================|---------|
        |<------------------ window --------------->|
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.store_lag.stores import MOVING
from kvtrace.run.derived import spilling
from kvtrace.schema.vocabulary import FIRST_DATE_NS

if TYPE_CHECKING:
    from kvtrace.run import Run

_LASTS = """
WITH asked AS (
    SELECT start_ns, evidence IS NOT DISTINCT FROM 'predicted' AS is_predicted FROM request
    WHERE start_ns IS NOT NULL
), arrived AS (
    FROM asked WHERE NOT is_predicted OR NOT EXISTS (FROM asked WHERE NOT is_predicted)
), record AS (
    SELECT coalesce(start_ns, submit_ns, end_ns) >= $dated_ns AS is_dated,
        greatest(start_ns, end_ns, submit_ns, usable_ns, first_token_ns) AS last_ns FROM span
    WHERE evidence IS DISTINCT FROM 'predicted' OR NOT EXISTS (FROM asked WHERE NOT is_predicted)
), first AS (
    SELECT coalesce(min(start_ns) FILTER (start_ns >= $dated_ns), min(start_ns)) AS first_ns FROM arrived
)
SELECT max(last_ns)::HUGEINT - any_value(first_ns)
FROM record, first WHERE is_dated = (first_ns >= $dated_ns)
"""
"""A clock without a date counts from its own start: none of its rows is before or after one with a date. What
is only simulated happened to nobody, and lasts where nothing else does."""

_OPEN = """
SELECT DISTINCT m.request_id FROM moving m JOIN lag l USING (request_id)
WHERE m.good AND m.complete_ns IS NULL AND l.finished_ns IS NOT NULL
"""

_SHARES = """
WITH record AS (
    SELECT engine, coalesce(start_ns, submit_ns, end_ns) >= $dated_ns AS is_dated,
        greatest(start_ns, end_ns, submit_ns, usable_ns, first_token_ns) AS last_ns
    FROM span WHERE engine IS NOT NULL AND evidence IS DISTINCT FROM 'predicted'
), record_end AS (
    SELECT engine, is_dated, max(last_ns) AS last_ns FROM record GROUP BY ALL
), first_key AS (
    SELECT DISTINCT request_id, key_space, key FROM request_key
    WHERE position = 0 AND coalesce(attempt, 1) = 1 AND key IS NOT NULL
), stay AS (
    SELECT key_space, key, CASE WHEN count(end_ns) = count(*) THEN max(end_ns) END AS gone_ns
    FROM residency WHERE tier NOT IN ('gpu', 'unknown') GROUP BY key_space, key HAVING bool_and(ends_seen)
), gone AS (
    SELECT request_id, max(gone_ns) AS gone_ns, count(gone_ns) = count(*) AS is_gone
    FROM first_key JOIN stay USING (key_space, key) GROUP BY request_id
), known AS (
    SELECT l.request_id, l.finished_ns, least(e.last_ns, l.finished_ns::HUGEINT + $horizon) AS stop_ns,
        CASE WHEN l.never_stored OR o.request_id IS NOT NULL AND l.lag_ns IS NULL THEN NULL
            WHEN o.request_id IS NOT NULL THEN greatest(l.finished_ns, l.published_ns)
            WHEN l.completed_ns IS NULL THEN l.finished_ns
            ELSE greatest(l.finished_ns, coalesce(l.published_ns, l.completed_ns)) END AS from_ns,
        CASE WHEN g.is_gone THEN g.gone_ns END AS gone_ns, g.request_id IS NOT NULL AS ends_known
    FROM lag l JOIN request r USING (request_id)
    JOIN record_end e ON e.engine = r.engine
        AND e.is_dated = (coalesce(r.start_ns, l.finished_ns) >= $dated_ns)
    LEFT JOIN gone g USING (request_id) LEFT JOIN still_open o USING (request_id)
    WHERE l.finished_ns IS NOT NULL AND (o.request_id IS NOT NULL OR l.never_stored IS NOT NULL
        AND NOT (NOT l.never_stored AND l.completed_ns IS NULL AND coalesce(l.stored_tokens, 1) > 0))
)
SELECT count(*) FILTER (stop_ns > finished_ns) AS requests, count(*) FILTER (ends_known) AS ends_known,
    sum(greatest(0, least(stop_ns, coalesce(gone_ns, stop_ns)) - from_ns)::DOUBLE)
        / sum((stop_ns - finished_ns)::DOUBLE) AS share
FROM known WHERE stop_ns > finished_ns
"""


def lasted(run: Run) -> int | None:
    """From a run's first arrival to its last record of the same clock, ns; null without requests."""
    ((found,),) = run.connection().sql(_LASTS, params={"dated_ns": FIRST_DATE_NS}).fetchall()
    return None if found is None or found < 0 else int(found)


def still_open(run: Run, lag: pl.DataFrame) -> pl.DataFrame:
    """Which requests are over while a store of theirs is not: none of these has told when it is complete.

    lag: the rows of `store_lag`.
    """
    connection = spilling(run)
    try:
        connection.execute(MOVING)
        connection.register("lag", lag.to_arrow())
        return pl.DataFrame(connection.sql(_OPEN).to_arrow_table())
    finally:
        connection.close()


def reusable_share(run: Run, horizon_ns: int, lag: pl.DataFrame) -> tuple[float | None, int, int]:
    """The share, of how many requests, and of how many of these a removal of their keys would be known.

    lag: the rows of `store_lag`. A store that is open at the end made nothing reusable until then.
    """
    connection = spilling(run)
    try:
        connection.register("lag", lag.to_arrow())
        connection.register("still_open", still_open(run, lag).to_arrow())
        given = {"horizon": horizon_ns, "dated_ns": FIRST_DATE_NS}
        ((requests, ends_known, share),) = connection.sql(_SHARES, params=given).fetchall()
    finally:
        connection.close()
    return share, requests, ends_known
