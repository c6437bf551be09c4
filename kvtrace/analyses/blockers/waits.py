"""Stretches of a request's time in which its engine waits for others, and whom those waits name.

step of r0       [=========)                    pieces of r0   wait_load [5,8), names r1
wait(load, r1)       [=====)   names r1                        interference [8,12), names r1
time             0   5  8  10  12
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.analyses.blockers.sharing import Pairs, Pieces, Timeline, counted
from kvtrace.analyses.exposure import layers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvtrace.analyses.exposure.layers import Bools, Ints
    from kvtrace.analyses.exposure.sweep import Segments

ANY = layers.ANY_OTHERS | layers.ANY_NOBODY
UNKNOWN = 4
"""The reason of a wait that gave none."""


@dataclass(frozen=True, slots=True)
class Named:
    """All waits of the run: their times on engines, their reasons, and whom they name.

    names[first[i] : first[i + 1]] are the codes of wait i, -1 for nobody; pairs = wait * requests + request
    of those that name a request of the run, sorted.
    """

    timeline: Timeline
    s: Ints
    e: Ints
    reason: Ints
    nobody: Bools
    first: Ints
    names: Ints
    pairs: Ints
    requests: int


def named_waits(waits: pl.DataFrame, lane: Ints, codes: pl.DataFrame, numbers: pl.DataFrame) -> Named:
    """From the rows of the waits; `codes` (id, code) names ids, `numbers` (request_id, number) requests."""
    size = max(numbers.height, 1)
    listed = waits.select(pl.int_range(pl.len()).alias("wait"), "names").explode(
        "names", empty_as_null=True, keep_nulls=True
    )
    listed = listed.unique().join(codes, left_on="names", right_on="id", how="left")
    listed = listed.with_columns(pl.col("code").fill_null(-1)).sort("wait", "code")
    real = listed.with_columns(some=(pl.col("code") >= 0).any().over("wait")).filter(
        (pl.col("code") >= 0) | ~pl.col("some")
    )
    pairs = listed.join(numbers, left_on="names", right_on="request_id").select(
        pl.col("wait").cast(pl.Int64) * size + pl.col("number").cast(pl.Int64)
    )
    s, e = (waits[name].cast(pl.Int64).to_numpy() for name in ("s", "e"))
    return Named(
        Timeline(lane, s, e), s, e,
        waits["reason"].cast(pl.Int64).to_numpy(), waits["names"].is_null().to_numpy(),
        np.searchsorted(real["wait"].to_numpy(), np.arange(waits.height + 1)),
        real["code"].to_numpy(), np.unique(pairs.to_series().to_numpy()), size,
    )  # fmt: skip


def waiting(cuts: Segments, own: Ints, winner: Ints, lane: Ints) -> Iterator[Pieces]:
    """Stretches of one window in which waits of others are active, class by class."""
    serving = (cuts.layers & 1).astype(bool)
    for number in range(4):
        kind = layers.WAIT + number
        active = serving & (((cuts.layers >> (layers.OTHERS + number)) & 1) == 1)
        itself = ((cuts.layers >> (layers.NAMED + number)) & 1) == 1
        yield stretches(cuts, active, (winner == kind) & ~itself, kind, lane)
    kind = layers.INTERFERENCE
    active = ((own >> kind) & 1) == 1
    # in a step of its own a wait of others is a wait_*, unless nobody knows what it is for
    unclear = serving & (((cuts.layers >> (layers.OTHERS + UNKNOWN)) & 1) == 1)
    yield stretches(cuts, active & ~serving, winner == kind, kind, lane)
    yield stretches(cuts, active & unclear, winner == kind, kind, lane, inside=True)


def stretches(
    cuts: Segments, active: Bools, won: Bools, kind: int, lane: Ints, *, inside: bool = False
) -> Pieces:
    """Active segments, those joined that follow each other and are both won or both not."""
    at = np.flatnonzero(active)
    request, s, e, wins = cuts.request[at], cuts.s[at], cuts.e[at], won[at]
    begins = np.ones(at.size, bool)
    begins[1:] = (request[1:] != request[:-1]) | (s[1:] != e[:-1]) | (wins[1:] != wins[:-1])
    first = np.flatnonzero(begins)
    last = np.append(first[1:], at.size) - 1 if at.size else first
    size = first.size
    return Pieces(
        request[first], np.full(size, kind), s[first], e[last], wins[first], np.ones(size, np.int64),
        np.ones(size, bool), np.full(size, inside), lane[request[first]],
    )  # fmt: skip


def blamed(pieces: Pieces, waits: Named, first_request: int) -> Pairs:
    """Whom the waits name that overlap the pieces, are of their class and do not name the request."""
    piece, wait = waits.timeline.overlaps(pieces.lane, pieces.s, pieces.e)
    pair = wait * waits.requests + pieces.request[piece] + first_request
    at = np.searchsorted(waits.pairs, pair)
    at[at == waits.pairs.size] = 0
    itself = waits.pairs[at] == pair if waits.pairs.size else np.zeros(pair.size, bool)
    kind = pieces.kind[piece]
    others = ~waits.nobody[wait]
    unclear = others & (waits.reason[wait] == UNKNOWN)
    interfering = (kind == layers.INTERFERENCE) & (unclear | ~pieces.inside[piece])
    shared = (waits.reason[wait] == kind - layers.WAIT) & others
    kept = ~itself & (interfering | shared)
    piece, wait = piece[kept], wait[kept]
    count = waits.first[wait + 1] - waits.first[wait]
    name = waits.names[np.repeat(waits.first[wait], count) + counted(count)]
    piece, wait = np.repeat(piece, count), np.repeat(wait, count)
    one = np.ones(piece.size, np.int64)
    s, e = np.maximum(waits.s[wait], pieces.s[piece]), np.minimum(waits.e[wait], pieces.e[piece])
    return Pairs(piece, s, e, name, waits.reason[wait], one, 0 * one)
