"""Step lines: how many keys lie in which tier, over time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import polars as pl

from kvtrace.errors import UsageError
from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._origin import first_ns
from kvtrace.panels._text import NOT_OBSERVED, count, many, plain, size, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "What lies in which tier?"
READING = (
    "Keys of blocks that events brought and none took away yet, a line a tier and part. What lay there "
    "before the recording began is not seen. It is residency, never a hit."
)
_NOTHING = (
    "No events of keys that tell when they come and go were recorded. The engine's own would fill this "
    "(vLLM: --kv-events-config; Dynamo: its event plane), or LMCache's /status page."
)
COLORS = {
    "gpu": "#7c8aa0",
    "host": "#0072b2",
    "peer": "#8a63c4",
    "disk": "#e69f00",
    "object": "#009e73",
    "unknown": "#c9ccd1",
}
"""Tier -> colour."""
_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True)
class Residency:
    """The drawn points, pages without a time, the run's first record, and what is drawn."""

    points: pl.DataFrame
    pages: pl.DataFrame
    start_ns: int | None
    shown: str = "keys"
    empty: str | None = None


def data(run: Run, *, shown: Literal["keys", "tokens"] = "keys", most: int = 2000) -> Residency:
    """Keys or tokens by tier and component; of many changes the highest and the last of each stretch.

    Raises:
        UsageError: `shown` is neither, or `most` not between 100 and 20,000.
    """
    from kvtrace.analyses.residency import residency

    if shown not in ("keys", "tokens") or not 100 <= most <= 20_000:
        raise UsageError("residency: shown must be keys or tokens, most between 100 and 20000.")
    rows = residency(run, most=most)
    every = "(SELECT start_ns FROM span UNION ALL SELECT time_ns FROM block)"
    timed = pl.col("time_ns").is_not_null()
    first, empty = first_ns(run, of=every), None if rows.height else _NOTHING
    return Residency(rows.filter(timed), rows.filter(~timed), first, shown, empty)


def draw(frames: Residency) -> go.Figure:
    """One step line a tier and component."""
    if frames.empty:
        return sentence(frames.empty)
    if frames.points.is_empty():
        return sentence("Only pages without a time count what is there; the table has them.")
    zero = frames.start_ns or 0
    figure = blank(height=340)
    figure.update_layout(
        xaxis=axis("seconds after the run's first record"), yaxis=axis(frames.shown, rangemode="tozero")
    )
    drawn: dict[str, int] = {}
    for (tier, component), rows in frames.points.group_by("tier", "component", maintain_order=True):
        turn = drawn[str(tier)] = drawn.get(str(tier), -1) + 1
        figure.add_scatter(
            mode="lines",
            line={
                "shape": "hv",
                "width": 1.8,
                "color": COLORS.get(str(tier), COLORS["unknown"]),
                "dash": _DASHES[turn % len(_DASHES)],
            },
            name=plain(f"{tier}: {component or NOT_OBSERVED}"),
            x=((rows["time_ns"] - zero) / 1e9).to_list(),
            y=rows[frames.shown].to_list(),
            hovertemplate=f"%{{y:,}} {frames.shown}<br>after %{{x:.3f}} s<extra></extra>",
        )
    return figure


def notes(frames: Residency) -> tuple[str, ...]:
    """Where the line is broken, and where the records are derived."""
    said = []
    missing = frames.points.filter(pl.col(frames.shown).is_null()).height
    if missing:
        said.append(
            f"{many(missing, 'point')} without {frames.shown}: one of the keys there does not say its own."
        )
    derived = frames.points.filter(pl.col("evidence") == "derived")["component"].unique().sort().to_list()
    if derived:
        said.append(f"Derived, not said by the part itself: {', '.join(visible(name) for name in derived)}.")
    return tuple(said)


def table(frames: Residency) -> Table | None:
    """The most and the last of each, and what pages count."""
    rows = []
    for (tier, component), mine in frames.points.group_by("tier", "component", maintain_order=True):
        last = mine.row(-1, named=True)
        most = mine.sort("keys", descending=True)["keys"].to_list()[0]
        found = (count(last["keys"]), count(last["tokens"]), size(last["bytes"]))
        rows.append((visible(tier), visible(component), "events of keys", count(most), *found))
    for row in frames.pages.iter_rows(named=True):
        found = (count(row["keys"]), count(row["tokens"]), size(row["bytes"]))
        rows.append((visible(row["tier"]), visible(row["component"]), "status page", NOT_OBSERVED, *found))
    head = ("tier", "part", "counted by", "most keys", "keys at the end", "tokens", "bytes")
    caption = "A page counts objects: one a key, rank and object group."
    return Table(head, tuple(rows), caption, names=3) if rows else None
