"""The question `visibility`: what of each backend and tier could a router see?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "backend": pl.String,
        "tier": pl.String,
        "keys": pl.Int64,
        "published_keys": pl.Int64,
        "applied": pl.Int64,
        "warned": pl.Int64,
        "dropped": pl.Int64,
        "routes": pl.Int64,
        "routes_counting": pl.Int64,
        "visible": pl.String,
        "evidence": pl.String,
    }
)

_ROWS = """
WITH event AS (
    SELECT coalesce(component, split_part(key_space, ':', 1)) AS backend, coalesce(tier, 'unknown') AS tier,
        key_space, key, event = 'published' OR coalesce(component LIKE 'dynamo.%', false) AS is_published,
        event = 'published' AS is_applied
    FROM block WHERE event IN ('stored', 'written', 'published') AND evidence IS DISTINCT FROM 'predicted'
        AND key IS NOT NULL
), kept AS (
    SELECT backend, tier, count(DISTINCT (key_space, key)) AS keys,
        count(DISTINCT (key_space, key)) FILTER (is_published) AS published_keys,
        count(*) FILTER (is_applied) AS applied
    FROM event GROUP BY ALL
), choice AS (
    SELECT request_id, found_by_tier, attributes FROM span
    WHERE op = 'route' AND evidence IS DISTINCT FROM 'predicted'
        AND (found_by_tier IS NOT NULL OR attributes['device_blocks'] IS NOT NULL)
), said AS (
    SELECT t.tier, coalesce(c.found_by_tier[t.tier], TRY_CAST(c.attributes[t.blocks] AS BIGINT)) AS seen
    FROM choice c CROSS JOIN (SELECT unnest(['gpu', 'host', 'disk']) AS tier,
        unnest(['device_blocks', 'host_pinned_blocks', 'disk_blocks']) AS blocks) t
), counted AS (
    SELECT tier, count(seen) AS routes, count(*) FILTER (seen > 0) AS counting
    FROM said GROUP BY tier HAVING count(seen) > 0
), routed AS (
    SELECT coalesce(k.backend, 'router') AS backend, coalesce(k.tier, c.tier) AS tier, k.keys,
        k.published_keys, k.applied, c.routes, c.counting
    FROM kept k FULL JOIN counted c ON c.tier = k.tier
)
SELECT backend, tier, keys, published_keys,
    CASE WHEN applied > 0 THEN applied END AS applied, NULL::BIGINT AS warned, NULL::BIGINT AS dropped,
    coalesce(routes, 0) AS routes, CASE WHEN routes > 0 THEN counting END AS routes_counting,
    CASE WHEN counting > 0 OR applied > 0 THEN 'yes' WHEN published_keys > 0 THEN 'unknown'
        WHEN routes > 0 AND keys > 0 THEN 'no' ELSE 'unknown' END AS visible,
    CASE WHEN counting > 0 OR applied > 0 THEN 'native' WHEN published_keys > 0 THEN NULL
        WHEN routes > 0 AND keys > 0 THEN 'derived' END AS evidence
FROM routed
"""

_METRICS = """
WITH sample AS (
    SELECT regexp_replace(name, '_total$', '') AS name, process, labels, max(value) AS value FROM metric
    WHERE regexp_replace(name, '_total$', '') IN ('dynamo_component_kv_cache_events_applied',
            'dynamo_component_kv_cache_event_warnings',
            'dynamo_component_kv_publisher_engines_dropped_events')
        AND value IS NOT NULL
    GROUP BY ALL
), once AS (
    SELECT name, process, map_from_entries(list_filter(
        map_entries(labels), lambda e: NOT starts_with(e.key, 'kvtrace.'))) AS labels, max(value) AS value
    FROM sample GROUP BY ALL
), told AS (
    SELECT *, name LIKE '%events_applied' AS is_router, coalesce(labels['status'] = 'ok', false) AS is_ok
    FROM once
)
SELECT 'dynamo' AS backend, NULL::VARCHAR AS tier, NULL::BIGINT AS keys, NULL::BIGINT AS published_keys,
    TRY_CAST(sum(value) FILTER (is_router AND is_ok) AS BIGINT) AS applied,
    TRY_CAST(sum(value) FILTER (name LIKE '%warnings') AS BIGINT) AS warned,
    TRY_CAST(sum(value) FILTER ((is_router AND NOT is_ok) OR name LIKE '%dropped_events') AS BIGINT)
        AS dropped,
    NULL::BIGINT AS routes, NULL::BIGINT AS routes_counting,
    CASE WHEN coalesce(sum(value) FILTER (is_router AND is_ok), 0) > 0 THEN 'yes'
        WHEN bool_or(is_router) THEN 'no' ELSE 'unknown' END AS visible,
    CASE WHEN bool_or(is_router) THEN 'native' END AS evidence
FROM told HAVING count(*) > 0
"""


def visibility(run: Run) -> pl.DataFrame:
    """Which backend's keys, in which tier, could a router see?

    A row a (backend, tier) of which keys or a router's counts were recorded, and one for all tiers of a
    router that counts events without naming a tier (Dynamo's metrics: tier null). A tier is visible (yes,
    native) when a router counted tokens in it for some request or applied its events; not visible (no,
    derived) when keys of it were stored, routers said what they counted, and it was never anything; else
    unknown: on the event plane, which routers read, nothing says that they applied it.

    A worker's own stream and what its router sees are not the same: Dynamo's raw ZMQ path carries no host
    tier, so a run recorded there has no keys of one, and `four_events` shows what workers report beyond it.

    Columns:
        backend: the product's own name of the part, else the producer of the keys; router where a router
            counts a tier of which no key was recorded
        tier: physical medium; null for counts that name none
        keys: distinct keys that were stored there; null when none was recorded
        published_keys: of them published, or on the event plane of a router
        applied: events that routers applied; null when nobody counted
        warned: events that routers warned of (a block stored twice); null when nobody counted
        dropped: events that routers (a status other than ok) or publishers refused; null when nobody counted
        routes: choices of which the router said what it counted in this tier; null for all tiers
        routes_counting: of them with more than nothing there; null without one
        visible: yes, no or unknown
        evidence: native or derived; null where unknown
    """
    connection = spilling(run)
    frames = [
        pl.DataFrame(connection.sql(query).to_arrow_table()).select(list(COLUMNS)).cast(COLUMNS)
        for query in (_ROWS, _METRICS)
    ]
    return pl.concat(frames).sort("backend", "tier", nulls_last=True)
