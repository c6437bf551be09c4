"""Bars: of the prompt tokens in each place, how many existed, were visible, selected, loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import count, many, plain, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "What existed, was visible, was selected and was loaded?"
READING = (
    "Prompt tokens by the best place that had them. A short bar after a long one is what was lost there: "
    "tokens that existed and nobody could see, or were seen and not loaded. Tokens that nobody watched are "
    "in no bar."
)
_NOTHING = (
    "No keys of requests were recorded. LMCache's --lookup-hash-log-dir or Dynamo's request trace would fill "
    "this."
)
WORDS = ("exists", "visible", "selected", "loaded")
COLORS = {"exists": "#7c8aa0", "visible": "#56b4e9", "selected": "#0072b2", "loaded": "#009e73"}
"""Event -> colour."""


@dataclass(frozen=True)
class FourEvents:
    """Tokens a place and event, what was lost in one place and computed again, and how many requests."""

    places: pl.DataFrame
    lost: pl.DataFrame
    requests: int
    empty: str | None = None


def data(run: Run, *, top: int = 10) -> FourEvents:
    """Tokens of all requests by place; the requests that lost the most of what existed."""
    from kvtrace.analyses.four_events import four_events

    rows = four_events(run)
    happened = {word: pl.col("tokens").filter(pl.col(f"{word}_ns").is_not_null()).sum() for word in WORDS}
    watched = {
        f"{word}_unwatched": pl.col("tokens").filter(pl.col(f"{word}_evidence").is_null()).sum()
        for word in WORDS
    }
    places = rows.filter(pl.col("tier").is_not_null()).group_by("tier", "locality").agg(**happened, **watched)
    missed = rows.filter(
        pl.col("exists_ns").is_not_null(),
        pl.col("loaded_ns").is_null(),
        pl.col("loaded_evidence").is_not_null(),
    )
    lost = missed.sort("tokens", descending=True, nulls_last=True, maintain_order=True).head(top)
    return FourEvents(
        places.sort("locality", "tier", nulls_last=True), lost, rows["request_id"].n_unique(),
        None if rows.height else _NOTHING,
    )  # fmt: skip


def _place(row: dict[str, Any]) -> str:
    return f"{visible(row['tier'])}, {row['locality'] or 'engine not observed'}"


def draw(frames: FourEvents) -> go.Figure:
    """Four bars a place."""
    if frames.empty:
        return sentence(frames.empty)
    rows = frames.places.to_dicts()
    if not rows:
        return sentence("Keys were asked for, and no copy of one was seen before it was computed.")
    figure = blank(height=90 * len(rows) + 120, barmode="group", bargap=0.3)
    figure.update_layout(
        xaxis=axis("prompt tokens", rangemode="tozero"),
        yaxis=axis(autorange="reversed", showgrid=False, type="category"),
    )
    for word in WORDS:
        figure.add_bar(
            orientation="h",
            name=word,
            y=[plain(_place(row)) for row in rows],
            x=[row[word] for row in rows],
            marker={"color": COLORS[word]},
            hovertemplate=f"<b>%{{y}}</b><br>%{{x:,}} tokens {word}<extra></extra>",
        )
    return figure


def notes(frames: FourEvents) -> tuple[str, ...]:
    """What existed elsewhere and was computed again, and what nobody watched."""
    said = []
    remote = sum(frames.places.filter(pl.col("locality") == "remote")["exists"].to_list())
    if remote:
        said.append(
            f"{count(remote)} tokens existed, as was recorded or follows, only on another engine than the "
            "one that served them."
        )
    for word in WORDS:
        unwatched = sum(frames.places[f"{word}_unwatched"].to_list())
        if unwatched:
            said.append(f"Of {count(unwatched)} tokens nobody watched whether they were {word}.")
    return tuple(said)


def table(frames: FourEvents) -> Table | None:
    """What existed and was not loaded."""
    rows = tuple(
        (
            visible(row["request_id"]), _place(row), _state(row, "visible"), _state(row, "selected"),
            count(row["first_position"]), count(row["tokens"]),
        )
        for row in frames.lost.iter_rows(named=True)
    )  # fmt: skip
    head = ("request", "where it was", "visible", "selected", "from key", "tokens")
    caption = f"The most that existed and was not loaded, of {many(frames.requests, 'request')}."
    return Table(head, rows, caption, names=4) if rows else None


def _state(row: dict[str, Any], word: str) -> str:
    who = row[f"{word}_evidence"]
    if who is None:
        return "not observed"
    return f"{'no' if row[f'{word}_ns'] is None else 'yes'} ({who})"
