"""What the first computed token needs of each group of layers, against what a load and the GPU give, as SQL.

    needs       |===============|first          retained_state: the scheduler, when the load is asked for
    on the GPU  |====|                          of the same row: cached blocks
    restored          |====|....|               restored_state: the worker, a row a group, when it is over
    lacks                  |====|

`retained` has a row a group of a load and a rank; two engines may have a request of one name, and a load of
which one rank spoke is every rank's that ever spoke in its engine. `verdict`:

    covered    the load was good, and nothing is lacking        lacking   it was good, and something is
    failed     the engine was told that it is not good: it computes again what did not arrive
    cancelled  its request was over before                      open      it has not ended
    untold     nobody said what it restored for this group

Of an engine with one group alone, the scheduler's own count of usable tokens stands in for a worker that is
silent. A recurrent state is one at exactly that token: a cached block has the state after its last token, a
restored one that of the token up to which it was loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

    from kvtrace.analyses.lock_contract._findings import Asked

_RETAINED = """
CREATE TEMP TABLE IF NOT EXISTS retained AS
WITH need AS MATERIALIZED (
    SELECT row_number() OVER () AS id, engine, process, request_id, transfer_id, component, state_kind,
        evidence, start_ns, TRY_CAST(attributes['group'] AS BIGINT) AS number, attributes['kind'] AS kind,
        attributes['window'] AS span,
        nullif(TRY_CAST(attributes['block_tokens'] AS BIGINT), 0)::HUGEINT AS block,
        TRY_CAST(attributes['from_token'] AS BIGINT)::HUGEINT AS low,
        TRY_CAST(attributes['first_computed'] AS BIGINT)::HUGEINT AS first,
        TRY_CAST(attributes['asked_from_tokens'] AS BIGINT)::HUGEINT AS had,
        TRY_CAST(attributes['groups'] AS BIGINT) = 1 AS alone, attributes['on_gpu'] AS on_gpu
    FROM span
    WHERE op IS NULL AND name = 'retained_state' AND transfer_id IS NOT NULL
        AND evidence IS DISTINCT FROM 'predicted'
), whole AS (
    SELECT process, request_id, transfer_id, any_value(outcome) AS outcome,
        max(coalesce(usable_ns, end_ns)) AS end_ns, bool_or(end_ns IS NULL) AS running,
        max(TRY_CAST(attributes['usable_tokens'] AS BIGINT))::HUGEINT AS usable
    FROM span WHERE op = 'load' AND observer = 'scheduler' AND transfer_id IS NOT NULL GROUP BY ALL
), restored AS (
    SELECT engine, request_id, transfer_id, coalesce(rank, -1) AS rank, outcome,
        TRY_CAST(attributes['group'] AS BIGINT) AS number,
        TRY_CAST(attributes['from_token'] AS BIGINT)::HUGEINT AS start,
        TRY_CAST(attributes['from_token'] AS BIGINT)::HUGEINT + tokens AS stop
    FROM span
    WHERE op IS NULL AND name = 'restored_state' AND transfer_id IS NOT NULL
        AND evidence IS DISTINCT FROM 'predicted'
), speaking AS (
    SELECT l.*, r.rank FROM (SELECT DISTINCT engine, request_id, transfer_id FROM restored) l
    JOIN (SELECT DISTINCT engine, rank FROM restored) r ON r.engine IS NOT DISTINCT FROM l.engine
), told AS (
    SELECT DISTINCT engine, request_id, transfer_id, rank, number FROM restored WHERE stop IS NOT NULL
), one AS MATERIALIZED (
    SELECT n.*, s.rank, w.outcome, w.end_ns, coalesce(w.running, true) AS running, w.usable,
        t.number IS NOT NULL AS heard, s.rank IS NULL AND coalesce(n.alone, false) AS stands_in
    FROM need n
    LEFT JOIN speaking s ON s.request_id = n.request_id AND s.transfer_id = n.transfer_id
        AND s.engine IS NOT DISTINCT FROM n.engine
    LEFT JOIN told t ON t.request_id = n.request_id AND t.transfer_id = n.transfer_id
        AND t.engine IS NOT DISTINCT FROM n.engine AND t.rank = s.rank AND t.number = n.number
    LEFT JOIN whole w ON w.request_id = n.request_id AND w.transfer_id = n.transfer_id
        AND w.process IS NOT DISTINCT FROM n.process
), cached AS (
    SELECT id, rank, low, first, block, TRY_CAST(split_part(part, '-', 1) AS BIGINT)::HUGEINT AS start,
        TRY_CAST(split_part(part, '-', 2) AS BIGINT)::HUGEINT AS stop, 0 AS beyond
    FROM (SELECT *, unnest(string_split(on_gpu, ' ')) AS part FROM one)
), piece AS (
    FROM cached
    UNION ALL
    SELECT o.id, o.rank, low, first, block, r.start, r.stop, block - 1
    FROM one o JOIN restored r ON r.request_id = o.request_id AND r.transfer_id = o.transfer_id
        AND r.engine IS NOT DISTINCT FROM o.engine AND r.rank = o.rank AND r.number = o.number
    WHERE r.outcome = 'ok'
    UNION ALL
    SELECT id, rank, low, first, block, had, had + usable, 0 FROM one WHERE stands_in
), clipped AS (
    SELECT id, rank, greatest(start, low) AS start, least(stop, first) AS stop,
        stop >= first AND (first % block = 0 OR stop - first <= beyond) AS exact
    FROM piece WHERE start < first AND stop > low AND start < stop
), reached AS (
    SELECT *, max(stop) OVER (PARTITION BY id, rank ORDER BY start, stop
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM clipped
), given AS (
    SELECT id, rank, sum(greatest(0, stop - greatest(start, coalesce(before, start)))) AS tokens,
        coalesce(bool_or(exact), false) AS exact
    FROM reached GROUP BY id, rank
), compared AS (
    SELECT o.* EXCLUDE (id, rank, low), nullif(o.rank, -1) AS rank, first - low AS needed,
        first - low - CASE WHEN kind = 'recurrent' AND NOT coalesce(g.exact, false) THEN 0
            ELSE coalesce(g.tokens, 0) END AS lacking
    FROM one o LEFT JOIN given g ON g.id = o.id AND g.rank IS NOT DISTINCT FROM o.rank
)
SELECT engine, component, request_id, transfer_id, number, rank, state_kind, kind, span, first, needed,
    lacking, evidence, coalesce(end_ns, start_ns) AS time_ns,
    CASE WHEN outcome IN ('failed', 'partial') THEN 'failed'
        WHEN outcome = 'cancelled' THEN 'cancelled'
        WHEN running OR outcome IS DISTINCT FROM 'ok' THEN 'open'
        WHEN NOT heard AND NOT stands_in OR lacking IS NULL THEN 'untold'
        WHEN lacking > 0 THEN 'lacking' ELSE 'covered' END AS verdict
FROM compared
"""


def retained(asked: Asked) -> duckdb.DuckDBPyConnection:
    """The database of what is asked, with the table `retained`, made when the first invariant needs it."""
    asked.connection.execute(_RETAINED)
    return asked.connection
