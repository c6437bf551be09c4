"""Which keys were asked for, in which order, by whom; and where keys of that kind lie, of which size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.analyses.ideal_hit_ratio import ASKED, TURNS

if TYPE_CHECKING:
    import duckdb

_TENANT = """
CREATE OR REPLACE TEMP TABLE tenancy AS
WITH said AS (
    SELECT request_id, max(identity_id) AS identity_id FROM span
    WHERE op = 'lookup' AND starts_with(identity_id, 'lmcache:salt:') GROUP BY request_id
)
SELECT t.turn, t.space, t.key_space, substr(s.identity_id, 14) AS tenant,
    dense_rank() OVER (ORDER BY t.space, tenant NULLS FIRST) - 1 AS owner
FROM turns t LEFT JOIN said s USING (request_id)
"""
_OWNERS = """
SELECT owner::BIGINT AS owner, any_value(space) AS space, any_value(key_space) AS key_space,
    any_value(tenant) AS tenant, count(*) AS requests
FROM tenancy GROUP BY owner ORDER BY owner
"""
_ACCESSES = """
WITH owned AS (
    SELECT a.turn, a.position, a.key, a.tokens, t.owner FROM asked a JOIN tenancy t USING (turn)
), named AS (
    SELECT owner, key, row_number() OVER () - 1 AS number, max(tokens) AS tokens
    FROM owned GROUP BY owner, key
)
SELECT o.turn::INTEGER AS turn, o.owner::BIGINT AS owner, n.number::INTEGER AS key, o.position, n.tokens
FROM owned o JOIN named n ON n.owner = o.owner AND n.key = o.key
ORDER BY o.turn, o.position
"""
"""A cache salt is a part of a key: what two tenants ask for under one hash are two keys."""

_HELD = """
WITH object AS (
    SELECT coalesce(tier, 'unknown') AS tier, component, key_space, key, rank, object_group,
        max(bytes) AS bytes
    FROM block
    WHERE event IN ('stored', 'written', 'published') AND key IS NOT NULL
        AND evidence IS DISTINCT FROM 'predicted'
    GROUP BY ALL
), whole AS (
    SELECT tier, component, key_space, key, CASE WHEN count(bytes) = count(*) THEN sum(bytes) END AS bytes
    FROM object GROUP BY ALL
)
SELECT tier, component, key_space, CASE WHEN count(bytes) > 0 THEN avg(bytes) END::DOUBLE AS key_bytes
FROM whole GROUP BY ALL
"""
"""A key's bytes are those of all its ranks and object groups; calls know no sizes, only places."""


def accesses(connection: duckdb.DuckDBPyConnection) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(turn, owner, key, position, tokens) in order, and the owners: key space, tenant, requests."""
    for statement in (TURNS, ASKED, _TENANT):
        connection.execute(statement)
    rows = pl.DataFrame(connection.sql(_ACCESSES).to_arrow_table())
    owners = pl.DataFrame(connection.sql(_OWNERS).to_arrow_table())
    return rows, owners


def places(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """(tier, component, key_space, key_bytes): where events brought keys of which kind, and their size."""
    return pl.DataFrame(connection.sql(_HELD).to_arrow_table())
