"""The question `critical_path`: the partition of exposure in time order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from kvtrace.analyses.exposure import layers
from kvtrace.analyses.exposure.cache import blocks, prepare
from kvtrace.analyses.exposure.layers import CLASSES, FIRST_HOP, LOAD
from kvtrace.analyses.exposure.sweep import NO_SPAN, pieces, segments, width
from kvtrace.analyses.exposure.totals import Winners, winners
from kvtrace.analyses.exposure.users import alone, together
from kvtrace.errors import UsageError

if TYPE_CHECKING:
    from kvtrace.analyses.exposure.layers import Ids, Ints
    from kvtrace.analyses.exposure.sweep import Pieces, Requests
    from kvtrace.analyses.exposure.totals import Window
    from kvtrace.analyses.exposure.users import Together
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
    run: Run,
    *,
    window: Literal["ttft", "decode", "e2e"] = "e2e",
    requests: tuple[str, ...] = (),
    by: Literal["request", "user"] = "request",
) -> pl.DataFrame:
    """What was each request waiting for, instant by instant, in time order?

    The same partition as `exposure`: segments of a request and window do not overlap and sum to the window.
    The span of a segment is the earliest started of the winning ones; a change of span starts a new segment.

    By user, requests with the same user_request_id - prefill and decode of one call - are one: from the
    first arrival to the last end, each instant in the strongest class that any of them is in, on its own
    engine, between its own arrival and end. The first token is that of the request which ends last: a
    prefill's own is read by nobody. Where none is there, the time is other: on the way between the two.
    A handoff is a load like any other. Compute is known in a window where it is of all its requests.

    Options:
        window: which part of the time
        requests: only these; by user: ids of users
        by: request, or user to join the requests of one user_request_id

    Columns:
        request_id: the request; by user the user_request_id, the request's own id where it has none
        window: ttft, decode or e2e
        seq: 0 for the first segment of the request
        start_ns: start, unix ns
        end_ns: end, unix ns
        class: the winning class
        hop: tier_from->tier_to of a load; null for every other class
        span_id: the earliest started of the winning spans; null for other, and for a span without an id
    """
    if by not in ("request", "user"):
        raise UsageError(f"critical_path: by must be request or user, not {by}.")
    prepared = prepare(run, requests, by_user=by == "user")
    ids = prepared.user_table.select(request_id="user_id", number=pl.int_range(pl.len(), dtype=pl.Int64))
    frames = [pl.DataFrame(schema={**COLUMNS, "number": pl.Int64})]
    for part, found in blocks(prepared, owners=True):
        parts = pieces(found, part, owners=True)
        cuts = segments(parts, [], part)
        users, user = prepared.users_of(part)
        chosen = next(w for w in prepared.windows(users) if w.name == window)
        whole = together(cuts, user, users) if by == "user" else alone(cuts)
        frames.append(_paths(whole.within(chosen), parts, part, users.first, chosen))
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


def _spans(pieces: list[Pieces], whole: Together, won: Winners, block: Requests) -> tuple[Ids, layers.Bools]:
    """Span of every cell, if it has one: the earliest started of the winners (ties: the smaller id)."""
    parts, cell = whole.parts, whole.cell
    mine = Winners(whole.part_own, won.winner[cell], won.hop[cell])
    part_of_it = ((mine.own >> mine.winner) & 1) == 1  # the winner may be another request's
    key = parts.request * width(block) + (parts.s - block.start[parts.request])
    started = np.zeros(whole.cells.s.size, np.int64)
    span = np.full(started.size, NO_SPAN, np.uint64)
    found = np.zeros(started.size, bool)
    for piece in pieces:
        wins = _wins_with(piece.layer, parts.layers, mine) & (((parts.layers >> piece.layer) & 1) == 1)
        at = np.flatnonzero(wins & part_of_it)
        own = np.searchsorted(piece.s, key[at], side="right") - 1
        _earliest(cell[at], piece.started[own], piece.span[own], (started, span, found))
    return span, span != NO_SPAN


def _earliest(cell: Ints, began: Ints, name: Ids, best: tuple[Ints, Ids, layers.Bools]) -> None:
    """Keep of every cell the earliest started; several requests may have one each."""
    started, span, found = best
    if (cell[1:] <= cell[:-1]).any():
        order = np.lexsort((name, began, cell))
        order = order[np.append(True, cell[order][1:] != cell[order][:-1])]
        cell, began, name = cell[order], began[order], name[order]
    earlier = (began < started[cell]) | ((began == started[cell]) & (name < span[cell]))
    take = ~found[cell] | earlier
    cell = cell[take]
    started[cell], span[cell], found[cell] = began[take], name[take], True


def _paths(
    whole: Together, pieces: list[Pieces], block: Requests, first: int, window: Window
) -> pl.DataFrame:
    """Segments of one window of a block, those with the same winner joined; `first` is its first user."""
    cuts = whole.cells
    won = winners(cuts.request, cuts.layers, whole.own, cuts.e - cuts.s, window)
    span, known = _spans(pieces, whole, won, block)
    change = np.ones(cuts.s.size, bool)
    sides = (cuts.request, won.winner, won.hop, span)
    change[1:] = np.any([side[1:] != side[:-1] for side in sides], axis=0)
    begin = np.flatnonzero(change)
    end = np.append(begin[1:], cuts.s.size) - 1 if cuts.s.size else begin
    hop = [layers.hop_name(int(number)) if number >= 0 else None for number in won.hop[begin]]
    frame = pl.DataFrame(
        {
            "number": cuts.request[begin] + first,
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
