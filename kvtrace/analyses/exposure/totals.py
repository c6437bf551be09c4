"""Segments -> the rows of the question: per request, window, class and hop, which time was exposed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from kvtrace.analyses.exposure import layers
from kvtrace.analyses.exposure.layers import CLASSES, FIRST_HOP, HIDDEN_COLUMNS, HIDING, HOPS, LOAD, Bools, Ints
from kvtrace.analyses.exposure.sweep import Requests, Segments
from kvtrace.analyses.exposure.work import Work

ROWS = {
    "number": pl.Int64,
    "window": pl.String,
    "class": pl.String,
    "hop": pl.String,
    "exposed_ns": pl.Int64,
    "total_ns": pl.Int64,
    **dict.fromkeys(HIDDEN_COLUMNS, pl.Int64),
    "work_ns": pl.Int64,
    "open_ns": pl.Int64,
    "bound": pl.String,
    "agreement": pl.Int64,
}
"""Columns of what comes out, with the request's number in place of its id."""


@dataclass(frozen=True, slots=True)
class Window:
    """One window of every request of a block: [begin, end) in unix ns, and whether its bound is exact."""

    name: str
    begin: Ints
    end: Ints
    exact: Bools


@dataclass(frozen=True, slots=True)
class Decided:
    """The segments of one window, each with its own classes, its winning class and its winning hop."""

    part: Segments
    own: Ints
    winner: Ints
    hop: Ints

    @property
    def length(self) -> Ints:
        """Length of every segment, ns."""
        return self.part.e - self.part.s


def bottlenecks(part: Segments, requests: int) -> Ints:
    """Which hop each copying segment belongs to: of those copying, the one with the largest union in the
    window; -1 where none copies."""
    winner = np.full(part.layers.size, -1, np.int64)
    present = sorted(hops_in(part.layers), key=layers.hop_order)
    if not present:
        return winner
    length = part.e - part.s
    union = np.zeros((len(present), requests), np.int64)
    for row, hop in enumerate(present):
        np.add.at(union[row], part.request, length * ((part.layers >> (FIRST_HOP + hop)) & 1))
    ranked = np.argsort(-union, axis=0, kind="stable")
    numbers = np.asarray(present)
    for place in range(len(present)):
        hop = numbers[ranked[place][part.request]]
        takes = (winner < 0) & (((part.layers >> (FIRST_HOP + hop)) & 1) == 1)
        winner[takes] = hop[takes]
    return winner


def hops_in(active: Ints) -> list[int]:
    """Numbers of the hops that copy at any instant."""
    seen = int(np.bitwise_or.reduce(active, initial=0)) >> FIRST_HOP
    return [hop for hop in range(HOPS) if (seen >> hop) & 1]


def decide(segments: Segments, window: Window) -> Decided:
    """Cut the segments to a window (its ends are edges of segments) and find every winner."""
    inside = (segments.s >= window.begin[segments.request]) & (segments.e <= window.end[segments.request])
    part = segments.where(inside)
    own = layers.classes_of(part.layers, part.layers)
    own &= np.where(window.exact[part.request], np.int64(-1), ~np.int64(1 << layers.COMPUTE))
    winner = layers.first_bit(own)
    hop = np.where(winner == LOAD, bottlenecks(part, window.begin.size), -1)
    return Decided(part, own, winner, hop)


def window_rows(segments: Segments, work: Work, block: Requests, window: Window) -> pl.DataFrame:
    """Rows of one window of a block of requests: wherever a class has a total or is exposed."""
    decided = decide(segments, window)
    part, length = decided.part, decided.length
    agreement = _agreement(decided, window)
    opened = layers.classes_of(part.open_layers, part.layers) & decided.own
    frames = [_unseen_compute(block, window)]
    for number, name in enumerate(CLASSES):
        for hop in hops_in(part.layers) if number == LOAD else [-1]:
            if number == layers.OTHER:
                active, still = decided.winner == number, np.zeros(length.size, bool)
            elif hop >= 0:
                active = ((part.layers >> (FIRST_HOP + hop)) & 1) == 1
                still = ((part.open_layers >> (FIRST_HOP + hop)) & 1) == 1
            else:
                active, still = ((decided.own >> number) & 1) == 1, ((opened >> number) & 1) == 1
            if not active.any():
                continue
            wins = (decided.winner == number) & (decided.hop == hop) if hop >= 0 else decided.winner == number
            group = np.where(wins, 0, np.asarray(HIDING)[decided.winner])[active]
            sums = np.zeros((6, block.start.size), np.int64)
            np.add.at(sums, (group, part.request[active]), length[active])
            open_ns = np.zeros(block.start.size, np.int64)
            np.add.at(open_ns, part.request[still], length[still])
            worked = work.of(number, hop, window.begin, window.end)
            frames.append(_frame(block, window, (name, hop), (sums, worked, open_ns), agreement))
    return pl.concat(frames)


def _agreement(decided: Decided, window: Window) -> Ints:
    """Interval exposure - measured stall, ns, per request."""
    sums = np.zeros(window.begin.size, np.int64)
    exposed = np.isin(decided.winner, layers.TRANSFER_CLASSES).astype(np.int64)
    stalled = layers.stalled(decided.part.layers).astype(np.int64)
    np.add.at(sums, decided.part.request, decided.length * (exposed - stalled))
    return sums


def _frame(
    block: Requests, window: Window, named: tuple[str, int], sums: tuple[Ints, Ints | None, Ints], agreement: Ints
) -> pl.DataFrame:
    """Rows of one class (and hop) of one window."""
    parts, worked, open_ns = sums
    total = parts.sum(axis=0)
    at = np.flatnonzero(total > 0)
    exact = window.exact[at]
    name, hop = named
    frame = pl.DataFrame({
        "number": at + block.first,
        "exposed_ns": parts[0][at],
        "total_ns": total[at],
        **{column: parts[row + 1][at] for row, column in enumerate(HIDDEN_COLUMNS)},
        "open_ns": open_ns[at],
        "agreement": agreement[at],
        "exact": exact,
    })
    known = pl.col("exact")
    return frame.select(
        "number",
        pl.lit(window.name).alias("window"),
        pl.lit(name).alias("class"),
        pl.lit(layers.hop_name(hop) if hop >= 0 else None, dtype=pl.String).alias("hop"),
        "exposed_ns",
        "total_ns",
        pl.when(known).then(pl.col(HIDDEN_COLUMNS[0])),
        *HIDDEN_COLUMNS[1:],
        pl.Series("work_ns", worked[at] if worked is not None else [None] * at.size, dtype=pl.Int64),
        "open_ns",
        pl.when(known).then(pl.lit("exact")).otherwise(pl.lit("upper")).alias("bound"),
        pl.when(known).then(pl.col("agreement")),
    )


def _unseen_compute(block: Requests, window: Window) -> pl.DataFrame:
    """The compute row of windows in which nobody recorded steps: there, and null."""
    at = np.flatnonzero(~window.exact & (window.end > window.begin))
    nulls = [name for name, kind in ROWS.items() if kind == pl.Int64 and name != "number"]
    return pl.DataFrame({"number": at + block.first}).select(
        "number",
        **{name: pl.lit(None, dtype=pl.Int64) for name in nulls},
        **{"window": pl.lit(window.name), "class": pl.lit("compute"), "hop": pl.lit(None, dtype=pl.String)},
        bound=pl.lit("upper"),
    ).select(list(ROWS))
