"""Bubbles: what lookups asked for against what they found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.panels import _palette
from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import count, duration, many, plain, share, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "How much of what was asked for did lookups find?"
READING = (
    "Each bubble is all lookups with the same question and answer. On the diagonal everything was found, on "
    "the floor nothing."
)
MOST_POINTS = 1500
_HOVER = "<b>%{customdata[0]}</b><br>found %{y:,} of %{x:,} tokens<br>median %{customdata[1]}<extra></extra>"
_NOTHING = (
    "No lookup outside the GPU was recorded. The cache's own spans would fill this (LMCache: lmcache server "
    "--enable-tracing --otlp-endpoint), or any span with kvtrace.op = lookup."
)

_CELLS = """
SELECT
    (requested_tokens // $step) * $step AS requested_tokens, (found_tokens // $step) * $step AS found_tokens,
    outcome, count(*) AS lookups, round(median(TRY(end_ns - start_ns))) AS median_ns
FROM lookup
WHERE requested_tokens IS NOT NULL AND found_tokens IS NOT NULL
GROUP BY ALL
ORDER BY lookups DESC, requested_tokens, found_tokens, outcome
"""

_OUTCOMES = """
SELECT
    outcome, reason, count(*) AS lookups, sum(requested_tokens)::DOUBLE AS requested_tokens,
    sum(found_tokens)::DOUBLE AS found_tokens,
    sum(requested_tokens) FILTER (WHERE found_tokens IS NOT NULL)::DOUBLE AS answered_tokens,
    count(*) FILTER (WHERE found_tokens IS NULL) AS found_unknown,
    count(*) FILTER (WHERE requested_tokens IS NULL) AS requested_unknown,
    count(*) FILTER (WHERE end_ns IS NULL) AS open, round(median(TRY(end_ns - start_ns))) AS median_ns
FROM lookup
GROUP BY ALL
ORDER BY lookups DESC, outcome, reason
"""
"""Sums leave as doubles: no number from outside can be too large for them."""


@dataclass(frozen=True)
class Lookups:
    """Lookups by (asked, found, outcome), both rounded down to `step` tokens, and by outcome and reason."""

    cells: pl.DataFrame
    outcomes: pl.DataFrame
    step: int = 1
    empty: str | None = None


def data(run: Run) -> Lookups:
    """What lookups asked for, and what they found."""
    outcomes = run.connection().sql(_OUTCOMES).pl()
    step, cells = 1, run.connection().sql(_CELLS, params={"step": 1}).pl()
    while cells.height > MOST_POINTS:
        step = 16 if step == 1 else step * 2
        cells = run.connection().sql(_CELLS, params={"step": step}).pl()
    return Lookups(cells, outcomes, step, None if outcomes.height else _NOTHING)


def draw(frames: Lookups) -> go.Figure:
    """Bubbles by outcome, and the diagonal."""
    if frames.empty:
        return sentence(frames.empty)
    if not frames.cells.height:
        return sentence("No lookup said both what it asked for and what it found; the table counts them.")
    cells = frames.cells
    largest = max(cells["requested_tokens"].to_list() + cells["found_tokens"].to_list() + [1])
    room = [-0.04 * largest, 1.06 * largest]
    figure = blank(height=430)
    figure.update_layout(
        xaxis=axis("tokens asked for", range=room),
        yaxis=axis("tokens found", range=room),
        legend={"itemsizing": "constant"},
    )
    figure.add_scatter(
        x=[0, largest],
        y=[0, largest],
        mode="lines",
        name="everything found",
        hoverinfo="skip",
        line={"dash": "dot", "width": 1.5, "color": "#8b93a1"},
    )
    order = list(_palette.OUTCOMES)
    outcomes = set(cells["outcome"].to_list())
    for outcome in sorted(outcomes, key=lambda name: (order.index(name or "unknown"), name is None)):
        _bubbles(
            figure, cells.filter(pl.col("outcome").eq_missing(outcome)), outcome, cells["lookups"].to_list()
        )
    return figure


def _bubbles(figure: go.Figure, cells: pl.DataFrame, outcome: str | None, lookups: list[int]) -> None:
    """The bubbles of one outcome; their area grows with the number of lookups."""
    import numpy as np

    grown = (cells["lookups"].to_numpy() - 1) / max(1, max(lookups) - 1)
    figure.add_scatter(
        x=cells["requested_tokens"].to_numpy(),
        y=cells["found_tokens"].to_numpy(),
        mode="markers",
        cliponaxis=False,
        name=plain(outcome or "outcome not observed"),
        marker={
            "color": _palette.OUTCOMES[outcome or "unknown"],
            "opacity": 0.78,
            "line": {"width": 0},
            "size": 7 + 33 * np.sqrt(grown),
        },
        customdata=[
            [many(number, "lookup"), duration(ns)]
            for number, ns in cells.select("lookups", "median_ns").iter_rows()
        ],
        hovertemplate=_HOVER,
    )


def notes(frames: Lookups) -> tuple[str, ...]:
    """What the picture rounds, and what it cannot show."""
    said = []
    if frames.step > 1:
        said.append(f"Many different answers: both are rounded down to multiples of {frames.step:,} tokens.")
    missing = frames.outcomes.select(pl.col("found_unknown", "requested_unknown").sum())
    for column, words in (("found_unknown", "what was found"), ("requested_unknown", "what was asked for")):
        number = int(missing[column][0]) if frames.outcomes.height else 0
        if number:
            said.append(f"{many(number, 'lookup')} did not say {words}: in the table, not in the picture.")
    return tuple(said)


def table(frames: Lookups) -> Table | None:
    """Lookups by outcome."""
    if frames.empty:
        return None
    rows = []
    for row in frames.outcomes.head(20).iter_rows(named=True):
        name = visible(row["outcome"]) + (f": {visible(row['reason'])}" if row["reason"] else "")
        rows.append(
            (
                name,
                count(row["lookups"]),
                count(row["requested_tokens"]),
                count(row["found_tokens"]),
                share(row["found_tokens"], row["answered_tokens"]),
                duration(row["median_ns"]),
            )
        )
    head = ("outcome", "lookups", "tokens asked for", "tokens found", "found of asked", "median time")
    return Table(head, tuple(rows))
