"""The question `critical_path`: the partition of exposure in time order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from kvtrace.analyses.exposure import layers
from kvtrace.analyses.exposure.cache import blocks, prepare
from kvtrace.analyses.exposure.layers import CLASSES, FIRST_HOP, LOAD
from kvtrace.analyses.exposure.sweep import NO_SPAN, pieces, segments, width
from kvtrace.analyses.exposure.totals import winners

if TYPE_CHECKING:
    from kvtrace.analyses.exposure.layers import Ids, Ints
    from kvtrace.analyses.exposure.sweep import Intervals, Pieces, Requests, Segments
    from kvtrace.analyses.exposure.totals import Window, Winners
    from kvtrace.run import Run

COLUMNS = {
    "request_id": pl.String,
    "window": pl.String,
    "seq": pl.Int64,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "class": pl.String,
    "hop": pl.String,
    "span_id": pl.UInt64,
}
_OWNING = {
    layers.COMPUTE: (layers.SERVING,),
    layers.CAPACITY: (layers.QUEUE_CAPACITY,),
    layers.LOAD_WAIT_CLASS: (layers.LOAD_WAIT,),
    8: (layers.LOCK,),
    9: (layers.LOOKUP,),
    10: (layers.STORE,),
    layers.QUEUE: (layers.QUEUE_OTHER, layers.QUEUE_TRANSFER),
}
"""Class -> the layers whose intervals can win it (waits and hops: see _wins_with)."""


def critical_path(
    run: Run, *, window: Literal["ttft", "decode", "e2e"] = "e2e", requests: tuple[str, ...] = ()
) -> pl.DataFrame:
    """What was each request waiting for, instant by instant, in time order?

    The same partition as `exposure`: segments of a request and window do not overlap and sum to the window.
    The span of a segment is the earliest started of the winning ones; a change of span starts a new segment.

    Columns:
        request_id: the request
        window: ttft, decode or e2e
        seq: 0 for the first segment of the request
        start_ns: start, unix ns
        end_ns: end, unix ns
        class: the winning class
        hop: tier_from->tier_to of a load; null for every other class
        span_id: the earliest started of the winning spans; null for other, and for a span without an id
    """
    prepared = prepare(run, requests)
    ids = prepared.table.select(pl.col("number").cast(pl.Int64), "request_id")
    frames = [pl.DataFrame(schema={**COLUMNS, "number": pl.Int64})]
    for part, found in blocks(prepared, owners=True):
        chosen = next(w for w in prepared.windows(part) if w.name == window)
        frames.append(_paths(part, found, chosen))
    rows = pl.concat(frames, how="diagonal").drop("request_id")
    return rows.join(ids, on="number", maintain_order="left").select(list(COLUMNS))


def _wins_with(layer: int, active: Ints, won: Winners) -> layers.Bools:
    """Segments that an interval of this layer, where it is active, is a winner of."""
    winner = won.winner
    serving = (active & 1) == 1
    wins: layers.Bools
    if layer >= FIRST_HOP:
        wins = (winner == LOAD) & (won.hop == layer - FIRST_HOP)
    elif layers.NAMED <= layer < layers.OTHERS:
        known = layer < layers.OTHERS - 1  # the last reason is the unknown one, which is no class
        wins = (winner == layers.WAIT + layer - layers.NAMED) & known
    elif layers.OTHERS <= layer < layers.QUEUE_CAPACITY:
        nobody = layer >= layers.NOBODY
        reason = (layer - layers.OTHERS) % 5
        shared = (winner == layers.WAIT + reason) & serving & (reason < 4)
        wins = shared | ((winner == layers.INTERFERENCE) & ~(serving & nobody))
    else:
        wins = np.isin(winner, [number for number, own in _OWNING.items() if layer in own])
    return wins


def _spans(parts: list[Pieces], cuts: Segments, won: Winners, block: Requests) -> tuple[Ids, layers.Bools]:
    """Span of every segment, if it has one: the earliest started of the winners (ties: the smaller id)."""
    key = cuts.request * width(block) + (cuts.s - block.start[cuts.request])
    started = np.zeros(key.size, np.int64)
    span = np.full(key.size, NO_SPAN, np.uint64)
    found = np.zeros(key.size, bool)
    for piece in parts:
        wins = _wins_with(piece.layer, cuts.layers, won) & (((cuts.layers >> piece.layer) & 1) == 1)
        at = np.flatnonzero(wins)
        own = np.searchsorted(piece.s, key[at], side="right") - 1
        earlier = piece.started[own] < started[at]
        same = (piece.started[own] == started[at]) & (piece.span[own] < span[at])
        take = ~found[at] | earlier | same
        at, own = at[take], own[take]
        started[at], span[at], found[at] = piece.started[own], piece.span[own], True
    return span, span != NO_SPAN


def _paths(block: Requests, intervals: Intervals, window: Window) -> pl.DataFrame:
    """Segments of one window of a block, those with the same winner joined."""
    parts = pieces(intervals, block, owners=True)
    cuts = segments(parts, [], block)
    cuts = cuts.where((cuts.s >= window.begin[cuts.request]) & (cuts.e <= window.end[cuts.request]))
    won = winners(cuts.request, cuts.layers, cuts.e - cuts.s, window)
    span, known = _spans(parts, cuts, won, block)
    change = np.ones(cuts.s.size, bool)
    sides = (cuts.request, won.winner, won.hop, span)
    change[1:] = np.any([side[1:] != side[:-1] for side in sides], axis=0)
    begin = np.flatnonzero(change)
    end = np.append(begin[1:], cuts.s.size) - 1 if cuts.s.size else begin
    hop = [layers.hop_name(int(number)) if number >= 0 else None for number in won.hop[begin]]
    frame = pl.DataFrame(
        {
            "number": cuts.request[begin] + block.first,
            "start_ns": cuts.s[begin],
            "end_ns": cuts.e[end],
            "class": pl.Series(CLASSES).gather(won.winner[begin]),
            "hop": pl.Series(hop, dtype=pl.String),
            "span_id": pl.Series(span[begin]),
            "known": known[begin],
        }
    )
    return frame.with_columns(
        pl.lit(window.name).alias("window"),
        pl.when("known").then("span_id"),
        seq=pl.int_range(pl.len()).over("number"),
    ).drop("known")
