"""Stacked bars: the time of each window by the class that a request was really waiting for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from kvtrace.panels import _headline, _palette, _partition
from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NOT_OBSERVED, bounded, duration, listed, many, plain, share, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "Which transfer time do requests wait for?"
READING = (
    "Every instant of a window belongs to exactly one class, so the parts of a bar add up to it. "
    "Vivid parts are the cache's doing; grey is compute, and hatched is time nobody recorded."
)
_HOVER = (
    "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]} of the window<br>%{customdata[3]}"
    "<extra></extra>"
)
NAMES = {"ttft": "to first token", "decode": "decode", "e2e": "end to end"}
_NOTHING = (
    "No request with an arrival and an end is in this run, so there is no window to divide. A front end's "
    "request spans would fill it (vLLM: --otlp-traces-endpoint)."
)
_UPPER = (
    "{windows}. {why}, so nobody knows when they computed: compute reads “not observed”, its time lies "
    "inside the other parts, each of which is at most what is shown (<=), and there are no quantiles, "
    "because a quantile of bounds measures nothing. Spans with kvtrace.op = step and their members would "
    "make them exact."
)
_HEADLINE = (
    "It is all time that requests waited for the cache: blocked engine, load, lookup, store, lock, another "
    "request's wait, and the part of the queue for capacity that blocks held for transfers caused."
)
_WHY = {
    False: "No step of the engine was recorded",
    True: "No recorded step serves these requests, or records of their scheduler were lost inside the window",
}


@dataclass(frozen=True)
class Exposure:
    """Sums a (window, bound, class, hop), requests a (window, bound), quantiles a (window, class).

    The headline, exposed transfer, is a row a (window, bound).
    """

    sums: pl.DataFrame
    requests: pl.DataFrame
    quantiles: pl.DataFrame
    headline: pl.DataFrame
    steps: bool
    empty: str | None = None


def data(run: Run) -> Exposure:
    """How much of each window went into each class, over all requests."""
    from kvtrace.analyses.exposure import partition

    path = partition(run)
    sums, requests = _partition.sums(run, path), _partition.requests(run, path)
    quantiles = _partition.quantiles(run, path, requests)
    steps = bool(run.connection().sql("SELECT count(*) > 0 AS any FROM step").pl()["any"][0])
    headline = _headline.headline(run, path, sums, requests)
    return Exposure(sums, requests, quantiles, headline, steps, None if sums.height else _NOTHING)


def draw(frames: Exposure) -> go.Figure:
    """Two rows of bars: the share of each window, and the same in time."""
    if frames.empty:
        return sentence(frames.empty)
    bars = _bars(frames)
    labels = list(dict.fromkeys(bar["label"] for bar in bars))
    windows = axis(
        autorange="reversed", showgrid=False, type="category", categoryorder="array", categoryarray=labels
    )
    rows = 44 * len(labels)
    gap = 64 / (rows + 32)
    figure = blank(
        height=2 * rows + 210, barmode="stack", bargap=0.34, uniformtext={"minsize": 10, "mode": "hide"}
    )
    figure.update_layout(
        margin={"r": 30},
        yaxis=windows | {"domain": [0.5 + gap / 4, 1]},
        yaxis2=windows | {"domain": [0, 0.5 - gap / 4], "anchor": "x2"},
        xaxis=axis(
            "share of the window, over all requests (%)",
            range=[0, 100.2],
            anchor="y",
            ticksuffix=" %",
            dtick=25,
        ),
        xaxis2=axis("time, summed over requests (s)", anchor="y2", rangemode="tozero"),
    )
    for name, hop, tint in _keys(bars):
        mine = [bar for bar in bars if (bar["class"], bar["hop"]) == (name, hop)]
        _trace(figure, name, hop, tint, mine)
    return figure


def _trace(figure: go.Figure, name: str, hop: str | None, tint: str, bars: list[dict[str, Any]]) -> None:
    """One class in both rows; a class that was nowhere observed stays in the legend, as that."""
    shown = [bar for bar in bars if bar["exposed_ns"] is not None]
    legend = plain(_palette.words(name, hop)) + ("" if shown else f": {NOT_OBSERVED}")
    for suffix, values in (("", "percent"), ("2", "seconds")):
        figure.add_bar(
            y=[bar["label"] for bar in shown] or [None],
            x=[bar[values] for bar in shown] or [None],
            orientation="h",
            name=legend,
            legendgroup=legend,
            showlegend=not suffix,
            marker=_palette.marker(name, tint),
            customdata=[bar["hover"] for bar in shown] or None,
            hovertemplate=_HOVER,
            text=[bar["percent_text" if not suffix else "seconds_text"] for bar in shown] or None,
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"size": 11},
            xaxis=f"x{suffix}",
            yaxis=f"y{suffix}",
        )


def _bars(frames: Exposure) -> list[dict[str, Any]]:
    """One dict a bar part, with everything that is written on it."""
    bars = []
    counted = {
        (row["window"], row["bound"]): row["requests"] for row in frames.requests.iter_rows(named=True)
    }
    for row in _ordered(frames.sums).iter_rows(named=True):
        window, bound, spent = row["window"], row["bound"], row["exposed_ns"]
        whose = many(counted[window, bound], "request") + (", upper bound" if bound == "upper" else "")
        label = f"{NAMES.get(window, window)}<br><span style='font-size:11px'>{whose}</span>"
        percent, text = share(spent, row["window_ns"]), duration(spent)
        bars.append(
            row
            | {
                "label": label,
                "percent": None if spent is None or not row["window_ns"] else 100 * spent / row["window_ns"],
                "seconds": None if spent is None else spent / 1e9,
                "percent_text": plain(bounded(percent, bound)),
                "seconds_text": plain(bounded(text, bound)),
                "hover": [
                    plain(_palette.words(row["class"], row["hop"])),
                    plain(bounded(text, bound)),
                    plain(bounded(percent, bound)),
                    plain(f"active for {duration(row['total_ns'])} in all"),
                ],
            }
        )
    return bars


def _ordered(sums: pl.DataFrame) -> pl.DataFrame:
    """Windows, bounds and classes in reading order, each with the whole of its window."""
    whole = pl.col("exposed_ns").sum().over("window", "bound").alias("window_ns")
    classes = pl.col("class").map_elements(_palette.rank, return_dtype=pl.Int64)
    return sums.with_columns(whole).sort(_partition.window_order(), "bound", classes, "hop", nulls_last=True)


def _keys(bars: list[dict[str, Any]]) -> list[tuple[str, str | None, str]]:
    """Every (class, hop) once, in the order of the classes, with its colour."""
    keys = sorted(
        {(bar["class"], bar["hop"]) for bar in bars}, key=lambda key: (_palette.rank(key[0]), key[1] or "")
    )
    hops = tuple(hop for _, hop in keys if hop is not None)
    return [(name, hop, _palette.color(name, hop, hops)) for name, hop in keys]


def notes(frames: Exposure) -> tuple[str, ...]:
    """The headline, and what a reader must know before believing a number."""
    said = [_headline_words(frames.headline)] if frames.headline.height else []
    counted = frames.requests.sort(_partition.window_order(), "bound")
    upper = counted.filter(pl.col("bound") == "upper")
    if upper.height:
        which = listed(
            [
                f"{row['requests']:,} {NAMES.get(row['window'], row['window'])}"
                for row in upper.iter_rows(named=True)
            ]
        )
        windows = (
            "All of this is upper bounds"
            if upper.height == counted.height
            else f"Upper bounds for requests: {which}"
        )
        said.append(_UPPER.format(windows=windows, why=_WHY[frames.steps]))
    unfinished = counted.filter(pl.col("censored") > 0)
    if unfinished.height:
        names = listed(
            [
                f"{row['censored']:,} of {row['requests']:,} {NAMES.get(row['window'], row['window'])}"
                for row in unfinished.iter_rows(named=True)
            ]
        )
        said.append(f"Censored, because no first token or no end was seen: {names}. They are in no quantile.")
    return tuple(said)


def table(frames: Exposure) -> Table | None:
    """The numbers of the bars, with quantiles a request where they were measured."""
    if frames.empty:
        return None
    exact = frames.quantiles.height > 0
    found = {(row["window"], row["class"]): row for row in frames.quantiles.iter_rows(named=True)}
    rows = []
    headlines = {(row["window"], row["bound"]): row for row in frames.headline.iter_rows(named=True)}
    for row in _ordered(frames.sums).iter_rows(named=True):
        bound = row["bound"]
        first = headlines.pop((row["window"], bound), None)
        if first is not None:
            rows.append(_headline_cells(first, row["window_ns"], exact=exact))
        cells = [
            NAMES.get(row["window"], row["window"]) + (" (upper bound)" if bound == "upper" else ""),
            visible(_palette.words(row["class"], row["hop"])),
            bounded(duration(row["exposed_ns"]), bound),
            bounded(share(row["exposed_ns"], row["window_ns"]), bound),
        ]
        if exact:
            cells += _quantile_cells(bound, found.get((row["window"], row["class"])))
        rows.append(tuple(cells))
    head = ("window", "class", "waited, all requests", "share of window")
    quantiles = ("p50 a request", "p90", "p99") if exact else ()
    caption = (
        "Quantiles are over finished requests whose bound is exact; a load's are over all its hops."
        if exact
        else ""
    )
    return Table(head + quantiles, tuple(rows), caption, names=2)


def _headline_cells(row: dict[str, Any], window_ns: float, *, exact: bool) -> tuple[str, ...]:
    """The headline's own row of the table."""
    bound = row["bound"]
    cells = [
        NAMES.get(row["window"], row["window"]) + (" (upper bound)" if bound == "upper" else ""),
        "exposed transfer, the headline",
        bounded(duration(row["exposed_ns"]), bound),
        bounded(share(row["exposed_ns"], window_ns), bound),
    ]
    return (*cells, *(_quantile_cells(bound, row) if exact else ()))


def _headline_words(rows: pl.DataFrame) -> str:
    """Exposed transfer in a sentence, with what held blocks are of it."""
    parts = []
    for row in rows.sort(_partition.window_order(), "bound").iter_rows(named=True):
        held = ""
        if row["held_ns"]:
            held = f" (of it {bounded(duration(row['held_ns']), row['bound'])} for held GPU blocks)"
        text = bounded(duration(row["exposed_ns"]), row["bound"])
        parts.append(f"{NAMES.get(row['window'], row['window'])} {text}{held}")
    said = f"Exposed transfer, the headline: {'; '.join(parts)}. {_HEADLINE}"
    if not rows["holds"].any():
        return f"{said} No hold of GPU blocks was recorded: that part is {NOT_OBSERVED}."
    if unknown := int(rows.filter(pl.col("window") == "e2e")["unknown"].sum()):
        return f"{said} Of {many(unknown, 'holder')} the part is {NOT_OBSERVED}: nobody counted the blocks."
    return said


def _quantile_cells(bound: str, row: dict[str, Any] | None) -> list[str]:
    """Three cells; a class that is in no finished request's window was measured as 0 there."""
    if bound == "upper":
        return ["none: bound"] * 3
    return [duration(row[key] if row else 0) for key in ("p50_ns", "p90_ns", "p99_ns")]
