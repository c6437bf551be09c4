"""Bars: of each tier's bytes those that were stored or moved for nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NONE, NOT_OBSERVED, count, listed, many, plain, share, size, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import polars as pl

    from kvtrace.run import Run

TITLE = "Which bytes lay in a tier or moved for nothing?"
READING = (
    "Bars are shares: never read, of all that was stored; the others, of what the first admission of each "
    "request loaded into the GPU. A byte may be in several of them."
)
_NOTHING = (
    "No store or load beside the GPU was recorded. kvtrace's own instruments inside an engine and its cache "
    "would fill this (kvtrace run), or any span with kvtrace.op = load or store and kvtrace.bytes."
)
_LOST = "SELECT coalesce(TRY_CAST(sum(count) AS BIGINT), 0) FROM loss WHERE cause <> 'duplicate'"
_KINDS = (
    ("never_read_bytes", "stored_bytes", "stored, never read", "#7c8aa0"),
    ("recomputed_bytes", "judged_bytes", "loaded, then recomputed", "#d55e00"),
    ("twice_bytes", "judged_bytes", "loaded twice", "#e69f00"),
    ("rounding_bytes", "judged_bytes", "moved because chunks are whole", "#56b4e9"),
)
"""Part, whole, its name, its colour."""


@dataclass(frozen=True)
class Waste:
    """The rows of the question, as they are, and how many records the run lost."""

    rows: pl.DataFrame
    lost: int = 0
    empty: str | None = None


def data(run: Run) -> Waste:
    """What each tier and component wasted."""
    from kvtrace.analyses.waste import waste

    rows = waste(run)
    ((lost,),) = run.connection().sql(_LOST).fetchall()
    return Waste(rows, lost, None if rows.height else _NOTHING)


def _name(row: dict[str, Any]) -> str:
    part = row["component"]
    return visible(row["tier"]) + (f" ({visible(part)})" if part is not None else "")


def draw(frames: Waste) -> go.Figure:
    """Four bars a tier and component."""
    if frames.empty:
        return sentence(frames.empty)
    rows = list(frames.rows.iter_rows(named=True))
    labels = [plain(_name(row)) for row in rows]
    figure = blank(height=96 * len(rows) + 110, barmode="group", bargap=0.25)
    figure.update_layout(
        xaxis=axis("of the bytes (%)", rangemode="tozero"),
        yaxis=axis(
            autorange="reversed", showgrid=False, type="category", categoryorder="array", categoryarray=labels
        ),
    )
    for part, whole, words, tint in _KINDS:
        figure.add_bar(
            orientation="h",
            name=words,
            y=labels,
            x=[100 * (row[part] or 0) / (row[whole] or 1) for row in rows],
            marker={"color": tint},
            text=[NOT_OBSERVED if row[part] is None else "" for row in rows],
            textposition="outside",
            cliponaxis=False,
            customdata=[
                [plain(_name(row)), f"{words}: {size(row[part])} of {size(row[whole])}"] for row in rows
            ],
            hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
        )
    return figure


def notes(frames: Waste) -> tuple[str, ...]:
    """What the bars do not know."""
    rows = list(frames.rows.iter_rows(named=True))
    said = []
    unread = [_name(row) for row in rows if row["stored_objects"] and row["never_read_objects"] is None]
    if unread:
        said.append(f"Nobody records what is read in {listed(unread)}: what was never read there is unknown.")
    if frames.lost and frames.rows["never_read_objects"].sum():
        said.append(f"{many(frames.lost, 'record')} were lost, reads perhaps: never read is at most this.")
    there = [row for row in rows if (row["never_read_bytes"] or 0) > (row["gone_unread_bytes"] or 0)]
    if there:
        left = sum(row["never_read_bytes"] - (row["gone_unread_bytes"] or 0) for row in there)
        said.append(f"{size(left)} that nobody read lay there still when the recording ended.")
    unjudged = [row for row in rows if row["loads"] and not row["judged_requests"]]
    if unjudged:
        said.append(
            f"Loads from {listed([_name(row) for row in unjudged])}: what became of them was not observed. "
            "They went to another tier, or what the engine used of them was not recorded."
        )
    return tuple(said)


def table(frames: Waste) -> Table | None:
    """The numbers of the bars."""
    rows = tuple(
        (
            visible(row["tier"]),
            NONE if row["component"] is None else visible(row["component"]),
            size(row["stored_bytes"]),
            _part(row, "never_read_bytes", "stored_bytes"),
            "no" if not row["loads"] else many(row["loads"], "load"),
            size(row["loaded_bytes"]),
            count(row["judged_requests"]),
            *(_part(row, part, whole) for part, whole, _, _ in _KINDS[1:]),
        )
        for row in frames.rows.iter_rows(named=True)
    )
    head = (
        "tier", "component", "stored", "never read", "loads", "loaded", "requests judged", "recomputed",
        "twice", "rounding",
    )  # fmt: skip
    caption = "Recomputed, twice and rounding: shares of what the judged requests' first admissions loaded."
    return Table(head, rows, caption, names=2) if rows else None


def _part(row: dict[str, Any], part: str, whole: str) -> str:
    if row[part] is None:
        return NOT_OBSERVED
    return f"{size(row[part])} ({share(row[part], row[whole])})"
