"""Stacked bars: how much of each transfer a request waited for, and what hid the rest."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from kvtrace.errors import UsageError
from kvtrace.panels import _palette, _partition
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NOT_OBSERVED, bounded, duration, plain, share

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "How much of each transfer was hidden, and behind what?"
READING = (
    "A bar is all the time a transfer was active. Its vivid part, in the class's colour, is what requests "
    "waited for; the muted parts were hidden and cost nothing."
)
_HOVER = "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]} of its time<extra></extra>"
HIDDEN = {
    "hidden_by_compute_ns": ("hidden behind compute", "#7c8aa0"),
    "hidden_by_wait_ns": ("counted as an engine's wait", "#b98a6b"),
    "hidden_by_queue_ns": ("hidden behind the queue", "#a3a9c9"),
    "hidden_by_load_ns": ("hidden behind another hop", "#9db8cc"),
    "hidden_by_rest_ns": ("hidden behind the rest", "#c9ccd1"),
}
_NOTHING = (
    "No lookup, load, store or wait overlaps any request's window. A cache's own spans would fill this "
    "(LMCache: lmcache server --enable-tracing --otlp-endpoint)."
)


@dataclass(frozen=True)
class Overlap:
    """One row a (bound, class, hop) of one window: exposed, hidden and total time, ns."""

    sums: pl.DataFrame
    window: str
    empty: str | None = None


def data(run: Run, *, window: str = "e2e") -> Overlap:
    """How much of the time that each kind of transfer was active was waited for.

    Raises:
        UsageError: no such window.
    """
    from kvtrace.analyses.exposure import partition

    if window not in _partition.WINDOWS:
        raise UsageError(f"overlap: no window {window}; there are {', '.join(_partition.WINDOWS)}.")
    sums = _partition.sums(run, partition(run))
    kept = sums.filter(
        pl.col("window") == window, pl.col("class").is_in(_palette.TRANSFER), pl.col("total_ns") > 0
    )
    return Overlap(kept, window, None if kept.height else _NOTHING)


def draw(frames: Overlap) -> go.Figure:
    """One bar a class and hop: first what was waited for, then what was hidden."""
    if frames.empty:
        return sentence(frames.empty)
    rows = sorted(
        frames.sums.iter_rows(named=True),
        key=lambda row: (_palette.rank(row["class"]), row["hop"] or "", row["bound"]),
    )
    labels = [_label(row, mixed=len({row["bound"] for row in rows}) > 1) for row in rows]
    figure = blank(
        height=36 * len(rows) + 140, barmode="stack", bargap=0.36, uniformtext={"minsize": 10, "mode": "hide"}
    )
    figure.update_layout(
        xaxis=axis("time, summed over requests (ms)", rangemode="tozero"),
        yaxis=axis(autorange="reversed", showgrid=False, type="category"),
    )
    hops = tuple(sorted({row["hop"] for row in rows if row["hop"] is not None}))
    tints = [_palette.color(row["class"], row["hop"], hops) for row in rows]
    _part(figure, "waited for", tints, rows, labels, "exposed_ns")
    for column, (name, tint) in HIDDEN.items():
        if any(row[column] is None or row[column] > 0 for row in rows):
            _part(figure, name, [tint] * len(rows), rows, labels, column)
    return figure


def _part(
    figure: go.Figure, name: str, tints: list[str], rows: list[dict[str, Any]], labels: list[str], column: str
) -> None:
    """One part of every bar; where it was not observed there is no bar, and the legend says so."""
    seen = [
        (label, row, tint)
        for label, row, tint in zip(labels, rows, tints, strict=True)
        if row[column] is not None
    ]
    texts = [bounded(duration(row[column]), row["bound"]) for _, row, _ in seen]
    shares = [bounded(share(row[column], row["total_ns"]), row["bound"]) for _, row, _ in seen]
    nothing: list[Any] = [None]
    one = tints[0] if len(set(tints)) == 1 else None
    figure.add_bar(
        y=[label for label, *_ in seen] or nothing,
        x=[row[column] / 1e6 for _, row, _ in seen] or nothing,
        name=plain(name) + ("" if seen else f": {NOT_OBSERVED}"),
        orientation="h",
        marker={"color": one or [tint for *_, tint in seen], "line": {"width": 0}},
        showlegend=column != "exposed_ns",
        text=[plain(text) for text in shares] or None,
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        insidetextfont={"size": 11},
        customdata=[[plain(name), plain(text), plain(part)] for text, part in zip(texts, shares, strict=True)]
        or None,
        hovertemplate=_HOVER,
    )


def _label(row: dict[str, Any], *, mixed: bool) -> str:
    """A class on the axis; whose bound it is only where a run has both."""
    name = "<br>".join(textwrap.wrap(plain(_palette.words(row["class"], row["hop"])), 20))
    return f"{name}<br>(bound: {row['bound']})" if mixed else name


def notes(frames: Overlap) -> tuple[str, ...]:
    """What hides inside the numbers."""
    said = []
    if (frames.sums["bound"] == "upper").any():
        said.append(
            "Upper bounds: without steps nobody knows what compute hid, so every part is at most what is "
            "shown (<=) and “hidden behind compute” is not observed."
        )
    still = frames.sums.filter(pl.col("open_ns") > 0)
    if still.height:
        total = int(still["open_ns"].sum())
        said.append(
            f"{duration(total)} of it are transfers whose end was never seen: they count to the window's end."
        )
    return tuple(said)
