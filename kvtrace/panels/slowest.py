"""Timelines: the slowest requests, lane by lane, each with its critical path on top."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from kvtrace.errors import UsageError
from kvtrace.panels import _palette, _timelines
from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NOT_OBSERVED, count, duration, many, plain, size, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "Where did the slowest requests spend their time?"
READING = (
    "Time runs from each request's arrival. The thick lane is its critical path: what it was waiting for at every "
    "instant. The lanes below are what was recorded, hidden or not."
)
MOST_BARS = 4000
_NOTHING = {
    "e2e": "No request is in this run; a front end's request spans would fill this (vLLM: --otlp-traces-endpoint).",
    "ttft": (
        "No request's first token was observed; a front end's request spans with a time to first token would fill this "
        "(vLLM: --otlp-traces-endpoint)."
    ),
}


@dataclass(frozen=True)
class Slowest:
    """Requests slowest first, the segments of their paths, and every span that serves them."""

    requests: pl.DataFrame
    path: pl.DataFrame
    spans: pl.DataFrame
    by: str
    empty: str | None = None


def data(run: Run, *, by: str = "e2e", top: int = 10) -> Slowest:
    """Which requests took longest (by e2e or ttft), and what happened to them?

    Raises:
        UsageError: `by` is neither e2e nor ttft, or `top` is not between 1 and 50.
    """
    from kvtrace.analyses.critical_path import critical_path  # noqa: PLC0415 - only when asked

    if by not in ("e2e", "ttft"):
        raise UsageError(f"slowest: by must be e2e or ttft, not {by}.")
    if not 1 <= top <= 50:
        raise UsageError(f"slowest: top must be between 1 and 50, not {top}.")
    requests = _timelines.slowest(run, by, top)
    ids = tuple(requests["request_id"].to_list())
    if not ids:
        return Slowest(requests, pl.DataFrame(), pl.DataFrame(), by, _NOTHING[by])
    path = critical_path(run, window="e2e" if by == "e2e" else "ttft", requests=ids)
    return Slowest(requests, path, _timelines.spans(run, ids), by)


@dataclass(frozen=True)
class Bar:
    """One interval on a lane, in ns after arrival; an end that nobody saw is None."""

    lane: str
    kind: str
    hop: str | None
    start_ns: int
    end_ns: int | None
    hover: str


def lanes(frames: Slowest) -> list[tuple[dict[str, Any], dict[str, list[Bar]]]]:
    """Every request with its lanes from top to bottom: path, request, queue, lookup, loads, stores, steps, waits, holds."""
    spans: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for frame in (frames.path, frames.spans):
        for row in frame.iter_rows(named=True):
            spans[row["request_id"]].append(row)
    groups = []
    for request in frames.requests.iter_rows(named=True):
        bars = [*_life(request), *(_bar(row, request["start_ns"]) for row in spans[request["request_id"]])]
        shown = request["shown_ns"]
        found: dict[str, list[Bar]] = {}
        for bar in sorted(bars, key=_place):
            if bar.start_ns <= shown:
                found.setdefault(bar.lane, []).append(bar)
        groups.append((request, found))
    return groups


def _life(request: dict[str, Any]) -> list[Bar]:
    """The request itself, cut at its first token."""
    start, token, end = request["start_ns"], request["first_token_ns"], request["end_ns"]
    last = None if end is None else end - start
    if token is None:
        return [Bar("request", "request", None, 0, last, "the request; its first token was not observed")]
    cut = token - start
    return [
        Bar("request", "ttft", None, 0, cut, "to first token"),
        Bar("request", "decode", None, cut, last, "first token to finish"),
    ]


def _bar(row: dict[str, Any], arrival: int) -> Bar:
    """A segment of the path (it has a class) or a recorded span (it has an op)."""
    start, end = row["start_ns"] - arrival, None if row["end_ns"] is None else row["end_ns"] - arrival
    if "class" in row:
        words = plain(_palette.words(row["class"], row["hop"]))
        return Bar("critical path", row["class"], row["hop"], start, end, f"critical path: {words}")
    op, reason = row["op"], row["reason"]
    hop = f"{row['tier_from']}->{row['tier_to']}" if op in ("load", "store") else None
    lane = op if hop is None else f"{op} {hop.replace('->', ' → ')}"
    kind = {"queue": "queue_capacity" if reason == "capacity" else "queue", "step": "compute"}.get(op, op)
    if op == "wait":
        kind = f"wait_{reason}" if reason else "interference"
    said = [
        lane, row.get("component"), reason and f"reason {reason}",
        row.get("outcome") and f"outcome {row['outcome']}",
        None if row.get("tokens") is None else many(row["tokens"], "token"),
        None if row.get("bytes") is None else size(row["bytes"]),
    ]  # fmt: skip
    return Bar(lane, kind, hop if op == "load" else None, start, end, plain(", ".join(filter(None, said)), 200))


_LANES = ("critical path", "request", "queue", "lookup", "load", "store", "step", "wait", "hold")


def _place(bar: Bar) -> tuple[int, str, int, int]:
    lane = bar.lane if bar.lane in _LANES else bar.lane.split(" ")[0]
    return _LANES.index(lane) if lane in _LANES else len(_LANES), bar.lane, bar.start_ns, bar.end_ns or -1


def draw(frames: Slowest) -> go.Figure:
    """All requests under each other, on one axis."""
    if frames.empty:
        return sentence(frames.empty)
    groups = lanes(frames)
    kept, _ = _longest(groups)
    y, ticks, titles = 0.0, [], []
    drawn: dict[tuple[str, str | None], list[tuple[float, float, Bar]]] = defaultdict(list)
    for number, ((request, found), bars) in enumerate(zip(groups, kept, strict=True), start=1):
        titles.append((y + 0.2, _title(number, request, frames.by)))
        y += 1.5
        for lane in found:
            ticks.append((y, plain(lane)))
            for bar in bars.get(lane, []):
                drawn[bar.kind, bar.hop].append((y, 1.0 if lane == "critical path" else 0.62, bar))
            y += 1.15 if lane == "critical path" else 1.0
        y += 0.7
    return _figure(frames, drawn, ticks, titles, y)


def _figure(frames: Slowest, drawn: Any, ticks: list[tuple[float, str]], titles: list[tuple[float, str]], bottom: float) -> go.Figure:
    end_ms = max(frames.requests["shown_ns"].to_list()) / 1e6
    figure = blank(height=int(17 * bottom) + 150, barmode="overlay")
    figure.update_layout(
        legend={"y": 1 + 46 / (17 * bottom)},
        xaxis=axis("ms after the request's arrival", range=[-0.01 * end_ms, 1.04 * end_ms], side="top"),
        yaxis=axis(
            range=[bottom, -0.6], showgrid=False, tickvals=[at for at, _ in ticks], ticktext=[text for _, text in ticks],
            tickfont={"size": 11}, fixedrange=True,
        ),
    )  # fmt: skip
    hops = tuple(sorted({hop for _, hop in drawn if hop is not None}))
    for kind, hop in sorted(drawn, key=lambda key: (_palette.rank(key[0]), key[1] or "")):
        _trace(figure, kind, hop, hops, drawn[kind, hop])
    for at, text in titles:
        figure.add_annotation(
            text=text, x=0, xref="paper", y=at, yref="y", xanchor="left", yanchor="middle", showarrow=False, align="left"
        )
    return figure


_PLAIN = {"ttft": ("#5b6b82", "request, to first token"), "decode": ("#aab4c3", "request, decode"),
          "request": ("#aab4c3", "request"), "hold": ("#8d7b6a", "GPU blocks held")}  # fmt: skip


def _trace(figure: go.Figure, kind: str, hop: str | None, hops: tuple[str, ...], bars: list[tuple[float, float, Bar]]) -> None:
    """Bars of one colour; what has no end is a mark at its start, never a bar with an invented one."""
    import numpy as np  # noqa: PLC0415

    tint, words = _PLAIN.get(kind) or (_palette.color(kind, hop, hops), _palette.words(kind, hop))
    ended = [(y, width, bar, bar.end_ns) for y, width, bar in bars if bar.end_ns is not None]
    opened = [(y, bar) for y, _, bar in bars if bar.end_ns is None]
    if ended:
        marker: dict[str, Any] = {"color": tint, "line": {"width": 0.6, "color": tint}}
        if kind == "other":
            marker["pattern"] = _palette.HATCH
        figure.add_bar(
            orientation="h", name=plain(words), marker=marker, legendgroup=words,
            y=np.array([y for y, *_ in ended]), width=np.array([width for _, width, *_ in ended]),
            base=np.array([bar.start_ns / 1e6 for _, _, bar, _ in ended]),
            x=np.array([(end - bar.start_ns) / 1e6 for _, _, bar, end in ended]),
            customdata=[[bar.hover, _when(bar)] for _, _, bar, _ in ended],
            hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
        )  # fmt: skip
    if opened:
        figure.add_scatter(
            mode="markers+text", name=plain(words), legendgroup=words, showlegend=not ended, text="end not observed",
            textposition="middle right", textfont={"size": 10}, marker={"symbol": "triangle-right", "size": 9, "color": tint},
            x=np.array([bar.start_ns / 1e6 for _, bar in opened]), y=np.array([y for y, _ in opened]),
            customdata=[[bar.hover, _when(bar)] for _, bar in opened],
            hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
        )  # fmt: skip


def _when(bar: Bar) -> str:
    if bar.end_ns is None:
        return f"from {duration(bar.start_ns)}; its end was not observed"
    return f"{duration(bar.end_ns - bar.start_ns)}, from {duration(bar.start_ns)} to {duration(bar.end_ns)}"


def _longest(groups: list[tuple[dict[str, Any], dict[str, list[Bar]]]]) -> tuple[list[dict[str, list[Bar]]], int]:
    """At most MOST_BARS bars, shared out over the lanes: the longest of each, and how many are not drawn."""
    total = max(1, sum(len(found) for _, found in groups))
    most, left_out, kept = max(20, MOST_BARS // total), 0, []
    for _, found in groups:
        some = {}
        for lane, bars in found.items():
            longest = sorted(bars, key=lambda bar: -(bar.end_ns - bar.start_ns if bar.end_ns is not None else 1 << 62))
            some[lane] = longest[:most]
            left_out += len(bars) - len(some[lane])
        kept.append(some)
    return kept, left_out


def _title(number: int, request: dict[str, Any], by: str) -> str:
    took = f"TTFT {duration(request['ttft_ns'])}" if by == "ttft" else f"end to end {_end_to_end(request)}"
    return f"<b>{number}  {plain(request['request_id'], 56)}</b>  {plain(took)}"


def _end_to_end(request: dict[str, Any]) -> str:
    if request["duration_ns"] is not None:
        return duration(request["duration_ns"])
    return f"open, >= {duration(request['shown_ns'])}"


def notes(frames: Slowest) -> tuple[str, ...]:
    """What the picture leaves out."""
    if frames.empty:
        return ()
    _, left_out = _longest(lanes(frames))
    if not left_out:
        return ()
    return (f"{many(left_out, 'bar')} shorter than those drawn are left out; every lane keeps its longest.",)


def table(frames: Slowest) -> Table | None:
    """What is known of these requests."""
    if frames.empty:
        return None
    head = (
        "", "request", "TTFT", "end to end", "prompt tokens", "in the GPU before", "found of asked", "loaded to the GPU",
        "output tokens", "status",
    )  # fmt: skip
    rows = []
    for number, row in enumerate(frames.requests.iter_rows(named=True), start=1):
        loaded = count(row["loaded_tokens"]) if row["loads"] else "none seen"
        found = f"{count(row['found_tokens'])} of {count(row['requested_tokens'])}" if row["found_tokens"] is not None else NOT_OBSERVED
        rows.append((
            str(number), visible(row["request_id"]), duration(row["ttft_ns"]), _end_to_end(row), count(row["prompt_tokens"]),
            count(row["gpu_hit_tokens"]), found, loaded, count(row["output_tokens"]), visible(row["status"]),
        ))  # fmt: skip
    ranked = frames.requests["ranked"][0]
    shown = f"The slowest {len(rows)} of {many(ranked, 'request')}" if ranked > len(rows) else f"All {many(ranked, 'request')}"
    return Table(head, tuple(rows), f"{shown}. What nobody recorded reads “not observed”.", names=2)
