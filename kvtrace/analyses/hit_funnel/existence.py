"""Which prefix of a request's keys lay in any tier when it was first asked for? By key events.

    key 0   stored────────────────────────────|───>            there
    key 1   stored─────────removed            |                gone: the prefix is key 0
    key 2   written (no evictions recorded)───|───>            not known, would the prefix come so far
                                              asked

A place is one tier and component of one process. It is `tracked` when it records what leaves it: a removal
was seen there, or its keys come from a stream of events that carries removals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from pathlib import Path

    from kvtrace.run import Run

TRACKING = ("vllm", "sglang", "trtllm", "dynamo")
"""Producers whose event streams tell of every removal, whether or not one happened."""

_EVENTS = """
CREATE OR REPLACE TEMP TABLE place_event AS
SELECT key_space, key, time_ns, event IN ('stored', 'written') AS is_there, event = 'cleared' AS is_clear,
    coalesce(seq, -1) AS seq, coalesce(engine, '') AS engine, tier, component, concat_ws('|',
        coalesce(engine, ''), coalesce(process, ''), coalesce(tier, ''), coalesce(component, ''),
        coalesce(rank::VARCHAR, ''), coalesce(object_group, '')) AS place
FROM block
WHERE event IN ('stored', 'written', 'removed', 'expired', 'cleared') AND time_ns IS NOT NULL
"""

_PLACES = """
CREATE OR REPLACE TEMP TABLE clearing AS
SELECT DISTINCT p.place, c.time_ns
FROM (SELECT DISTINCT place, engine, tier, component, key_space FROM place_event WHERE NOT is_clear) p
JOIN place_event c ON c.is_clear AND c.engine = p.engine
    AND (c.tier IS NULL OR c.tier IS NOT DISTINCT FROM p.tier)
    AND (c.component IS NULL OR c.component IS NOT DISTINCT FROM p.component)
    AND (c.key_space IS NULL OR c.key_space = p.key_space);
CREATE OR REPLACE TEMP TABLE key_place AS
WITH tracked AS (
    SELECT key_space, place,
        bool_or(NOT is_there) OR list_contains($tracking, split_part(key_space, ':', 1))
            OR place IN (SELECT place FROM clearing) AS tracked
    FROM place_event WHERE NOT is_clear AND key IS NOT NULL AND key_space IS NOT NULL
    GROUP BY key_space, place
)
SELECT DISTINCT e.key_space, e.key, e.place, t.tracked
FROM place_event e JOIN tracked t USING (key_space, place) WHERE NOT e.is_clear AND e.key IS NOT NULL;
CREATE OR REPLACE TEMP TABLE key_change AS
SELECT key_space, key, place, time_ns, arg_max(is_there, {'s': seq, 'i': is_there}) AS is_there
FROM place_event WHERE NOT is_clear AND key IS NOT NULL AND key_space IS NOT NULL
GROUP BY key_space, key, place, time_ns
"""

_ASKED = """
CREATE OR REPLACE TEMP TABLE asked_key AS
SELECT k.request_id, k.key_space, k.position, any_value(k.key) AS key, any_value(k.tokens) AS tokens,
    any_value(f.first_asked_ns) AS asked_ns
FROM request_key k JOIN read_parquet($facts) f USING (request_id)
WHERE coalesce(k.attempt, 1) = 1 AND k.key_space IN (SELECT key_space FROM key_place WHERE tracked)
    AND f.first_asked_ns IS NOT NULL
GROUP BY k.request_id, k.key_space, k.position
"""

_ANSWERS = """
WITH inquiry AS (
    SELECT DISTINCT key_space, key, asked_ns FROM asked_key
), candidate AS (
    SELECT i.*, p.place, p.tracked FROM inquiry i JOIN key_place p USING (key_space, key)
), latest AS (
    SELECT c.*, e.is_there, e.time_ns FROM candidate c ASOF JOIN key_change e
    ON c.key_space = e.key_space AND c.key = e.key AND c.place = e.place AND c.asked_ns >= e.time_ns
), uncleared AS (
    SELECT l.*, l.is_there AND (c.time_ns IS NULL OR c.time_ns < l.time_ns) AS is_kept
    FROM latest l ASOF LEFT JOIN clearing c ON l.place = c.place AND l.asked_ns >= c.time_ns
), state AS (
    SELECT key_space, key, asked_ns, bool_or(tracked AND is_kept) AS surely, bool_or(is_kept) AS maybe
    FROM uncleared GROUP BY key_space, key, asked_ns
), laid AS (
    SELECT a.request_id, a.key_space, a.position, a.tokens, coalesce(s.surely, false) AS surely,
        coalesce(s.maybe, false) AS maybe
    FROM asked_key a LEFT JOIN state s USING (key_space, key, asked_ns)
), ended AS (
    SELECT request_id, key_space, coalesce(min(position) FILTER (NOT surely), max(position) + 1) AS stop
    FROM laid GROUP BY request_id, key_space
), prefix AS (
    SELECT l.request_id, l.key_space, bool_or(l.position = e.stop AND l.maybe) AS untold,
        count(*) FILTER (l.position < e.stop) = any_value(e.stop)
            AND count(l.tokens) FILTER (l.position < e.stop) = any_value(e.stop) AS whole,
        TRY_CAST(coalesce(sum(l.tokens) FILTER (l.position < e.stop), 0) AS BIGINT) AS tokens
    FROM laid l JOIN ended e USING (request_id, key_space) GROUP BY l.request_id, l.key_space
)
SELECT request_id, max(tokens) FILTER (whole AND NOT untold) AS exists_tokens FROM prefix GROUP BY request_id
"""


def existence(run: Run, facts: Path) -> pl.DataFrame:
    """(request_id, exists_tokens) of the requests of which it is known; `facts` is the file of `_served`."""
    empty = pl.DataFrame(schema={"request_id": pl.String, "exists_tokens": pl.Int64})
    if not run.files("block") or not run.files("request_key"):
        return empty
    connection = spilling(run)
    try:
        connection.execute(_EVENTS)
        for statement in _PLACES.split(";\n"):
            connection.execute(statement, {"tracking": list(TRACKING)} if "$tracking" in statement else None)
        connection.execute(_ASKED, {"facts": str(facts)})
        return pl.DataFrame(connection.sql(_ANSWERS).to_arrow_table())
    finally:
        connection.close()
