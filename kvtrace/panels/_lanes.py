"""Lanes of one request's timeline, top to bottom: its critical path, and below it what was recorded."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.panels import _palette
from kvtrace.panels._text import bounded, duration, many, plain, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

Lanes = dict[str, list["Bar"]]

PATH = "critical path"
_ORDER = (PATH, "request", "queue", "lookup", "load", "store", "step", "wait", "hold")


@dataclass(frozen=True)
class Bar:
    """One interval on a lane, in ns after arrival; an end that nobody saw is None."""

    lane: str
    kind: str
    hop: str | None
    start_ns: int
    end_ns: int | None
    what: str
    bound: str = "exact"

    def when(self) -> str:
        """How long, from when to when, as a reader sees it."""
        if self.end_ns is None:
            return f"from {duration(self.start_ns)}; its end was not observed"
        took = bounded(duration(self.end_ns - self.start_ns), self.bound)
        return f"{took}, from {duration(self.start_ns)} to {duration(self.end_ns)}"


def lanes(requests: pl.DataFrame, frames: Sequence[pl.DataFrame]) -> list[tuple[dict[str, Any], Lanes]]:
    """Every request with its lanes, from segments of the path and from spans.

    What starts after the request's end is left out; segments of the path have the request's bound.
    """
    spans: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for frame in frames:
        for row in frame.iter_rows(named=True):
            spans[row["request_id"]].append(row)
    groups = []
    for request in requests.iter_rows(named=True):
        arrival = request["start_ns"]
        bars = [
            *_life(request),
            *(_bar(row, arrival, request["bound"]) for row in spans[request["request_id"]]),
        ]
        found: Lanes = {}
        for bar in sorted(bars, key=_place):
            if bar.start_ns <= request["shown_ns"]:
                found.setdefault(bar.lane, []).append(bar)
        groups.append((request, found))
    return groups


def longest(groups: list[tuple[dict[str, Any], Lanes]], most: int) -> tuple[list[Lanes], int]:
    """At most about `most` bars, the longest of each lane; and how many are left out."""
    share = max(20, most // max(1, sum(len(found) for _, found in groups)))
    kept: list[Lanes] = []
    left_out = 0
    for _, found in groups:
        some = {lane: sorted(bars, key=_length, reverse=True)[:share] for lane, bars in found.items()}
        left_out += sum(len(bars) - len(some[lane]) for lane, bars in found.items())
        kept.append(some)
    return kept, left_out


def _length(bar: Bar) -> float:
    return float("inf") if bar.end_ns is None else bar.end_ns - bar.start_ns


def _place(bar: Bar) -> tuple[int, str, int, int]:
    word = bar.lane if bar.lane == PATH else bar.lane.split(" ")[0]
    place = _ORDER.index(word) if word in _ORDER else len(_ORDER)
    return place, bar.lane, bar.start_ns, -1 if bar.end_ns is None else bar.end_ns


def _life(request: dict[str, Any]) -> list[Bar]:
    """The request itself, cut at its first token."""
    start, token, end = request["start_ns"], request["first_token_ns"], request["end_ns"]
    last = None if end is None else end - start
    if token is None:
        return [Bar("request", "request", None, 0, last, "the request; its first token was not observed")]
    return [
        Bar("request", "ttft", None, 0, token - start, "to first token"),
        Bar("request", "decode", None, token - start, last, "first token to finish"),
    ]


def _bar(row: dict[str, Any], arrival: int, bound: str | None) -> Bar:
    """A segment of the path (it has a class) or a recorded span (it has an op)."""
    start = row["start_ns"] - arrival
    end = None if row["end_ns"] is None else row["end_ns"] - arrival
    if "class" in row:
        what = f"{PATH}: {plain(_palette.words(row['class'], row['hop']))}"
        return Bar(PATH, row["class"], row["hop"], start, end, what, bound or "exact")
    op, reason = row["op"], row["reason"]
    hop = f"{row['tier_from']}->{row['tier_to']}" if op in ("load", "store") else None
    lane = op if hop is None else f"{op} {hop.replace('->', ' → ')}"
    said = (
        lane,
        row["component"],
        reason and f"reason {reason}",
        row["outcome"] and f"outcome {row['outcome']}",
        None if row["tokens"] is None else many(row["tokens"], "token"),
        None if row["bytes"] is None else size(row["bytes"]),
    )
    what = plain(", ".join(filter(None, said)), 200)
    return Bar(lane, _kind(op, reason), hop if op == "load" else None, start, end, what)


def _kind(op: str, reason: str | None) -> str:
    """The class whose colour a span has: the one it would win an instant for."""
    if op == "wait":
        return f"wait_{reason}" if reason else "interference"
    if op == "queue":
        return "queue_capacity" if reason == "capacity" else "queue"
    return "compute" if op == "step" else op
