"""How long did a request's lookups, locks, copies and holds take, as SQL? Unions, in ns.

    lookup   |----|    |--|          lookup_wait 6+4, cut to the life of the request
    h2d          |=====|             host -> gpu, as long as it copies
    waited   |---------|--|          lookups, locks, loads from submit to usable, cut to the life

A kind of interval that nobody recorded for any request of an engine was not observed there: null. Where
somebody did, a request without one took 0. A copy with an unknown end may have been of any kind: null again;
one of which only the tokens are known took as long as nobody knows.
A line of a log that is an inquiry's answer alone does not say how long it took: no interval.
What claims to have begun before 1970 is counted from there: 64 bits then hold every difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

_ENDS = """
CREATE OR REPLACE TEMP TABLE process_end AS
WITH record AS (
    SELECT process, max(greatest(start_ns, end_ns, submit_ns, usable_ns, first_token_ns)) AS last_ns
    FROM span WHERE process IS NOT NULL GROUP BY process
    UNION ALL SELECT process, last_ns FROM process WHERE process IS NOT NULL
)
SELECT process, max(last_ns) AS last_ns FROM record GROUP BY process
"""

_PIECES = """
CREATE OR REPLACE TEMP TABLE piece AS
WITH own AS (
    SELECT request_id, members, process, start_ns, end_ns, start_ns AS asked_ns, end_ns AS done_ns,
        CASE op WHEN 'lock_wait' THEN 'lock' ELSE 'hold' END AS kind, op <> 'hold' AS waits
    FROM span WHERE op IN ('lock_wait', 'hold') AND evidence IS DISTINCT FROM 'predicted'
    UNION ALL
    SELECT request_id, members, process, start_ns, end_ns, start_ns, end_ns, 'lookup', true FROM lookup
    WHERE (end_ns > start_ns OR end_ns IS NULL OR attributes['log_line'] IS NULL)
        AND evidence IS DISTINCT FROM 'predicted'
    UNION ALL
    SELECT request_id, members, process, start_ns, end_ns, coalesce(submit_ns, start_ns),
        coalesce(usable_ns, end_ns),
        CASE WHEN start_ns IS NULL THEN CASE op WHEN 'load' THEN 'maybe h2d' ELSE 'maybe d2h' END
            WHEN op = 'load' AND tier_from = 'host' AND tier_to = 'gpu' THEN 'h2d'
            WHEN op = 'store' AND tier_from = 'gpu' AND tier_to = 'host' THEN 'd2h'
            WHEN tier_from IN ('peer', 'object') OR tier_to IN ('peer', 'object') THEN 'network'
            WHEN op = 'store' AND tier_from IN ('gpu', 'unknown') AND tier_to IN ('host', 'unknown')
                THEN 'maybe d2h'
            WHEN op = 'load' AND tier_from IN ('host', 'unknown') AND tier_to IN ('gpu', 'unknown')
                THEN 'maybe h2d'
            WHEN tier_from = 'unknown' OR tier_to = 'unknown' THEN 'maybe'
            WHEN tier_from = 'disk' OR tier_to = 'disk' THEN 'below' ELSE 'other' END,
        op = 'load'
    FROM copy WHERE evidence IS DISTINCT FROM 'predicted'
), each AS (
    SELECT process, kind, waits, start_ns, end_ns, asked_ns, done_ns, unnest(list_distinct(list_append(
        list_transform(coalesce(members, []), lambda m: m.request_id), request_id))) AS request_id
    FROM own WHERE end_ns IS NULL OR end_ns >= start_ns
), lasting AS (
    SELECT e.* EXCLUDE (request_id) REPLACE (
        CASE WHEN e.start_ns < 0 THEN 0 ELSE e.start_ns END AS start_ns,
        CASE WHEN e.asked_ns < 0 THEN 0 ELSE e.asked_ns END AS asked_ns
    ), r.number, r.start_ns AS born_ns, p.last_ns, r.end_ns AS gone_ns, o.last_ns AS seen_ns
    FROM each e JOIN asked r USING (request_id) LEFT JOIN process_end p ON e.process = p.process
    LEFT JOIN process_end o ON r.process = o.process
)
SELECT number, 'waited' AS kind, greatest(asked_ns, born_ns) AS s,
    least(coalesce(done_ns, last_ns, gone_ns), coalesce(gone_ns, seen_ns, done_ns)) AS e
FROM lasting WHERE waits AND born_ns IS NOT NULL AND asked_ns IS NOT NULL
UNION ALL
SELECT number, kind, greatest(start_ns, born_ns),
    least(coalesce(end_ns, last_ns, gone_ns), coalesce(gone_ns, seen_ns, end_ns))
FROM lasting WHERE kind IN ('lookup', 'lock')
UNION ALL
SELECT number, kind, start_ns, coalesce(end_ns, last_ns, start_ns) FROM lasting
WHERE kind NOT IN ('lookup', 'lock')
"""

_UNIONS = """
CREATE OR REPLACE TEMP TABLE lasted AS
WITH summed AS (
    SELECT number, kind, count(*) FILTER (e > s) AS pieces,
        TRY_CAST(coalesce(sum(e - s) FILTER (e > s), 0) AS BIGINT) AS ns,
        max(e) FILTER (e > s) - min(s) FILTER (e > s) AS hull_ns
    FROM piece GROUP BY number, kind
), reached AS (
    SELECT p.number, p.kind, s, e, max(e) OVER (PARTITION BY p.number, p.kind ORDER BY s, e
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM piece p JOIN summed x ON x.number = p.number AND x.kind = p.kind AND x.pieces > 2
    WHERE e > s
), joined AS (
    SELECT number, kind, least(ns, hull_ns) AS ns FROM summed WHERE pieces <= 2
    UNION ALL
    SELECT number, kind, TRY_CAST(sum(greatest(0, e - greatest(s, coalesce(before, s)))) AS BIGINT) AS ns
    FROM reached GROUP BY number, kind
)
SELECT number,
    max(ns) FILTER (kind = 'waited') AS waited_ns, max(ns) FILTER (kind = 'lookup') AS lookup_ns,
    max(ns) FILTER (kind = 'lock') AS lock_ns, max(ns) FILTER (kind = 'hold') AS hold_ns,
    max(ns) FILTER (kind = 'd2h') AS d2h_ns, max(ns) FILTER (kind = 'h2d') AS h2d_ns,
    max(ns) FILTER (kind = 'network') AS network_ns, bool_or(kind = 'below') AS is_below,
    coalesce(bool_or(kind = 'maybe d2h'), false) AS maybe_d2h,
    coalesce(bool_or(kind = 'maybe h2d'), false) AS maybe_h2d,
    coalesce(bool_or(kind IN ('maybe', 'maybe d2h', 'maybe h2d')), false) AS maybe_network
FROM joined GROUP BY number
"""
"""Two intervals cover the sum of both or, where they meet, their hull, whichever is less; only more of one
kind and request are sorted."""

_AGAIN = """
CREATE OR REPLACE TEMP TABLE computed_again AS
WITH chosen AS (
    SELECT s.request_id, CASE WHEN s.start_ns < 0 THEN 0 ELSE s.start_ns END AS s,
        coalesce(s.end_ns, s.start_ns) AS e
    FROM prompt_step s JOIN admitted a USING (request_id) JOIN asked r USING (request_id)
    WHERE s.start_ns >= a.again_ns OR s.before < r.gpu_hit_tokens + r.selected_tokens
), reached AS (
    SELECT request_id, s, e, max(e) OVER (
        PARTITION BY request_id ORDER BY s, e ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM chosen
)
SELECT request_id, TRY_CAST(sum(greatest(0, e - greatest(s, coalesce(before, s)))) AS BIGINT) AS recompute_ns
FROM reached GROUP BY request_id
"""

_WATCHED = """
CREATE OR REPLACE TEMP TABLE watched AS
WITH asking AS (
    SELECT DISTINCT engine FROM span WHERE op = 'lookup' AND observer = 'scheduler' AND engine IS NOT NULL
        AND evidence IS DISTINCT FROM 'predicted'
)
SELECT coalesce(r.own_engine, '') AS engine, coalesce(bool_or(r.own_engine IN (FROM asking)), false) AS asks,
    count(l.lock_ns) > 0 AS locks, count(l.hold_ns) > 0 AS holds, count(l.d2h_ns) > 0 AS d2h,
    count(l.h2d_ns) > 0 AS h2d, count(l.network_ns) > 0 OR coalesce(bool_or(l.is_below), false) AS network
FROM asked r LEFT JOIN lasted l USING (number) GROUP BY ALL
"""
"""Which kinds somebody recorded, by engine. Who records a hop to a disk would record one over a network."""


def last(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the tables process_end, lasted, computed_again and watched; steps and pieces are used up."""
    for statement in (
        _ENDS,
        _PIECES,
        _UNIONS,
        "DROP TABLE piece",
        _AGAIN,
        "DROP TABLE prompt_step",
        _WATCHED,
    ):
        connection.execute(statement)
