"""One request: what it waited for, and each of its hops from asked for to usable, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from kvtrace.errors import UsageError
from kvtrace.panels import _partition, _timelines
from kvtrace.panels._bars import Placed, frame, traces
from kvtrace.panels._card import Table
from kvtrace.panels._hop_words import cells, copied, words
from kvtrace.panels._hops import hops
from kvtrace.panels._lanes import PATH, Bar, Lanes, lanes, longest
from kvtrace.panels._layout import sentence
from kvtrace.panels._text import count, duration, many, plain, size, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "What became of each of a request's transfers, from asked for to usable?"
READING = (
    "Time runs from the request's arrival; the thick lane is what it was waiting for. A hop is hollow from "
    "asked for to begun (submit), full while it copies, striped until its worker reports the end (poll), "
    "dotted until the scheduler may use it (usable). What nobody saw is not drawn."
)
MOST_BARS = 4000
_NOTHING = (
    "No transfer of a request was recorded. kvtrace run -- COMMAND would fill this, or the cache's own spans "
    "(LMCache: lmcache server --enable-tracing --otlp-endpoint)."
)
_ARRIVAL = "A front end's request spans would fill this (vLLM: --otlp-traces-endpoint)."
_HEIGHT, _THICK, _WORDS_AT = 2.9, 1.15, 1.25
"""A hop's lane with the words below it, its bar, and from its middle down to those words; in lanes."""


@dataclass(frozen=True)
class Timeline:
    """One request, its path, its spans and its hops (a row each: _hops.hops)."""

    request: pl.DataFrame
    path: pl.DataFrame
    spans: pl.DataFrame
    hops: pl.DataFrame
    chosen: bool
    empty: str | None = None


def data(run: Run, *, request: str = "", top: int = 40) -> Timeline:
    """One request by any of its names; without one that whose loads took longest.

    `top` is how many of its hops are drawn: the longest.

    Raises:
        UsageError: no request, or several, have that name, or `top` is not between 1 and 200.
    """
    from kvtrace.analyses.critical_path import critical_path
    from kvtrace.analyses.explain.names import named
    from kvtrace.analyses.exposure import partition

    if not 1 <= top <= 200:
        raise UsageError(f"timeline: top must be between 1 and 200, not {top}.")
    name = named(run.connection(), request, asker="timeline") if request else _timelines.waited_most(run)
    found = pl.DataFrame() if name is None else _timelines.one(run, name)
    if name is None or not found.height:
        why = _NOTHING if name is None else f"When {visible(name)} arrived was not observed. {_ARRIVAL}"
        return Timeline(*(pl.DataFrame(),) * 4, chosen=not request, empty=why)
    bounds = _partition.bounds(run, partition(run), "e2e", (name,))
    found = found.join(bounds, on="request_id", how="left", maintain_order="left")
    path = critical_path(run, window="e2e", requests=(name,))
    every = hops(run, (name,))
    shown = every.top_k(top, by=pl.coalesce("usable_ns", "end_ns", "start_ns") - pl.col("start_ns"))
    rest = _timelines.spans(run, (name,)).filter(
        ~pl.col("op").is_in(["load", "store"]) | pl.col("number").is_in(shown["number"].implode())
    )
    return Timeline(found, path, rest, every, chosen=not request)


def draw(frames: Timeline) -> go.Figure:
    """The path on top, what was recorded below it, then hop by hop with its phases in words."""
    if frames.empty:
        return sentence(frames.empty)
    groups = lanes(frames.request, (frames.path, frames.spans), apart=True)
    (kept,), _ = longest(groups, MOST_BARS)
    ((request, found),) = groups
    y = 1.3
    ticks: list[tuple[float, str]] = []
    placed: list[Placed] = []
    lines: list[tuple[float, Bar]] = []
    for lane in _ordered(found):
        hop = kept[lane][0].number > 0
        y += 0.5 if hop else 0.0
        ticks.append((y, plain(lane)))
        placed += [Placed(y, 1.0 if lane == PATH else _THICK if hop else 0.62, bar) for bar in kept[lane]]
        if hop:
            lines.append((y + _WORDS_AT, kept[lane][0]))
        y += _HEIGHT - 0.5 if hop else 1.15 if lane == PATH else 1.0
    end_ns = _shown_until(request, placed)
    figure = frame(end_ns, ticks, y)
    figure.add_annotation(
        text=_title(request), x=0, xref="paper", xanchor="left", y=0, yref="y", yanchor="middle",
        showarrow=False,
    )  # fmt: skip
    told = {row["number"]: words(row) for row in frames.hops.iter_rows(named=True)}
    for at, bar in lines:
        _line(figure, at, told[bar.number], _first(found, bar.number), end_ns)
    traces(figure, placed)
    return figure


def _shown_until(request: dict[str, Any], placed: list[Placed]) -> int:
    """Until the first token or the last that is known of a hop; without both until the end."""
    last = [each.bar.end_ns or each.bar.start_ns for each in placed if each.bar.number]
    if request["first_token_ns"] is not None:
        last.append(request["first_token_ns"] - request["start_ns"])
    return max(last, default=request["shown_ns"])


def _ordered(found: Lanes) -> list[str]:
    """What was recorded of the request first, then its hops as they were asked for."""
    return sorted(found, key=lambda lane: found[lane][0].number)


def _first(found: Lanes, number: int) -> int:
    return min(bar.start_ns for bars in found.values() for bar in bars if bar.number == number)


def _line(figure: go.Figure, at: float, text: str, start_ns: int, end_ns: int) -> None:
    """Words below a hop: from where it begins, or to the left of that where they would not fit."""
    late = start_ns > 0.55 * end_ns
    figure.add_annotation(
        text=plain(text, 300), x=1.04 * end_ns / 1e6 if late else start_ns / 1e6, xref="x",
        xanchor="right" if late else "left", y=at, yref="y", yanchor="middle", showarrow=False,
        font={"size": 11},
    )  # fmt: skip


def _title(request: dict[str, Any]) -> str:
    took = f"TTFT {duration(request['ttft_ns'])}, end to end {duration(request['duration_ns'])}"
    return f"<b>{plain(request['request_id'], 56)}</b>  {plain(took)}"


def notes(frames: Timeline) -> tuple[str, ...]:
    """What is left out, and which times nobody saw."""
    if frames.empty:
        return ()
    if not frames.hops.height:
        return ("No transfer of this request was recorded.",)
    said = []
    drawn = frames.spans["number"].drop_nulls().len()
    if drawn < frames.hops.height:
        said.append(f"The {drawn:,} longest of {frames.hops.height:,} hops are drawn; the table has all.")
    if untimed := frames.hops["start_ns"].null_count():
        are = "is" if untimed == 1 else "are"
        said.append(f"{many(untimed, 'hop')} without times {are} in the table alone.")
    if frames.hops.filter(pl.col("body") == "whole").height:
        said.append(
            "Copy not seen: only who asked and was answered was watched; submit, copy and poll lie inside."
        )
    if frames.hops.filter(pl.col("body") == "with_wait").height:
        said.append(
            "Copy or waiting: the time runs from when it was handed over; bytes may have begun to move later."
        )
    return tuple(said)


def table(frames: Timeline) -> Table | None:
    """A line a hop."""
    if frames.empty or not frames.hops.height:
        return None
    head = ("", "hop", "component", "seen by", "tokens", "bytes")
    took = ("submit", "copy", "poll", "usable", "outcome")
    rows = tuple(_row(row) for row in frames.hops.iter_rows(named=True))
    caption = (
        "Submit: asked for to begun. Copy: begun to ended. Poll: ended to reported. Usable: reported to "
        "usable by the scheduler."
    )
    if frames.chosen:
        caption += " This is the request whose loads took longest in all; the option request names another."
    return Table(head + took, rows, caption, names=4)


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    submit, copy, poll, usable = cells(row)
    return (
        str(row["number"]),
        visible(f"{row['op']} {row['tier_from']} → {row['tier_to']}"),
        visible(row["component"]),
        visible(row["observer"]),
        count(row["tokens"]),
        size(row["bytes"]),
        submit,
        copy if row["body"] == "copy" else f"{copy} ({copied(row)})",
        poll,
        usable,
        visible(row["outcome"]),
    )
