"""The question `missed_by_lag`: what did lookups miss because a store was not over yet?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.store_lag.stores import MOVING, OFFERED, WAITING
from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    import duckdb

    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "request_id": pl.String,
        "producer_request_id": pl.String,
        "tokens": pl.Int64,
        "late_by_ns": pl.Int64,
    }
)

_KEYS = """
CREATE OR REPLACE TEMP TABLE prompt_key AS
WITH first AS (
    SELECT request_id, position, key_space, key, any_value(tokens) AS tokens FROM request_key
    WHERE coalesce(attempt, 1) = 1 AND position IS NOT NULL AND key IS NOT NULL GROUP BY ALL
)
SELECT *, TRY_CAST(sum(tokens) OVER (
    PARTITION BY request_id, key_space ORDER BY position ROWS UNBOUNDED PRECEDING) AS BIGINT) AS stop
FROM first
WINDOW so_far AS (PARTITION BY request_id, key_space ORDER BY position ROWS UNBOUNDED PRECEDING)
QUALIFY count(tokens) OVER so_far = count(*) OVER so_far AND position = row_number() OVER so_far - 1
"""
"""Keys of a prompt from its first on, each with the tokens up to its end; a hole ends what is known."""

# Stores of a request cover its prompt in their order, beyond what its own lookup found.
_PENDING = """
CREATE OR REPLACE TEMP TABLE pending AS
WITH placed AS (
    SELECT m.request_id, m.decided_ns, m.submit_ns, m.complete_ns, coalesce(o.found_tokens, 0) + coalesce(
            sum(m.tokens) OVER (in_order ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS begin,
        CASE WHEN count(m.tokens) OVER (in_order ROWS UNBOUNDED PRECEDING)
            = count(*) OVER (in_order ROWS UNBOUNDED PRECEDING)
            THEN coalesce(o.found_tokens, 0) + sum(m.tokens) OVER (in_order ROWS UNBOUNDED PRECEDING)
            ELSE 9223372036854775807 END AS stop
    FROM moving m LEFT JOIN offered o USING (request_id)
    WHERE m.good
    WINDOW in_order AS (PARTITION BY m.request_id ORDER BY m.start_ns, m.complete_ns NULLS LAST, m.tokens)
    UNION ALL
    SELECT request_id, queued_ns, NULL, NULL, begin, stop FROM waiting WHERE left_ns IS NULL AND stop > begin
)
SELECT k.key_space, k.key, p.request_id AS producer, p.decided_ns, min(p.complete_ns) AS complete_ns,
    arg_min(p.submit_ns, coalesce(p.complete_ns, 9223372036854775807)) AS submit_ns
FROM placed p JOIN prompt_key k
    ON k.request_id = p.request_id AND k.stop - k.tokens >= p.begin AND k.stop <= p.stop
WHERE p.decided_ns IS NOT NULL
GROUP BY ALL
"""

_LATE = """
CREATE OR REPLACE TEMP TABLE late AS
WITH inquiry AS (
    SELECT request_id, start_ns, found_tokens FROM lookup
    WHERE found_tokens IS NOT NULL AND request_id IS NOT NULL AND evidence IS DISTINCT FROM 'predicted'
    QUALIFY row_number() OVER (PARTITION BY request_id ORDER BY start_ns, span_id) = 1
), missing AS (
    SELECT q.request_id, q.start_ns, k.key_space, k.key, k.tokens, row_number() OVER (
        PARTITION BY q.request_id, k.key_space ORDER BY k.position) AS place
    FROM inquiry q JOIN prompt_key k USING (request_id)
    WHERE k.stop > q.found_tokens
), waited_for AS (
    SELECT m.request_id, m.key_space, m.place, any_value(m.start_ns) AS start_ns,
        any_value(m.tokens) AS tokens,
        arg_min({'producer': p.producer, 'complete_ns': p.complete_ns,
                'ahead_ns': TRY_CAST(p.submit_ns::HUGEINT - p.decided_ns AS BIGINT)},
            (coalesce(p.complete_ns, 9223372036854775807), p.decided_ns, p.producer)) AS store
    FROM missing m JOIN pending p ON p.key_space = m.key_space AND p.key = m.key
        AND p.producer <> m.request_id AND p.decided_ns <= m.start_ns
        AND (p.complete_ns IS NULL OR p.complete_ns > m.start_ns)
    GROUP BY m.request_id, m.key_space, m.place
), whole AS (
    SELECT * FROM waited_for
    QUALIFY place = row_number() OVER (PARTITION BY request_id, key_space ORDER BY place)
)
SELECT request_id, store.producer AS producer_request_id, key_space, place, tokens, start_ns,
    store.complete_ns - start_ns AS late_by_ns, store.ahead_ns AS ahead_ns
FROM whole
"""
"""One row a key that was missed: how late its store was, and how long that store had waited to begin."""

_MISSED = """
WITH prompt AS (
    SELECT request_id, producer_request_id, key_space, TRY_CAST(sum(tokens) AS BIGINT) AS tokens,
        CASE WHEN count(late_by_ns) = count(*) THEN max(late_by_ns) END AS late_by_ns,
        count(late_by_ns) = count(*) AS is_over, min(start_ns) AS start_ns
    FROM late GROUP BY ALL
)
SELECT request_id, producer_request_id, CASE WHEN count(tokens) = count(*) THEN max(tokens) END AS tokens,
    CASE WHEN bool_and(is_over) THEN max(late_by_ns) END AS late_by_ns
FROM prompt GROUP BY request_id, producer_request_id
ORDER BY min(start_ns), request_id, producer_request_id
"""
"""Two key spaces name the same tokens twice: the one that tells more of them counts."""


def _prepared(run: Run) -> duckdb.DuckDBPyConnection:
    connection = spilling(run)
    for statement in (MOVING, WAITING, OFFERED, _KEYS, _PENDING, _LATE):
        connection.execute(statement)
    return connection


def missed_keys(run: Run) -> pl.DataFrame:
    """What `missed_by_lag` sums up, key by key: `place` counts those that a lookup did not find, from 1.

    ahead_ns is how long the store that completes first waited between its decision and its begin, ns.
    """
    query = (
        "SELECT request_id, key_space, place, tokens, late_by_ns, ahead_ns FROM late "
        "ORDER BY request_id, key_space, place"
    )
    return pl.DataFrame(_prepared(run).sql(query).to_arrow_table())


def missed_by_lag(run: Run) -> pl.DataFrame:
    """Which prefixes did a lookup miss only because their store was decided and not complete?

    A row a (request, request whose store it was): the keys from the first that its lookup did not find, as
    long as each was being stored when the lookup began; where several key spaces name them, of the one that
    names most. Decided is the first of queued, asked for and begun.
    Prefixes are compared by keys of one key space; where keys of either request were not recorded, or the
    lookup gave no answer, nothing is said. A store covers its request's prompt in the order of its stores,
    beyond what that request's own lookup found; one that does not say its tokens, all the rest. Of several
    stores of a key the first to complete counts. Stores that failed or stored nothing are no lag; what waits
    in LMCache's lazy queue is decided, and never complete when it never leaves it.

        store of a    decided |----------| complete
        lookup of b              | start: misses the keys of a
                                 |-------| late by

    Columns:
        request_id: whose lookup missed
        producer_request_id: whose store was not complete
        tokens: tokens of the keys that it missed for that
        late_by_ns: complete - start of the lookup, ns, of the latest of these keys; null when the end of one
            of the stores was not seen
    """
    return pl.DataFrame(_prepared(run).sql(_MISSED).to_arrow_table()).cast(COLUMNS)
