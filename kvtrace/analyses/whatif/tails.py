"""Intervals of a block, shortened: what is left of them, and the tails that are gone.

    load     |=============)            head |======)  in its layer, tail        |======) in FREE
    lookup |-------------------)        encloses the load: the tail is in INSIDE, not in FREE
    others' tails                       in BEHIND: who waited meanwhile may have waited for them
    serving            |=====           STARTED: from the first step that serves the request

A tail is no activity: where nothing else is going on, the time is gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.analyses.bandwidth.sharing import busy
from kvtrace.analyses.exposure.layers import (
    FIRST_HOP,
    HOPS,
    LOOKUP,
    QUEUE_OTHER,
    QUEUE_TRANSFER,
    SERVING,
    Bools,
    Ints,
)
from kvtrace.analyses.exposure.sweep import Intervals, Requests, Waits, width
from kvtrace.schema.vocabulary import TIERS

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from kvtrace.analyses.exposure.cache import Prepared
    from kvtrace.analyses.whatif.changes import Shorter

FREE, INSIDE, BEHIND, STARTED = range(FIRST_HOP + HOPS, FIRST_HOP + HOPS + 4)
"""Layers beyond those of exposure, whose classes do not know them."""
NEVER = np.iinfo(np.int64).max

_FAILED = """
WITH wrong AS (
    SELECT request_id, members, start_ns, tier_from, tier_to FROM copy
    WHERE op = 'load' AND outcome IN ('failed', 'timeout', 'cancelled') AND end_ns IS NOT NULL
        AND evidence IS DISTINCT FROM 'predicted'
    UNION ALL
    SELECT request_id, members, start_ns, NULL, NULL FROM lookup
    WHERE outcome = 'timeout' AND end_ns IS NOT NULL AND evidence IS DISTINCT FROM 'predicted'
), whose AS (
    SELECT * EXCLUDE (request_id, members), unnest(list_distinct(
        list_append(list_transform(coalesce(members, []), lambda m: m.request_id), request_id))) AS request_id
    FROM wrong
)
SELECT a.number, greatest(w.start_ns, a.start_ns) AS s, CASE WHEN tier_from IS NULL THEN $lookup
    ELSE $first + $tiers * (list_position($names, tier_from) - 1) + list_position($names, tier_to) - 1
    END AS layer
FROM whose w JOIN arrived a USING (request_id) WHERE w.start_ns IS NOT NULL
"""
_QUEUED = """
SELECT a.number, greatest(q.start_ns, a.start_ns) AS s, $layer AS layer
FROM queue q JOIN arrived a USING (request_id) WHERE q.reason IN ('policy', 'preempted')
    AND q.evidence IS DISTINCT FROM 'predicted'
"""
_COPIES = """
SELECT engine, start_ns AS s, end_ns AS e FROM copy
WHERE op = 'load' AND end_ns > start_ns AND start_ns >= 0 AND engine IS NOT NULL
    AND tier_from = $from AND tier_to = $to AND evidence IS DISTINCT FROM 'predicted'
"""


@dataclass(frozen=True, slots=True)
class Marked:
    """Some intervals of a run by (request, start, layer), which the sweep alone cannot tell from others."""

    rows: pl.DataFrame

    @classmethod
    def failed(cls, connection: duckdb.DuckDBPyConnection) -> Marked:
        """Loads that failed and lookups that timed out, of a prepared run."""
        given = {"lookup": LOOKUP, "first": FIRST_HOP, "tiers": len(TIERS), "names": list(TIERS)}
        return cls._of(connection.sql(_FAILED, params=given).to_arrow_table())

    @classmethod
    def queued(cls, connection: duckdb.DuckDBPyConnection) -> Marked:
        """Queues whose reason is known to be another than a transfer or want of capacity."""
        return cls._of(connection.sql(_QUEUED, params={"layer": QUEUE_OTHER}).to_arrow_table())

    @classmethod
    def _of(cls, table: pa.Table) -> Marked:
        rows = pl.DataFrame(table).cast(pl.Int64).unique()
        return cls(rows.with_columns(is_marked=pl.lit(value=True)))

    def of(self, found: Intervals, block: Requests) -> Bools:
        """Which intervals of a block those are."""
        if not self.rows.height:
            return np.zeros(found.s.size, bool)
        mine = pl.DataFrame({"number": found.request + block.first, "s": found.s, "layer": found.layer})
        rows = mine.cast(pl.Int64).join(
            self.rows, on=["number", "s", "layer"], how="left", maintain_order="left"
        )
        marked: Bools = rows["is_marked"].fill_null(value=False).to_numpy()
        return marked


@dataclass(frozen=True, slots=True)
class Behind:
    """Tails of every engine's copies, joined, and which engine each request is of."""

    tails: Waits
    engine: Ints

    @classmethod
    def of(cls, prepared: Prepared, change: Shorter) -> Behind | None:
        """Of the copies of a path; None where the change is about no path."""
        if change.hop is None:
            return None
        given = {"from": TIERS[change.hop // len(TIERS)], "to": TIERS[change.hop % len(TIERS)]}
        rows = pl.DataFrame(prepared.connection.sql(_COPIES, params=given).to_arrow_table())
        names = prepared.table["engine"]
        codes = {name: code for code, name in enumerate(sorted(names.drop_nulls().unique()))}
        layer = np.full(1, FIRST_HOP + change.hop, np.int8)
        parts = []
        for (name,), mine in rows.group_by("engine"):
            s, e = mine["s"].to_numpy(), mine["e"].to_numpy()
            s = s + change.lasts(np.repeat(layer, s.size), e - s)
            if name in codes and (s < e).any():
                begin, stop = busy(s[s < e], e[s < e])
                parts.append((np.full(begin.size, codes[str(name)]), begin, stop))
        parts.sort(key=lambda part: int(part[0][0]))
        engine, s, e = (
            np.concatenate([np.empty(0, np.int64), *(part[at] for part in parts)]) for at in range(3)
        )
        none = np.zeros(engine.size, np.int64)
        tails = Waits(
            engine, s, e, none > 0, none, none == 0, none.astype(np.uint64), none[:0], max(names.len(), 1)
        )
        own = names.replace_strict(codes, default=-1, return_dtype=pl.Int64).fill_null(-1)
        return cls(tails, own.to_numpy())

    def within(self, block: Requests) -> Intervals:
        """What of them overlaps each request of a block."""
        mine = self.engine[block.first : block.first + block.start.size]
        found = self.tails.of(replace(block, engine=mine), owners=False)
        return replace(found, layer=np.full(found.layer.size, BEHIND, np.int8))


def undifferentiated(found: Intervals, known: Bools) -> Intervals:
    """A queue of unknown reason may hide a transfer, and holds nothing up: it counts as waiting for one."""
    unknown = (found.layer == QUEUE_OTHER) & ~known
    return replace(found, layer=np.where(unknown, QUEUE_TRANSFER, found.layer).astype(np.int8))


def shortened(found: Intervals, failed: Bools, change: Shorter, block: Requests) -> tuple[Intervals, Bools]:
    """The intervals with the tails cut off and beside them, and which requests have one.

    An interval whose end nobody saw stays: how long it lasted is not known.
    """
    at = np.flatnonzero(change.changes(found.layer, failed) & ~found.is_open)
    s, e = found.s[at], found.e[at]
    cut = s + change.lasts(found.layer[at], e - s)
    at, cut = at[cut < e], cut[cut < e]
    ends = found.e.copy()
    ends[at] = cut
    inside = _enclosed(found, at, block)
    has_tail = np.zeros(found.s.size, bool)
    has_tail[at] = True
    tail = replace(found.where(has_tail), s=cut, layer=np.where(inside, INSIDE, FREE).astype(np.int8))
    heads = replace(found, e=ends)
    touched = np.zeros(block.start.size, bool)
    touched[found.request[at]] = True
    return heads.where(heads.e > heads.s).joined(tail), touched


def _enclosed(found: Intervals, at: Ints, block: Requests) -> Bools:
    """Which of these loads lie inside a lookup of their request, from end to end."""
    asked = np.flatnonzero((found.layer == LOOKUP) & ~found.is_open)
    if not asked.size or not at.size:
        return np.zeros(at.size, bool)
    base = found.request * width(block) - block.start[found.request]
    begin, stop = busy((found.s + base)[asked], (found.e + base)[asked])
    s, e = (found.s + base)[at], (found.e + base)[at]
    place = np.searchsorted(begin, s, side="right") - 1
    covered: Bools = (place >= 0) & (e <= stop[np.maximum(place, 0)]) & (found.layer[at] != LOOKUP)
    return covered


def started(first: Ints, block: Requests) -> Intervals:
    """From the first step that serves each request to its end, as a layer."""
    request = np.flatnonzero(first < block.last)
    none = np.empty(0, np.int64)
    return Intervals(
        request, np.full(request.size, STARTED, np.int8), first[request], block.last[request],
        np.zeros(request.size, bool), none, none.astype(np.uint64),
    )  # fmt: skip


def first_steps(found: Intervals, runs_request: Ints, runs_s: Ints, block: Requests) -> Ints:
    """When a step first serves each request of a block; NEVER where none does."""
    first = np.full(block.start.size, NEVER)
    own = found.layer == SERVING
    np.minimum.at(first, found.request[own], found.s[own])
    np.minimum.at(first, runs_request, np.maximum(runs_s, block.start[runs_request]))
    return first
