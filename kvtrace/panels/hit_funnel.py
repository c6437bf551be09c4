"""Bars: from what existed to what was loaded, and what was lost between, each loss by its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NONE, NOT_OBSERVED, count, many, plain, share

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "How much of what existed was loaded, and where was the rest lost?"
READING = (
    "Tokens of the prompts, all requests together, from the first prompt token at the first admission. A "
    "blue bar is a stage, the bars under it name what was lost on the way to the next. A bar holds only the "
    "requests of which its number is known."
)
_NOTHING = (
    "No request's way through the cache was observed: no lookup, selection, load, route or key of one. "
    "kvtrace's own instruments inside an engine would fill this (kvtrace run), or the cache's own spans "
    "(LMCache: lmcache server --enable-tracing --otlp-endpoint)."
)
STAGES: dict[str, str] = {
    "exists_tokens": "existed in some tier",
    "lost_invisible": "invisible to the router",
    "visible_tokens": "visible to the router",
    "lost_unreported": "not reported by the lookup",
    "found_tokens": "found by the lookup",
    "lost_shadowed": "the GPU had it already",
    "lost_rounding": "filled no block",
    "lost_last_token": "last token of a whole prompt",
    "lost_declined": "declined by the scheduler",
    "selected_tokens": "selected to be loaded",
    "lost_vanished": "vanished before it was read",
    "lost_lock": "lost its lock",
    "lost_failed": "load failed",
    "loaded_tokens": "loaded and used",
    "lost_unexplained": "unexplained",
}
"""Column -> what it is to a reader, in the order of the funnel."""
BESIDE: dict[str, str] = {
    "prompt_tokens": "prompts",
    "gpu_hit_tokens": "found in the GPU",
    "moved_tokens": "moved into the GPU, whole chunks",
    "computed_tokens": "computed at the first admission",
    "recomputed_tokens": "recomputed",
}
"""Not steps of the funnel, but what it is measured against."""
_STAGE, _LOSS, _REST = "#0072b2", "#d55e00", "#a9b0bb"
_COLORS = {"lost_shadowed": "#7c8aa0", "lost_last_token": "#7c8aa0", "lost_unexplained": _REST}


@dataclass(frozen=True)
class Sum:
    """A column over all requests: its tokens (null: nowhere observed), and of how many it is known."""

    name: str
    words: str
    tokens: float | None
    observed: int


@dataclass(frozen=True)
class Funnel:
    """Every column's sum in the order of the funnel; `requests` are all."""

    stages: tuple[Sum, ...]
    beside: tuple[Sum, ...]
    requests: int
    empty: str | None = None


def data(run: Run) -> Funnel:
    """The funnel's columns, summed over all requests."""
    import polars as pl

    from kvtrace.analyses.hit_funnel import table as cached

    names = [*STAGES, *BESIDE]
    sums = pl.scan_parquet(cached(run)).select(
        pl.len().alias("requests"),
        *(pl.col(name).cast(pl.Float64).sum().name.suffix("/sum") for name in names),
        *(pl.col(name).count().name.suffix("/count") for name in names),
    )
    (row,) = sums.collect().to_dicts()

    def summed(words: dict[str, str]) -> tuple[Sum, ...]:
        return tuple(
            Sum(name, text, row[f"{name}/sum"] if row[f"{name}/count"] else None, row[f"{name}/count"])
            for name, text in words.items()
        )

    stages = summed(STAGES)
    seen = any(stage.observed for stage in stages)
    return Funnel(stages, summed(BESIDE), row["requests"], None if seen else _NOTHING)


def draw(frames: Funnel) -> go.Figure:
    """One bar a stage or loss; a bar of nothing is left out, one that nobody observed says so."""
    if frames.empty:
        return sentence(frames.empty)
    shown = [stage for stage in frames.stages if stage.tokens or not stage.name.startswith("lost_")]
    labels = [stage.words for stage in shown]
    figure = blank(height=26 * len(shown) + 96, bargap=0.3)
    figure.update_layout(
        showlegend=False,
        xaxis=axis("tokens"),
        yaxis=axis(
            autorange="reversed", showgrid=False, type="category", categoryorder="array", categoryarray=labels
        ),
    )
    figure.add_bar(
        orientation="h",
        y=labels,
        x=[stage.tokens or 0 for stage in shown],
        marker={"color": [_color(stage.name) for stage in shown]},
        text=["" if stage.tokens is not None else NOT_OBSERVED for stage in shown],
        textposition="outside",
        cliponaxis=False,
        customdata=[
            [
                plain(stage.words),
                plain(f"{count(stage.tokens)} tokens"),
                plain(_known(stage, frames.requests)),
            ]
            for stage in shown
        ],
        hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
    )
    return figure


def _color(name: str) -> str:
    return _COLORS.get(name, _LOSS) if name.startswith("lost_") else _STAGE


def _known(stage: Sum, requests: int) -> str:
    return f"known of {stage.observed:,} of {many(requests, 'request')}"


def notes(frames: Funnel) -> tuple[str, ...]:
    """Which stages are not known of some requests: their bars must not be subtracted from others."""
    stages = [stage for stage in frames.stages if not stage.name.startswith("lost_")]
    partly = [
        f"{stage.words} ({stage.observed:,})" for stage in stages if 0 < stage.observed < frames.requests
    ]
    never = [stage.words for stage in stages if not stage.observed]
    said = []
    if partly:
        said.append(
            f"Known of some of the {many(frames.requests, 'request')} only: {'; '.join(partly)}. Bars of "
            "different requests cannot be subtracted from each other; the losses are those of requests of "
            "which both ends are known."
        )
    if never:
        said.append(f"Not observed of any request: {'; '.join(never)}.")
    return tuple(said)


def table(frames: Funnel) -> Table | None:
    """The numbers of the bars, and what they are measured against."""
    prompts = next(entry.tokens for entry in frames.beside if entry.name == "prompt_tokens")
    rows = tuple(
        (
            f"{NONE} {entry.words}" if entry.name.startswith("lost_") else entry.words,
            count(entry.tokens),
            share(entry.tokens, prompts),
            count(entry.observed),
            count(frames.requests - entry.observed),
        )
        for entry in (*frames.stages, *frames.beside)
    )
    head = ("", "tokens", "of the prompts", "requests known", "not observed")
    caption = "A dash marks what was lost after the stage above it. Shares are of all known prompts."
    return Table(head, rows, caption)
