"""Lanes of one request's timeline, top to bottom: its critical path, and below it what was recorded."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.panels import _palette
from kvtrace.panels._hops import PHASES, phases
from kvtrace.panels._text import NOT_OBSERVED, bounded, duration, exact, many, plain, size

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
    op: str | None = None
    """Of a phase: what it is a phase of."""
    times: str | None = None
    """Of a phase: all times of its hop."""
    number: int = 0
    """Of a phase whose hop has a lane of its own: which hop."""

    def when(self) -> str:
        """How long, from when to when, as a reader sees it."""
        if self.end_ns is None:
            return f"from {duration(self.start_ns)}; its end was not observed"
        took = bounded(duration(self.end_ns - self.start_ns), self.bound)
        return f"{took}, from {duration(self.start_ns)} to {duration(self.end_ns)}"

    def hover(self) -> str:
        """What stands below its name: when, and of a phase the times of its whole hop."""
        return plain(self.when()) if self.times is None else f"{plain(self.when())}<br>{self.times}"


def lanes(
    requests: pl.DataFrame, frames: Sequence[pl.DataFrame], *, apart: bool = False
) -> list[tuple[dict[str, Any], Lanes]]:
    """Every request with its lanes, from segments of the path and from spans; a hop is a bar a phase.

    What starts after the request's end is left out; segments of the path have the request's bound. `apart`
    gives every hop a lane of its own.
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
            *(
                bar
                for row in spans[request["request_id"]]
                for bar in _bars(row, arrival, request["bound"], apart=apart)
            ),
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


def _place(bar: Bar) -> tuple[int, int, str, int, int]:
    word = bar.op or bar.lane
    place = _ORDER.index(word) if word in _ORDER else len(_ORDER)
    return place, bar.number, bar.lane, bar.start_ns, -1 if bar.end_ns is None else bar.end_ns


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


def _bars(row: dict[str, Any], arrival: int, bound: str | None, *, apart: bool) -> list[Bar]:
    """A segment of the path (it has a class), a recorded span (it has an op), or a hop, phase by phase."""
    if row["start_ns"] is None:  # counted by who does not time it
        return []
    start = row["start_ns"] - arrival
    end = None if row["end_ns"] is None else row["end_ns"] - arrival
    if "class" in row:
        what = f"{PATH}: {plain(_palette.words(row['class'], row['hop']))}"
        return [Bar(PATH, row["class"], row["hop"], start, end, what, bound or "exact")]
    if row["op"] in ("load", "store"):
        return _hop(row, arrival, apart=apart)
    op = row["op"]
    return [Bar(op, _kind(op, row["reason"]), None, start, end, plain(_said(op, row), 200))]


def _hop(row: dict[str, Any], arrival: int, *, apart: bool) -> list[Bar]:
    """Its phases; the copy has the colour of its path."""
    op = row["op"]
    path = f"{op} {row['tier_from']} → {row['tier_to']}"
    lane = f"{row['number']}  {path}" if apart else path
    hop = f"{row['tier_from']}->{row['tier_to']}" if op == "load" else None
    times = _times(row, arrival)
    return [
        Bar(
            lane,
            op if phase.kind == "copy" else phase.kind,
            hop,
            phase.start_ns - arrival,
            None if phase.end_ns is None else phase.end_ns - arrival,
            plain(_said(f"{path}: {PHASES[phase.kind]}", row), 200),
            op=op,
            times=times,
            number=row["number"] if apart else 0,
        )
        for phase in phases(row)
    ]


def _times(row: dict[str, Any], arrival: int) -> str:
    """All that is known of a hop to the nanosecond, and what nobody saw."""
    whole = row["body"] == "whole"
    seen = (
        ("asked for", row["start_ns"] if whole and row["asked_ns"] is None else row["asked_ns"]),
        ("handed over", None if row["handed_ns"] == row["asked_ns"] else row["handed_ns"]),
        ("began", None if whole else row["start_ns"]),
        ("ended", None if whole else row["end_ns"]),
        ("reported", row["reported_ns"]),
        ("the scheduler knew", row["known_ns"]),
        ("usable", row["usable_ns"]),
    )
    told = [f"{word} {exact(at - arrival)}" for word, at in seen if at is not None]
    unseen = [word for word, at in seen if at is None and word not in ("handed over", "the scheduler knew")]
    lines = [
        ", ".join(told[:4]),
        ", ".join(told[4:]),
        f"{NOT_OBSERVED}: {', '.join(unseen)}" if unseen else "",
    ]
    return "<br>".join(plain(line, 200) for line in lines if line)


def _said(first: str, row: dict[str, Any]) -> str:
    said = (
        first,
        row["component"],
        row["reason"] and f"reason {row['reason']}",
        row["outcome"] and f"outcome {row['outcome']}",
        None if row["tokens"] is None else many(row["tokens"], "token"),
        None if row["bytes"] is None else size(row["bytes"]),
    )
    return ", ".join(filter(None, said))


def _kind(op: str, reason: str | None) -> str:
    """The class whose colour a span has: the one it would win an instant for."""
    if op == "wait":
        return f"wait_{reason}" if reason else "interference"
    if op == "queue":
        return "queue_capacity" if reason == "capacity" else "queue"
    return "compute" if op == "step" else op
