"""What was stored, and which of it nobody read before it went.

    written |--------- read ---------| removed       written |------------| removed: never read

An object is one key of one place, rank, object group and tenant; each time that it is brought anew is a stay
of its own. Brought twice it is there once. A place is one process's, but for those that they share, where
one reads what another brought: memory of peers, object stores, the pools that clients tell of. What a lower
tier lands in an upper one was not stored by anybody: it is a part of a load. A touch is no read: LMCache's L1
says `accessed` of all the keys of a request when it ends, of those that it wrote too; what is read there is
in the calls (reason asked).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    import duckdb

_NAMED = """
CREATE OR REPLACE TEMP VIEW named_event AS
WITH telling AS (
    SELECT DISTINCT process, component FROM block
    WHERE event IN ('stored', 'written') AND reason IS DISTINCT FROM 'asked' AND process IS NOT NULL
), recording AS (
    SELECT DISTINCT process FROM block WHERE reason = 'asked' AND process IS NOT NULL
), pool AS (
    SELECT DISTINCT component FROM span
    WHERE observer = 'client' AND op IN ('load', 'store') AND component IS NOT NULL
), named AS (
    SELECT *, coalesce(tier, 'unknown') AS named_tier, coalesce(reason = 'asked', false) AS is_asked,
        coalesce(component IN (FROM pool), false) AS is_pool,
        coalesce(component = 'lmcache.l1', false) AS touches,
        coalesce(process IN (FROM recording), false) AS is_recorded
    FROM block
    WHERE key IS NOT NULL AND time_ns IS NOT NULL AND evidence IS DISTINCT FROM 'predicted'
        AND event IN ('stored', 'written', 'removed', 'expired', 'accessed')
        AND tier IS DISTINCT FROM 'gpu'
)
SELECT
    is_pool OR named_tier IN ('peer', 'object') AS is_shared,
    CASE WHEN NOT is_shared THEN process END AS own_process,
    CASE WHEN NOT is_shared THEN engine END AS own_engine,
    CASE WHEN NOT is_pool THEN named_tier END AS own_tier,
    hash(own_process, own_engine, own_tier, component, locality, key_space) AS spot,
    hash(key, rank, object_group, identity_id) AS object,
    named_tier AS tier, component, locality, key_space, time_ns, seq, bytes, is_recorded,
    CASE event WHEN 'accessed' THEN 2 WHEN 'stored' THEN 1 WHEN 'written' THEN 1 ELSE 0 END AS kind,
    coalesce(reason = 'landed', false) AS landed
FROM named n
WHERE CASE WHEN event = 'accessed' THEN is_asked OR NOT touches
    WHEN event IN ('stored', 'written') AND is_asked THEN NOT EXISTS (
        SELECT 1 FROM telling t WHERE t.process = n.process AND t.component IS NOT DISTINCT FROM n.component)
    ELSE true END
"""
"""Events that bring an object (1), take it (0) or read it (2); where a server says what it wrote, the call is
no second word. Place and object are numbers: at the millions that a run may have two meet once in a million
runs."""

_PLACED = """
CREATE OR REPLACE TEMP TABLE placed AS
SELECT spot, object, time_ns, seq, kind, bytes, landed FROM named_event
"""
_SPOTS = """
CREATE OR REPLACE TEMP TABLE spot AS
SELECT spot, any_value(own_process) AS process, any_value(own_engine) AS engine,
    coalesce(min(tier) FILTER (kind = 1), min(tier)) AS tier, bool_or(is_shared) AS is_shared,
    any_value(component) AS component, any_value(locality) AS locality, any_value(key_space) AS key_space,
    bool_or(kind = 2) OR bool_and(is_recorded) AS reads_told
FROM named_event GROUP BY spot
"""
"""A pool's place is where its objects were brought: its clients name that of the replica which they read."""

_CLEARINGS = """
CREATE OR REPLACE TEMP TABLE clearing AS
SELECT s.spot, b.time_ns, row_number() OVER (PARTITION BY s.spot ORDER BY b.time_ns) AS clears
FROM spot s JOIN block b ON b.event = 'cleared' AND b.time_ns IS NOT NULL
    AND b.evidence IS DISTINCT FROM 'predicted'
    AND CASE WHEN s.is_shared
        THEN b.tier IS NOT NULL OR b.component IS NOT NULL OR (b.process IS NULL AND b.engine IS NULL)
        ELSE (b.process IS NULL OR b.process IS NOT DISTINCT FROM s.process)
            AND (b.engine IS NULL OR b.engine IS NOT DISTINCT FROM s.engine) END
    AND (b.tier IS NULL OR b.tier = s.tier)
    AND (b.component IS NULL OR b.component IS NOT DISTINCT FROM s.component)
    AND (b.key_space IS NULL OR b.key_space IS NOT DISTINCT FROM s.key_space)
    AND (b.locality IS NULL OR b.locality IS NOT DISTINCT FROM s.locality)
"""
"""What processes share nobody clears who names no more than itself."""

_EVENTS = """
SELECT p.spot, p.object, p.time_ns, p.seq, p.kind, p.bytes, p.landed, 0::BIGINT AS clears
FROM placed p WHERE p.object % $parts = $part
"""
_EVENTS_CLEARED = """
SELECT p.spot, p.object, p.time_ns, p.seq, p.kind, p.bytes, p.landed, coalesce(x.clears, 0) AS clears
FROM (FROM placed WHERE object % $parts = $part) p
ASOF LEFT JOIN clearing x ON p.spot = x.spot AND p.time_ns > x.time_ns
"""
PART_EVENTS = 4_000_000
"""So many events are sorted at a time."""
_SUMS = (
    "objects", "unsized", "bytes", "unread", "unread_unsized", "unread_bytes", "gone_unsized", "gone_bytes",
)  # fmt: skip


def stored(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """What was stored and never read, a row a tier and component; see `waste` for the columns."""
    for statement in (_NAMED, _PLACED, _SPOTS, _CLEARINGS):
        connection.execute(statement)
    ((size, cleared),) = connection.sql(
        "SELECT (SELECT count(*) FROM placed), (SELECT count(*) FROM clearing)"
    ).fetchall()
    ends = pl.DataFrame(
        connection.sql("SELECT spot, max(clears) AS last FROM clearing GROUP BY spot").to_arrow_table()
    )
    query, parts = _EVENTS_CLEARED if cleared else _EVENTS, size // PART_EVENTS + 1
    summed = pl.concat(
        _summed(_stays(pl.DataFrame(connection.sql(query, params=chosen).to_arrow_table())), ends)
        for chosen in ({"parts": parts, "part": part} for part in range(parts))
    )
    spots = pl.DataFrame(
        connection.sql("SELECT spot, tier, component, reads_told FROM spot").to_arrow_table()
    )
    whole = summed.join(spots, on="spot").group_by("tier", "component").agg(
        pl.col(_SUMS).sum(), told=pl.col("reads_told").all()
    )  # fmt: skip
    told = pl.col("told")
    return whole.select(
        "tier", "component", stored_objects="objects",
        stored_bytes=pl.when(pl.col("unsized") == 0).then("bytes"),
        never_read_objects=pl.when(told).then("unread"),
        never_read_bytes=pl.when(told & (pl.col("unread_unsized") == 0)).then("unread_bytes"),
        gone_unread_bytes=pl.when(told & (pl.col("gone_unsized") == 0)).then("gone_bytes"),
    ).cast(SCHEMA, strict=False)  # fmt: skip


SCHEMA = pl.Schema(
    {
        "tier": pl.String, "component": pl.String, "stored_objects": pl.Int64, "stored_bytes": pl.Int64,
        "never_read_objects": pl.Int64, "never_read_bytes": pl.Int64, "gone_unread_bytes": pl.Int64,
    }
)  # fmt: skip


def _stays(events: pl.DataFrame) -> pl.DataFrame:
    """A row a stay that a store began or joined: its place, bytes, whether it was read and taken, clears."""
    order = ["spot", "object", "time_ns", "seq", "kind"]
    rows = events.sort(order, nulls_last=False).with_row_index("at")
    begins = pl.any_horizontal(
        pl.col("spot", "object", "clears") != pl.col("spot", "object", "clears").shift(),
        pl.col("kind").shift() == 0,
    )
    brings, at = pl.col("kind") == 1, pl.col("at").cast(pl.Int64)
    marked = rows.select(
        "spot", "clears", stay=begins.fill_null(value=True).cum_sum(), taken=pl.col("kind") == 0,
        stored=brings & ~pl.col("landed"), bytes=pl.when(brings).then("bytes"),
        brought_at=pl.when(brings).then(at), read_at=pl.when(pl.col("kind") == 2).then(at),
    )  # fmt: skip
    stays = marked.group_by("stay").agg(
        pl.col("spot", "clears").first(), pl.col("taken", "stored").any(), pl.col("bytes").max(),
        was_read=(pl.col("read_at").max() > pl.col("brought_at").min()).fill_null(value=False),
    )  # fmt: skip
    return stays.filter("stored")


def _summed(stays: pl.DataFrame, ends: pl.DataFrame) -> pl.DataFrame:
    """The sums of each place, as wide as they come."""
    unread = ~pl.col("was_read")
    gone = unread & (pl.col("taken") | (pl.col("clears") < pl.col("last").fill_null(0)))
    size, unsized = pl.col("bytes").cast(pl.Int128), pl.col("bytes").is_null()
    known = stays.join(ends, on="spot", how="left")
    return known.group_by("spot").agg(
        objects=pl.len().cast(pl.Int64), unsized=unsized.sum().cast(pl.Int64), bytes=size.sum(),
        unread=unread.sum().cast(pl.Int64), unread_unsized=(unread & unsized).sum().cast(pl.Int64),
        unread_bytes=size.filter(unread).sum(), gone_unsized=(gone & unsized).sum().cast(pl.Int64),
        gone_bytes=size.filter(gone).sum(),
    )  # fmt: skip
