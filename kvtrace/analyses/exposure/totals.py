"""Segments -> the rows of the question: per request, window, class and hop, which time was exposed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from kvtrace.analyses.exposure import layers
from kvtrace.analyses.exposure.layers import (
    CLASSES,
    FIRST_HOP,
    HIDDEN_COLUMNS,
    HIDING,
    HOPS,
    LOAD,
    Bools,
    Ints,
    Small,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

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
_SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)
_SLOTS = 1 << 16
_MOST_CELLS = 1 << 22


@dataclass(frozen=True, slots=True)
class Window:
    """One window of every request of a block: [begin, end) in unix ns, and whether its bound is exact."""

    name: str
    begin: Ints
    end: Ints
    exact: Bools


@dataclass(frozen=True, slots=True)
class Amounts:
    """How long what was active: one row a (request, windows it lies in, active layers, open layers)."""

    request: Ints
    layers: Ints
    open_layers: Ints
    length: Ints
    windows: Ints

    def within(self, place: int) -> Amounts:
        """Those that lie in the window of this place."""
        mask = (self.windows >> place) & 1 == 1
        names = ("request", "layers", "open_layers", "length", "windows")
        return Amounts(*(getattr(self, name)[mask] for name in names))


def amounts(segments: Segments, windows: Sequence[Window]) -> Amounts:
    """Add up segments in which the same is going on; the ends of the windows are edges of segments.

    Everything that comes after depends on what is active, not on when: a request has hundreds of segments
    and a dozen of these.
    """
    inside = np.zeros(segments.s.size, np.int8)
    for place, window in enumerate(windows):
        within = (segments.s >= window.begin[segments.request]) & (segments.e <= window.end[segments.request])
        inside |= within.astype(np.int8) << place
    kinds, kind = _kinds(segments.layers, segments.open_layers, inside)
    cell = segments.request * kinds.height + kind
    if int(cell.max(initial=0)) < _MOST_CELLS:
        sums = np.zeros(int(cell.max(initial=-1)) + 1, np.int64)
        np.add.at(sums, cell, segments.e - segments.s)
        found = np.flatnonzero(sums)
        sums = sums[found]
    else:
        found, place = np.unique(cell, return_inverse=True)
        sums = np.zeros(found.size, np.int64)
        np.add.at(sums, place, segments.e - segments.s)
    active, opened, within = (kinds[name].to_numpy()[found % kinds.height] for name in kinds.columns)
    return Amounts(found // kinds.height, active, opened, sums, within.astype(np.int64))


def _kinds(active: Ints, opened: Ints, inside: Small) -> tuple[pl.DataFrame, Ints]:
    """The few different (active, opened, inside) there are, and which of them each segment has.

    A hash that keeps them apart is cheaper than any sorting; where it does not, they are joined.
    """
    mixed = active * 8 + inside + opened * _SPREAD  # wraps around
    slot = ((mixed * _SPREAD) >> 47) & (_SLOTS - 1)
    first = np.full(_SLOTS, -1)
    first[slot] = np.arange(slot.size)
    like = first[slot]
    if (active[like] == active).all() and (opened[like] == opened).all() and (inside[like] == inside).all():
        taken = np.flatnonzero(first >= 0)
        place = np.zeros(_SLOTS, np.int64)
        place[taken] = np.arange(taken.size)
        one = first[taken]
        return pl.DataFrame({"active": active[one], "opened": opened[one], "inside": inside[one]}), place[
            slot
        ]
    every = pl.DataFrame({"active": active, "opened": opened, "inside": inside})
    kinds = every.unique()
    kind = every.join(kinds.with_row_index("kind"), on=every.columns, maintain_order="left")["kind"]
    return kinds, kind.cast(pl.Int64).to_numpy()


@dataclass(frozen=True, slots=True)
class Winners:
    """Of every amount or segment its own classes, its winning class and its winning hop."""

    own: Ints
    winner: Ints
    hop: Ints


def bottlenecks(request: Ints, active: Ints, length: Ints, requests: int) -> Ints:
    """Which hop each copying part belongs to; -1 where none copies.

    Of those copying, it is the one with the largest union in the window.
    """
    winner = np.full(active.size, -1, np.int64)
    present = sorted(hops_in(active), key=layers.hop_order)
    if not present:
        return winner
    union = np.zeros((len(present), requests), np.int64)
    for row, hop in enumerate(present):
        np.add.at(union[row], request, length * ((active >> (FIRST_HOP + hop)) & 1))
    ranked = np.argsort(-union, axis=0, kind="stable")
    numbers = np.asarray(present)
    for place in range(len(present)):
        hop = numbers[ranked[place][request]]
        takes = (winner < 0) & (((active >> (FIRST_HOP + hop)) & 1) == 1)
        winner[takes] = hop[takes]
    return winner


def hops_in(active: Ints) -> list[int]:
    """Numbers of the hops that copy at any instant."""
    seen = int(np.bitwise_or.reduce(active, initial=0)) >> FIRST_HOP
    return [hop for hop in range(HOPS) if (seen >> hop) & 1]


def winners(request: Ints, active: Ints, own: Ints, length: Ints, window: Window) -> Winners:
    """Who wins, wherever something is active inside a window: `own` classes, of the `active` layers."""
    own = own & np.where(window.exact[request], np.int64(-1), ~np.int64(1 << layers.COMPUTE))
    winner = layers.first_bit(own)
    hop = np.where(winner == LOAD, bottlenecks(request, active, length, window.begin.size), -1)
    return Winners(own, winner, hop)


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows of one class (and hop) of one window."""

    at: Ints
    window: Ints
    number: Ints
    hop: Ints
    parts: Ints
    work_ns: Ints
    open_ns: Ints
    agreement: Ints
    exact: Bools


def block_rows(every: Amounts, work: Work, block: Requests, windows: Sequence[Window]) -> pl.DataFrame:
    """Rows of all windows of a block of requests: wherever a class has a total or is exposed."""
    found = [one for place in range(len(windows)) for one in _window(every, work, block, windows, place)]
    unseen = [_unseen_compute(block, window) for window in windows]
    return pl.concat([*unseen, *_frame(found, block, [window.name for window in windows])])


def _window(
    every: Amounts, work: Work, block: Requests, windows: Sequence[Window], place: int
) -> Iterator[_Found]:
    """One window, class by class."""
    window, size = windows[place], block.start.size
    part = every.within(place)
    own = layers.classes_of(part.layers, part.layers)
    decided = winners(part.request, part.layers, own, part.length, window)
    opened = np.zeros_like(decided.own)
    if part.open_layers.any():
        opened = layers.classes_of(part.open_layers, part.layers) & decided.own
    agreed = _agreement(part, decided, size)
    hiding = np.asarray(HIDING)[decided.winner]
    for number in range(len(CLASSES)):
        for hop in hops_in(part.layers) if number == LOAD else [-1]:
            if number == layers.OTHER:
                active, still = decided.winner == number, np.zeros(part.length.size, bool)
            elif hop >= 0:
                active = ((part.layers >> (FIRST_HOP + hop)) & 1) == 1
                still = ((part.open_layers >> (FIRST_HOP + hop)) & 1) == 1
            else:
                active, still = ((decided.own >> number) & 1) == 1, ((opened >> number) & 1) == 1
            rows = np.flatnonzero(active)
            if not rows.size:
                continue
            wins = (decided.winner[rows] == number) & ((decided.hop[rows] == hop) | (hop < 0))
            sums = np.zeros(6 * size, np.int64)
            np.add.at(sums, np.where(wins, 0, hiding[rows]) * size + part.request[rows], part.length[rows])
            open_ns = np.zeros(size, np.int64)
            np.add.at(open_ns, part.request[still], part.length[still])
            parts = sums.reshape(6, size)
            at = np.flatnonzero(parts.any(axis=0))
            worked = work.of(number, hop, window.begin, window.end)
            work_ns = np.full(at.size, -1) if worked is None else worked[at]
            yield _Found(
                at, np.full(at.size, place), np.full(at.size, number), np.full(at.size, hop), parts[:, at],
                work_ns, open_ns[at], agreed[at], window.exact[at],
            )  # fmt: skip


def _agreement(part: Amounts, decided: Winners, size: int) -> Ints:
    """Interval exposure - measured stall, ns, per request."""
    sums = np.zeros(size, np.int64)
    exposed = np.isin(decided.winner, layers.TRANSFER_CLASSES).astype(np.int64)
    stalled = layers.stalled(part.layers).astype(np.int64)
    np.add.at(sums, part.request, part.length * (exposed - stalled))
    return sums


def _frame(found: list[_Found], block: Requests, windows: list[str]) -> list[pl.DataFrame]:
    """All rows of a block as one frame; none when there is nothing."""
    if not found:
        return []

    def whole(name: str) -> npt.NDArray[np.int64]:
        return np.concatenate([getattr(one, name) for one in found])

    parts = np.concatenate([one.parts for one in found], axis=1)
    hops = pl.Series([*(layers.hop_name(hop) for hop in range(HOPS)), None])
    frame = pl.DataFrame(
        {
            "number": whole("at") + block.first,
            "window": pl.Series(windows).gather(whole("window")),
            "class": pl.Series(CLASSES).gather(whole("number")),
            "hop": hops.gather(whole("hop") % (HOPS + 1)),
            "exposed_ns": parts[0],
            "total_ns": parts.sum(axis=0),
            **{column: parts[row + 1] for row, column in enumerate(HIDDEN_COLUMNS)},
            "work_ns": whole("work_ns"),
            "open_ns": whole("open_ns"),
            "bound": pl.Series(["upper", "exact"]).gather(whole("exact").astype(np.int64)),
            "agreement": whole("agreement"),
        }
    )
    known = pl.col("bound") == "exact"
    nulled = pl.when(known).then(pl.col(HIDDEN_COLUMNS[0], "agreement"))
    return [frame.with_columns(nulled, pl.when(pl.col("work_ns") >= 0).then("work_ns"))]


def _unseen_compute(block: Requests, window: Window) -> pl.DataFrame:
    """The compute row of windows in which nobody recorded steps: there, and null."""
    at = np.flatnonzero(~window.exact & (window.end > window.begin))
    columns = {name: pl.Series([None], dtype=kind).new_from_index(0, at.size) for name, kind in ROWS.items()}
    columns["number"] = pl.Series(at + block.first, dtype=pl.Int64)
    for name, word in (("window", window.name), ("class", "compute"), ("bound", "upper")):
        columns[name] = pl.Series([word]).new_from_index(0, at.size)
    return pl.DataFrame(columns)
