"""Amounts -> the rows of the question: per request, window, class and hop, which time was exposed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa

from kvtrace.analyses.exposure import layers
from kvtrace.analyses.exposure.layers import (
    ANY_HOP,
    CLASSES,
    COMPUTE,
    FIRST_HOP,
    HIDDEN_COLUMNS,
    HIDING,
    HOPS,
    LOAD,
    OTHER,
    Bools,
    Ints,
    Small,
)
from kvtrace.analyses.exposure.totals import bottlenecks, hops_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvtrace.analyses.exposure.sweep import Requests
    from kvtrace.analyses.exposure.totals import Amounts, Window
    from kvtrace.analyses.exposure.work import Work

COLUMNS = {
    "request_id": pl.String,
    "window": pl.String,
    "class": pl.String,
    "hop": pl.String,
    "exposed_ns": pl.Int64,
    "total_ns": pl.Int64,
    **dict.fromkeys(HIDDEN_COLUMNS, pl.Int64),
    "work_ns": pl.Int64,
    "open_ns": pl.Int64,
    "bound": pl.String,
    "censored": pl.Boolean,
    "agreement": pl.Int64,
}
"""Columns of the question, and their types."""
_ARROW = {pl.String: pa.dictionary(pa.int32(), pa.string()), pl.Int64: pa.int64(), pl.Boolean: pa.bool_()}
SCHEMA = pa.schema([(name, _ARROW[kind]) for name, kind in COLUMNS.items()])
"""The same in Arrow: words as codes, written as they are and read as text."""
WORDS = tuple(name for name, kind in COLUMNS.items() if kind == pl.String)
_HOPS = tuple(layers.hop_name(hop) for hop in range(HOPS))
_BOUNDS = ("upper", "exact")


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows of one class (and hop) of one window; the six parts are exposed, then hidden by whom."""

    at: Ints
    window: Ints
    number: Ints
    hop: Ints
    parts: Ints
    work_ns: Ints
    open_ns: Ints
    agreement: Ints
    exact: Bools


@dataclass(frozen=True, slots=True)
class _Decided:
    """Of every kind its own classes and the winner, twice: where compute is known, and where it is not."""

    own: Ints
    opened: Ints
    winner: Ints
    agreeing: Ints
    kind: Ints
    hop: Small

    @classmethod
    def of(cls, part: Amounts, window: Window) -> _Decided:
        """What wins in a window; `kind` and `hop` (the bottleneck among those that copy) are by amount."""
        kinds, size = part.kinds, part.kinds.layers.size
        every = layers.classes_of(kinds.layers, kinds.layers)
        own = np.append(every, every & ~np.int64(1 << COMPUTE))
        opened = np.tile(layers.classes_of(kinds.open_layers, kinds.layers), 2) & own
        winner = layers.first_bit(own)
        exposed = np.isin(winner, layers.TRANSFER_CLASSES).astype(np.int64)
        stalled = np.tile(layers.stalled(kinds.layers).astype(np.int64), 2)
        kind = part.kind + np.where(window.exact, 0, size)[part.request]
        hop = np.full(kind.size, -1, np.int8)
        copying = np.flatnonzero(((kinds.layers & ANY_HOP) != 0)[part.kind])
        active = kinds.layers[part.kind[copying]]
        hop[copying] = bottlenecks(part.request[copying], active, part.length[copying], window.begin.size)
        return cls(own, opened, winner, exposed - stalled, kind, hop)


def block_rows(
    every: Amounts, work: Work, block: Requests, windows: Sequence[Window], requests: pl.DataFrame
) -> pa.Table:
    """Rows of all windows of a block of `requests`: wherever a class has a total or is exposed."""
    found = [_unseen_compute(window, place) for place, window in enumerate(windows)]
    for place in range(len(windows)):
        found += _window(every, work, block, windows, place)
    return _table(found, [window.name for window in windows], requests)


def _window(
    every: Amounts, work: Work, block: Requests, windows: Sequence[Window], place: int
) -> Iterator[_Found]:
    """One window, class by class."""
    window, size = windows[place], block.start.size
    part = every.within(place)
    decided = _Decided.of(part, window)
    agreed = np.zeros(size, np.int64)
    np.add.at(agreed, part.request, part.length * decided.agreeing[decided.kind])
    for number, hop, active, still in _classes(part, decided):
        rows = np.flatnonzero(active[decided.kind])
        if not rows.size:
            continue
        kind, request, length = decided.kind[rows], part.request[rows], part.length[rows]
        column = np.where(decided.winner == number, 0, np.asarray(HIDING)[decided.winner])[kind]
        if hop >= 0:
            column[(column == 0) & (decided.hop[rows] != hop)] = HIDING[LOAD]
        sums = np.zeros(6 * size, np.int64)
        np.add.at(sums, column * size + request, length)
        open_ns = np.zeros(size, np.int64)
        if still.any():
            stays = still[kind]
            np.add.at(open_ns, request[stays], length[stays])
        parts = sums.reshape(6, size)
        at = np.flatnonzero(parts.any(axis=0))
        worked = work.of(number, hop, window.begin, window.end)
        work_ns = np.full(at.size, -1) if worked is None else worked[at]
        yield _Found(
            at, np.full(at.size, place), np.full(at.size, number), np.full(at.size, hop), parts[:, at],
            work_ns, open_ns[at], agreed[at], window.exact[at],
        )  # fmt: skip


def _classes(part: Amounts, decided: _Decided) -> Iterator[tuple[int, int, Bools, Bools]]:
    """Class by class, loads hop by hop: in which kinds it is active, and in which it is open."""
    kinds = part.kinds
    for number in range(len(CLASSES)):
        if number == LOAD:
            for hop in hops_in(kinds.layers):
                copying, still = (np.tile(bits >> (FIRST_HOP + hop) & 1 == 1, 2)
                                  for bits in (kinds.layers, kinds.open_layers))  # fmt: skip
                yield number, hop, copying, still
        elif number == OTHER:
            yield number, -1, decided.winner == OTHER, np.zeros(decided.winner.size, bool)
        else:
            yield number, -1, decided.own >> number & 1 == 1, decided.opened >> number & 1 == 1


def _unseen_compute(window: Window, place: int) -> _Found:
    """The compute row of windows in which nobody recorded steps: there, and null."""
    at = np.flatnonzero(~window.exact & (window.end > window.begin))
    none = np.zeros(at.size, np.int64)
    parts = np.zeros((6, at.size), np.int64)
    return _Found(at, none + place, none + COMPUTE, none - 1, parts, none - 1, none, none, none > 0)


def _table(found: list[_Found], windows: list[str], requests: pl.DataFrame) -> pa.Table:
    """All rows of a block by request; what is not known is null."""

    def whole(name: str) -> Ints:
        return np.concatenate([getattr(one, name) for one in found])[order]

    order = np.concatenate([one.at for one in found])
    narrow = requests.height <= 1 << 16  # numpy sorts 16 bits by counting
    order = np.argsort(order.astype(np.uint16) if narrow else order, kind="stable")
    parts = np.concatenate([one.parts for one in found], axis=1)[:, order]
    at, window, number, hop = map(whole, ("at", "window", "number", "hop"))
    exact = whole("exact").astype(bool)
    unseen, work_ns = (number == COMPUTE) & ~exact, whole("work_ns")
    unfinished, tokenless = (requests[name].to_numpy() for name in ("unfinished", "tokenless"))
    censored = np.where(window == windows.index("ttft"), tokenless[at], unfinished[at])

    def words(codes: Ints, names: Sequence[str] | pl.Series, null: Bools | None = None) -> pa.Array:
        return pa.DictionaryArray.from_arrays(
            pa.array(codes.astype(np.int32), mask=null), pa.array(names, pa.string())
        )

    def numbers(values: Ints, null: Bools) -> pa.Array:
        return pa.array(values, mask=null)

    hidden = [numbers(values, unseen) for values in parts[2:]]
    return pa.Table.from_arrays(
        [
            words(at, requests["request_id"]), words(window, windows), words(number, CLASSES),
            words(hop, _HOPS, hop < 0), numbers(parts[0], unseen), numbers(parts.sum(axis=0), unseen),
            numbers(parts[1], ~exact), *hidden, numbers(work_ns, work_ns < 0),
            numbers(whole("open_ns"), unseen), words(exact, _BOUNDS), pa.array(censored),
            numbers(whole("agreement"), ~exact),
        ],
        schema=SCHEMA,
    )  # fmt: skip
