"""Bars on lanes: how each kind is filled, and what a reader's pointer shows.

Phases of a hop have the colour of its copy and differ in how they are filled, by their order in time: hollow
while it waits to begin, full while it copies, striped until it is reported, dotted until it is usable.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.panels import _palette
from kvtrace.panels._hops import PHASES
from kvtrace.panels._layout import axis, blank
from kvtrace.panels._text import plain

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.panels._lanes import Bar

ROW = 17
"""Height of a lane, in pixels."""
_AROUND, _LEGEND_ROW, _A_ROW = 98, 20, 3
"""Pixels of axis and margins, of a row of the legend, and how many names stand in one on a wide page."""
_OWN = {
    "ttft": ("#5b6b82", "request, to first token"),
    "decode": ("#8fa0b8", "request, decode"),
    "request": ("#8fa0b8", "request"),
    "hold": ("#8d7b6a", "GPU blocks held"),
}
"""Bars that are no class of the partition: colour and name."""
_FILL: dict[str, dict[str, Any]] = {
    "copy_or_wait": {"shape": "x", "size": 5, "solidity": 0.5},
    "under_way": {"shape": "x", "size": 7, "solidity": 0.18},
    "poll": {"shape": "/", "size": 5, "solidity": 0.42},
    "usable": {"shape": ".", "size": 5, "solidity": 0.4},
    "ended_to_usable": {"shape": "|", "size": 6, "solidity": 0.25},
}
"""Phase -> its pattern; a phase that is not here and no copy is hollow."""
_HOLLOW = "rgba(0,0,0,0)"


@dataclass(frozen=True)
class Placed:
    """A bar, how far down it is drawn (in lanes) and how thick."""

    y: float
    width: float
    bar: Bar


def frame(end_ns: int, ticks: list[tuple[float, str]], bottom: float) -> go.Figure:
    """The figure without its bars: the axis of time after the arrival, and the names of the lanes."""
    end_ms = end_ns / 1e6
    figure = blank(height=int(ROW * bottom) + _AROUND, barmode="overlay")
    figure.update_layout(
        legend={"y": 1 + 46 / (ROW * bottom)},
        xaxis=axis(
            "ms after the request's arrival",
            range=[-0.01 * end_ms, 1.04 * end_ms],
            side="top",
            tickformat=",",
        ),
        yaxis=axis(
            range=[bottom, -0.6],
            showgrid=False,
            tickvals=[at for at, _ in ticks],
            ticktext=[text for _, text in ticks],
            tickfont={"size": 11},
            fixedrange=True,
        ),
    )
    return figure


def traces(figure: go.Figure, placed: list[Placed]) -> None:
    """All bars, one trace a colour and filling; a phase is in the legend once, whatever it is a phase of."""
    drawn: dict[tuple[str, str | None, str | None], list[Placed]] = defaultdict(list)
    for each in placed:
        bar = each.bar
        hop, op = (None, bar.op) if bar.kind in PHASES else (bar.hop, None)
        drawn[bar.kind, hop, op].append(each)
    hops = tuple(sorted({hop for _, hop, _ in drawn if hop is not None}))
    named: set[str] = set()
    for kind, hop, op in sorted(drawn, key=_order):
        tint, words = _look(kind, hop, op, hops)
        _trace(figure, kind, tint, plain(words), drawn[kind, hop, op], named)
    figure.update_layout(height=figure.layout.height + _LEGEND_ROW * -(-len(named) // _A_ROW))


def _order(key: tuple[str, str | None, str | None]) -> tuple[int, int, str, str, str]:
    kind, hop, op = key
    phase = list(PHASES).index(kind) if kind in PHASES else -1
    return phase, _palette.rank(kind), kind, hop or "", op or ""


def _look(kind: str, hop: str | None, op: str | None, hops: tuple[str, ...]) -> tuple[str, str]:
    """Colour and name of a kind of bar."""
    if kind in PHASES:
        return _palette.color(op or "load"), PHASES[kind]
    return _OWN.get(kind) or (_palette.color(kind, hop, hops), _palette.words(kind, hop))


def _marker(kind: str, tint: str) -> dict[str, Any]:
    if kind not in PHASES:
        return _palette.marker(kind, tint)
    pattern = _FILL.get(kind)
    if pattern is None:
        return {"color": _HOLLOW, "line": {"width": 1, "color": tint}}
    filled = {**pattern, "fgcolor": tint, "bgcolor": _HOLLOW, "fillmode": "replace"}
    return {"color": tint, "line": {"width": 1, "color": tint}, "pattern": filled}


def _trace(figure: go.Figure, kind: str, tint: str, words: str, bars: list[Placed], named: set[str]) -> None:
    """Bars of one look; what has no end is a mark at its start, never a bar with an invented one."""
    shared = {
        "name": words,
        "legendgroup": words,
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
    }
    ended = [(each, each.bar.end_ns) for each in bars if each.bar.end_ns is not None]
    opened = [each for each in bars if each.bar.end_ns is None]
    first = words not in named
    named.add(words)
    if ended:
        figure.add_bar(
            orientation="h",
            marker=_marker(kind, tint),
            showlegend=first,
            y=[round(each.y, 2) for each, _ in ended],
            width=[each.width for each, _ in ended],
            base=[each.bar.start_ns / 1e6 for each, _ in ended],
            x=[(end - each.bar.start_ns) / 1e6 for each, end in ended],
            customdata=[[each.bar.what, each.bar.hover()] for each, _ in ended],
            **shared,
        )
    if opened:
        figure.add_scatter(
            mode="markers+text",
            showlegend=first and not ended,
            text="end not observed",
            textposition="middle right",
            textfont={"size": 10},
            marker={"symbol": "triangle-right", "size": 9, "color": tint},
            x=[each.bar.start_ns / 1e6 for each in opened],
            y=[round(each.y, 2) for each in opened],
            customdata=[[each.bar.what, each.bar.hover()] for each in opened],
            **shared,
        )
