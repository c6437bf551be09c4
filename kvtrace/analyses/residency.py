"""The question `residency`: what lies in which tier, over time?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kvtrace.errors import UsageError
from kvtrace.run.derived import spilling

if TYPE_CHECKING:
    from kvtrace.run import Run

COLUMNS = pl.Schema(
    {
        "tier": pl.String,
        "component": pl.String,
        "time_ns": pl.Int64,
        "keys": pl.Int64,
        "bytes": pl.Int64,
        "tokens": pl.Int64,
        "evidence": pl.String,
    }
)

# A key of several object groups is one key as long as one of them is there; the bytes of all of them count.
_CHANGES = """
WITH stay AS (
    SELECT *, coalesce(end_ns, 9223372036854775807) AS stop_ns FROM residency
    WHERE ends_seen AND start_ns < coalesce(end_ns, 9223372036854775807)
        AND ($engine IS NULL OR engine = $engine)
), reached AS (
    SELECT *, max(stop_ns) OVER (
        PARTITION BY tier, component, engine, locality, key_space, key ORDER BY start_ns, stop_ns
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM stay
), numbered AS (
    SELECT *, sum((before IS NULL OR before < start_ns)::INT) OVER (
        PARTITION BY tier, component, engine, locality, key_space, key ORDER BY start_ns, stop_ns
        ROWS UNBOUNDED PRECEDING) AS turn
    FROM reached
), present AS (
    SELECT tier, component, min(start_ns) AS start_ns, max(stop_ns) AS stop_ns, max(tokens) AS tokens
    FROM numbered GROUP BY tier, component, engine, locality, key_space, key, turn
), change AS (
    SELECT tier, component, start_ns AS time_ns, 1 AS keys, coalesce(tokens, 0) AS tokens,
        (tokens IS NULL)::INT AS no_tokens, 0 AS bytes, 0 AS no_bytes FROM present
    UNION ALL
    SELECT tier, component, stop_ns, -1, -coalesce(tokens, 0), -(tokens IS NULL)::INT, 0, 0 FROM present
    UNION ALL
    SELECT tier, component, start_ns, 0, 0, 0, coalesce(bytes, 0), (bytes IS NULL)::INT FROM stay
    UNION ALL
    SELECT tier, component, stop_ns, 0, 0, 0, -coalesce(bytes, 0), -(bytes IS NULL)::INT FROM stay
), at_once AS (
    SELECT tier, component, time_ns, sum(keys) AS keys, sum(tokens) AS tokens, sum(no_tokens) AS no_tokens,
        sum(bytes) AS bytes, sum(no_bytes) AS no_bytes
    FROM change WHERE time_ns < 9223372036854775807 GROUP BY tier, component, time_ns
), summed AS (
    SELECT tier, component, time_ns, sum(keys) OVER so_far AS keys, sum(tokens) OVER so_far AS tokens,
        sum(no_tokens) OVER so_far AS no_tokens, sum(bytes) OVER so_far AS bytes,
        sum(no_bytes) OVER so_far AS no_bytes
    FROM at_once
    WINDOW so_far AS (PARTITION BY tier, component ORDER BY time_ns ROWS UNBOUNDED PRECEDING)
), told AS (
    SELECT tier, component, time_ns, keys::BIGINT AS keys,
        TRY_CAST(CASE WHEN no_bytes = 0 THEN bytes END AS BIGINT) AS bytes,
        TRY_CAST(CASE WHEN no_tokens = 0 THEN tokens END AS BIGINT) AS tokens
    FROM summed
), weakest AS (
    SELECT tier, component, CASE WHEN count(evidence) = count(*) THEN ['native', 'shim', 'derived'][
        max(list_position(['native', 'shim', 'derived'], evidence))] END AS evidence
    FROM stay GROUP BY tier, component
), moved AS (
    SELECT * FROM told WINDOW in_time AS (PARTITION BY tier, component ORDER BY time_ns)
    QUALIFY row_number() OVER in_time = 1 OR keys IS DISTINCT FROM lag(keys) OVER in_time
        OR bytes IS DISTINCT FROM lag(bytes) OVER in_time OR tokens IS DISTINCT FROM lag(tokens) OVER in_time
)
SELECT m.*, w.evidence FROM moved m JOIN weakest w
    ON w.tier = m.tier AND w.component IS NOT DISTINCT FROM m.component
"""

_L1 = "lmcache_status.storage_manager.l1_manager."
_PAGES = """
SELECT 'host' AS tier, 'lmcache.l1' AS component, time_ns,
    TRY_CAST(max(value) FILTER (name = $objects) AS BIGINT) AS keys,
    TRY_CAST(max(value) FILTER (name = $used) AS BIGINT) AS bytes,
    NULL::BIGINT AS tokens, 'native' AS evidence
FROM metric WHERE name IN ($objects, $used) AND $engine IS NULL
GROUP BY process, labels, time_ns
"""


def residency(run: Run, *, engine: str | None = None, most: int | None = None) -> pl.DataFrame:
    """Which keys lie in which tier, over time?

    A row at every time at which the number changes; it holds until the next row. Keys come from events of
    blocks: stored, written and published bring one, removed, expired and cleared take it (the noun
    `residency` has each stay). A key counts once for each engine that has a copy of it, however often it was
    stored and in however many object groups; what lay there before the first record is not seen. Keys are
    compared inside one key space only. A forecast brings nothing.

    A call trace says what was written and never what went (LMCache's storage trace): its sum could only
    grow, and would be no residency. Where a component and key space has no event but written, it is left out;
    its stays are in the noun with ends_seen = false.

    LMCache's /status page counts objects of its L1, one row a page: it is residency, never a hit. An object
    is one key of one rank and object group: the count may exceed the keys of events. The page has no time.

    Args:
        run: the run
        engine: only copies of this one; without it the sum over all engines (and pages, which name none)
        most: at most so many rows a tier and component: of every stretch the highest and the last

    Columns:
        tier: physical medium; unknown when nobody said; L1 of a page is host, which it is unless configured
            otherwise
        component: the product's own name of the part
        time_ns: since when, unix ns; null for a page without a time
        keys: keys there
        bytes: their bytes; null while those of one of them are not known
        tokens: tokens they stand for; null while those of one of them are not known
        evidence: the weakest of the records behind the row's tier and component

    Raises:
        UsageError: `most` is below 2.
    """
    if most is not None and most < 2:
        raise UsageError(f"residency: most must be at least 2, not {most}.")
    connection = spilling(run)
    rows = pl.DataFrame(connection.sql(_CHANGES, params={"engine": engine}).to_arrow_table())
    names = {"objects": f"{_L1}total_object_count", "used": f"{_L1}memory_used_bytes", "engine": engine}
    pages = pl.DataFrame(connection.sql(_PAGES, params=names).to_arrow_table())
    frames = [frame.select(list(COLUMNS)).cast(COLUMNS) for frame in (rows, pages)]
    order = ["tier", "component", "time_ns", "keys", "bytes"]
    found = pl.concat(frames).sort(order, nulls_last=True)
    return found if most is None else _thinned(found, most)


def _thinned(rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """Of each tier and component at most so many rows: of every stretch the highest and the last."""
    place = ["tier", "component"]
    size, at = pl.len().over(place), pl.int_range(pl.len()).over(place)
    numbered = rows.with_row_index("row").with_columns(stretch=(at * (most // 2)) // size, size=size)
    many = numbered.filter(pl.col("size") > most)
    by_stretch = [*place, "stretch"]
    highest = many.sort("keys", "row", descending=[True, False], nulls_last=True).group_by(by_stretch).first()
    last = many.sort("row").group_by(by_stretch).last()
    kept = [
        numbered.filter(pl.col("size") <= most),
        *(part.select(numbered.columns) for part in (highest, last)),
    ]
    return pl.concat(kept).unique("row").sort("row").select(list(COLUMNS))
