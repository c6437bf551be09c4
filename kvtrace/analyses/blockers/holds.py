"""Stretches in which a request lacks GPU blocks, and the holds that keep some.

queue(capacity) of r3    [===========)   blocks 11, free 1: L = 10
hold of r0            [================   h = 8
hold of r1                  [==========   h = 8      H = 8 (nobody) | 16 (r0 1/2, r1 1/2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.analyses.blockers.sharing import Pairs, Pieces, Timeline, begins, overlay, uncovered
from kvtrace.analyses.blockers.waits import stretches
from kvtrace.analyses.exposure import layers
from kvtrace.analyses.exposure.sweep import width

if TYPE_CHECKING:
    import duckdb

    from kvtrace.analyses.exposure.layers import Ints
    from kvtrace.analyses.exposure.sweep import Requests, Segments

_NEVER = 2**63 - 1
_ENDED = f"""
WITH record AS (
    SELECT process, max(greatest(start_ns, end_ns, submit_ns, usable_ns, first_token_ns)) AS last_ns
    FROM span WHERE process IS NOT NULL GROUP BY process
    UNION ALL SELECT process, last_ns FROM process WHERE process IS NOT NULL
), process_end AS (
    SELECT process, max(last_ns) AS last_ns FROM record GROUP BY process
), ended AS (
    SELECT s.*, coalesce(s.end_ns, p.last_ns, {_NEVER}) AS stop_ns
    FROM span s LEFT JOIN process_end p USING (process)
    WHERE s.op = $op AND (s.end_ns IS NULL OR s.end_ns >= s.start_ns)
)
"""  # noqa: S608 - a constant of this module
_HOLDS = """
SELECT engine, request_id, reason, start_ns AS s, stop_ns AS e, blocks
FROM ended WHERE engine IS NOT NULL AND stop_ns > start_ns ORDER BY engine, start_ns, span_id
"""
_LACKS = """
, own AS (
    SELECT request_id, members, start_ns AS s, stop_ns AS e, blocks, free_blocks, span_id
    FROM ended WHERE reason = 'capacity'
), shared AS (
    SELECT * EXCLUDE (request_id, members), unnest(list_distinct(
        list_append(list_transform(members, lambda m: m.request_id), request_id))) AS request_id
    FROM own WHERE len(members) > 0
)
SELECT request_id, s, e, blocks - free_blocks AS need, span_id
FROM own WHERE len(members) IS NULL OR len(members) = 0
UNION ALL BY NAME SELECT request_id, s, e, blocks - free_blocks AS need, span_id FROM shared
"""


def hold_rows(connection: duckdb.DuckDBPyConnection) -> pl.DataFrame:
    """Every hold of an engine: engine, request_id, reason, s, e, blocks."""
    found = connection.sql(_ENDED + _HOLDS, params={"op": "hold"}).to_arrow_table()
    return pl.DataFrame(found)


@dataclass(frozen=True, slots=True)
class Lacks:
    """What each request lacked and when, disjoint and sorted by its number: the earliest row counts."""

    number: Ints
    s: Ints
    e: Ints
    need: Ints
    known: Ints


def lacks(connection: duckdb.DuckDBPyConnection, numbers: pl.DataFrame) -> Lacks:
    """Every queue row of reason capacity of the requests in `numbers`."""
    rows = pl.DataFrame(connection.sql(_ENDED + _LACKS, params={"op": "queue"}).to_arrow_table())
    mine = rows.join(numbers, on="request_id").drop("request_id")
    mine = mine.sort("number", "s", "span_id", nulls_last=True)
    number, s, e = (mine[name].cast(pl.Int64).to_numpy() for name in ("number", "s", "e"))
    s = uncovered(begins(number), s, e)
    cut = mine.filter(e > s)
    number, s, e = number[e > s], s[e > s], e[e > s]
    return Lacks(
        number, s, e,
        cut["need"].cast(pl.Int64).fill_null(0).to_numpy(), cut["need"].is_not_null().to_numpy(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Holds:
    """All holds of the run: their times on engines, how many blocks each keeps, for whom and why."""

    timeline: Timeline
    s: Ints
    e: Ints
    blocks: Ints
    unknown: Ints
    holder: Ints
    reason: Ints


def holds(rows: pl.DataFrame, lane: Ints, codes: pl.DataFrame, reasons: pl.DataFrame) -> Holds:
    """From the rows of the holds; `codes` (id, code) names ids, `reasons` (word, code) reasons."""
    s, e = (rows[name].cast(pl.Int64).to_numpy() for name in ("s", "e"))
    blocks = rows["blocks"].cast(pl.Int64)
    holder = rows.join(codes, left_on="request_id", right_on="id", how="left", maintain_order="left")["code"]
    why = rows.join(reasons, left_on="reason", right_on="word", how="left", maintain_order="left")["code"]
    return Holds(
        Timeline(lane, s, e), s, e,
        np.maximum(blocks.fill_null(0).to_numpy(), 0), blocks.is_null().cast(pl.Int64).to_numpy(),
        holder.fill_null(-1).to_numpy(), why.fill_null(-1).to_numpy(),
    )  # fmt: skip


def lacking(cuts: Segments, winner: Ints, lane: Ints, block: Requests, lacked: Lacks) -> Pieces:
    """Stretches of one window in which requests queue for capacity, cut where what they lack changes."""
    active = ((cuts.layers >> layers.QUEUE_CAPACITY) & 1) == 1
    runs = stretches(cuts, active, winner == layers.CAPACITY, layers.CAPACITY, lane)
    low, high = np.searchsorted(lacked.number, [block.first, block.first + block.start.size])
    mine = slice(int(low), int(high))
    number = lacked.number[mine] - block.first
    s = np.clip(lacked.s[mine], block.start[number], block.last[number])
    e = np.clip(lacked.e[mine], block.start[number], block.last[number])
    stretch = width(block)
    base, own = number * stretch - block.start[number], runs.request * stretch - block.start[runs.request]
    one, two, begin, end = overlay((runs.s + own, runs.e + own), (s + base, e + base))
    pieces = runs.where(one)
    return Pieces(
        pieces.request, pieces.kind, begin - own[one], end - own[one], pieces.won,
        lacked.need[mine][two], lacked.known[mine][two].astype(bool), pieces.inside, pieces.lane,
    )  # fmt: skip


def held(pieces: Pieces, kept: Holds) -> Pairs:
    """Every hold of the engine that overlaps a piece."""
    piece, hold = kept.timeline.overlaps(pieces.lane, pieces.s, pieces.e)
    return Pairs(
        piece,
        np.maximum(kept.s[hold], pieces.s[piece]),
        np.minimum(kept.e[hold], pieces.e[piece]),
        kept.holder[hold],
        kept.reason[hold],
        kept.blocks[hold],
        kept.unknown[hold],
    )
