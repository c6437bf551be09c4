"""Bars: what each tier had of the prompts, and what was used of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NONE, NOT_OBSERVED, count, plain, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import polars as pl

    from kvtrace.run import Run

TITLE = "Which tier did the tokens come from?"
READING = (
    "Two bars a tier: prompt tokens that it had, and those that were used, each token credited to the "
    "deepest tier it came from. What is missing between both was shadowed by the GPU, declined or lost."
)
_NOTHING = (
    "No GPU hit and no lookup with its answer was recorded. kvtrace's own instruments inside an engine would "
    "fill this (kvtrace run), or the cache's own spans (LMCache: lmcache server --enable-tracing "
    "--otlp-endpoint). Object counts of a status page are residency, not hits."
)
_TERMS = {
    "of_prompt": ("loaded_tokens", "prompt_tokens"),
    "of_queried": ("found_tokens", "queried_tokens"),
    "of_found": ("loaded_tokens", "found_tokens"),
}
"""Ratio -> what it is of what."""
_FOUND, _LOADED = "#a3a9c9", "#009e73"


@dataclass(frozen=True)
class HitRatio:
    """The rows of the question, as they are."""

    rows: pl.DataFrame
    empty: str | None = None


def data(run: Run) -> HitRatio:
    """Hits by tier and component."""
    from kvtrace.analyses.hit_ratio import hit_ratio

    rows = hit_ratio(run)
    return HitRatio(rows, None if rows.height else _NOTHING)


def _name(row: dict[str, Any]) -> str:
    part = row["component"]
    return visible(row["tier"]) + (f" ({visible(part)})" if part is not None else "")


def draw(frames: HitRatio) -> go.Figure:
    """Found and used, side by side."""
    if frames.empty:
        return sentence(frames.empty)
    rows = list(frames.rows.iter_rows(named=True))
    labels = [plain(_name(row)) for row in rows]
    figure = blank(height=58 * len(rows) + 110, barmode="group", bargap=0.3)
    figure.update_layout(
        xaxis=axis("tokens", rangemode="tozero"),
        yaxis=axis(
            autorange="reversed", showgrid=False, type="category", categoryorder="array", categoryarray=labels
        ),
    )
    for column, ratio, words, tint in (
        ("found_tokens", "of_queried", "found", _FOUND),
        ("loaded_tokens", "of_prompt", "used", _LOADED),
    ):
        of = "asked for" if ratio == "of_queried" else "of the prompts"
        figure.add_bar(
            orientation="h",
            name=words,
            y=labels,
            x=[row[column] or 0 for row in rows],
            marker={"color": tint},
            text=[NOT_OBSERVED if row[column] is None else "" for row in rows],
            textposition="outside",
            cliponaxis=False,
            customdata=[
                [
                    plain(_name(row)),
                    plain(f"{words} {count(row[column])} tokens"),
                    plain(f"{of}: {_share(row, ratio)}"),
                ]
                for row in rows
            ],
            hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
        )
    return figure


def _share(row: dict[str, Any], ratio: str) -> str:
    """A ratio of a row in percent; of nothing there is none."""
    part, whole = _TERMS[ratio]
    if row[whole] == 0 and row[part] is not None:
        return NONE
    return NOT_OBSERVED if row[ratio] is None else f"{100 * row[ratio]:.1f} %"


def notes(frames: HitRatio) -> tuple[str, ...]:
    """Why a tier has no number of used tokens."""
    unknown = [_name(row) for row in frames.rows.iter_rows(named=True) if row["loaded_tokens"] is None]
    if not unknown:
        return ()
    why = (
        "Either nobody saw what the engine used, or some request had a find in several tiers, of which only "
        "a part was used."
    )
    return (f"Used tokens of {', '.join(unknown)}: {NOT_OBSERVED}. {why}",)


def table(frames: HitRatio) -> Table | None:
    """The numbers of the bars, and their ratios."""
    rows = tuple(
        (
            visible(row["tier"]),
            NONE if row["component"] is None else visible(row["component"]),
            *(count(row[f"{name}_tokens"]) for name in ("prompt", "queried", "found", "loaded")),
            *(_share(row, ratio) for ratio in _TERMS),
        )
        for row in frames.rows.iter_rows(named=True)
    )
    head = (
        "tier", "component", "prompt tokens", "asked for", "found", "used", "used of the prompts",
        "found of asked", "used of found",
    )  # fmt: skip
    caption = (
        "All sums are over the requests whose used tokens are known, without those that a handoff served. "
        "The GPU uses what it has in place."
    )
    return Table(head, rows, caption, names=2)
