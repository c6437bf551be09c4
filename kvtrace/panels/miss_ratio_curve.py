"""Step lines: what a tier would hit if it were larger, or smaller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from kvtrace.errors import UsageError
from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NONE, NOT_OBSERVED, count, many, plain, share, size, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "What would a larger cache hit?"
READING = (
    "To the right how much a cache may hold, upwards the share of what was asked for that an LRU of it would "
    "hit. Where the line is flat more room gains nothing; it ends at a cache that never evicts."
)
_NOTHING = (
    "No keys that requests asked for were recorded. LMCache's hash log (--lookup-hash-log-dir), Dynamo's "
    "request trace or kvtrace's own instruments (kvtrace run) would fill this."
)
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7c8aa0")
_LINE = ("key_space", "tenant")


@dataclass(frozen=True)
class Curve:
    """A line's points (by key space and tenant), the tiers in whose bytes they are, what is drawn."""

    points: pl.DataFrame
    tiers: pl.DataFrame
    lines: int
    unit: str
    empty: str | None = None


def data(run: Run, *, points: int = 64, lines: int = 7) -> Curve:
    """Hits against capacity; of many key spaces and tenants those that asked for the most keys.

    Raises:
        UsageError: `points` is below 2, or `lines` not between 1 and 20.
    """
    from kvtrace.analyses.miss_ratio_curve import miss_ratio_curve

    if not 1 <= lines <= 20:
        raise UsageError(f"miss_ratio_curve: lines must be between 1 and 20, not {lines}.")
    rows = miss_ratio_curve(run, points=points)
    drawn = rows.unique([*_LINE, "capacity_keys"], keep="first", maintain_order=True)
    told = drawn["hit_tokens"].null_count() == 0
    part, whole = ("hit_tokens", "asked_tokens") if told else ("hit_keys", "asked_keys")
    known = drawn["capacity_tokens"].null_count() == 0
    most = drawn.group_by(_LINE).agg(pl.col("asked_keys").first()).sort("asked_keys", *_LINE, descending=True)
    shown = drawn.join(most.head(lines).select(_LINE), on=_LINE, how="semi", nulls_equal=True)
    shown = shown.with_columns(
        capacity=pl.col("capacity_tokens" if known else "capacity_keys"),
        share=100 * pl.col(part) / pl.when(pl.col(whole) > 0).then(whole),
    )
    whole_cache = rows.filter(pl.col("capacity_keys") == pl.col("capacity_keys").max().over("key_space"))
    sizes = pl.col("capacity_keys", "capacity_tokens", "capacity_bytes").first()
    last = whole_cache.group_by("tier", "component", "key_space", maintain_order=True).agg(
        sizes, pl.col("hit_keys", "asked_keys").sum()
    )
    unit = "tokens" if known else "keys"
    return Curve(shown, last, most.height, unit, None if rows.height else _NOTHING)


def draw(frames: Curve) -> go.Figure:
    """A line a key space and tenant."""
    if frames.empty:
        return sentence(frames.empty)
    figure = blank(height=340)
    title = f"{frames.unit} that it may hold"
    figure.update_layout(
        xaxis=axis(title, rangemode="tozero"), yaxis=axis("hit of what was asked for (%)", range=[0, 100])
    )
    groups = frames.points.group_by(_LINE, maintain_order=True)
    for number, ((space, tenant), rows) in enumerate(groups):
        name = plain(_name(space, tenant))
        figure.add_scatter(
            mode="lines+markers",
            line={"shape": "hv", "width": 1.8, "color": _COLORS[number % len(_COLORS)]},
            marker={"size": 4},
            name=name,
            x=[0, *rows["capacity"].to_list()],
            y=[0.0, *rows["share"].to_list()],
            hovertemplate=f"{name}<br>%{{y:.1f}} % with room for %{{x:,}} {frames.unit}<extra></extra>",
        )
    return figure


def _name(space: object, tenant: object) -> str:
    return visible(space) + ("" if tenant is None else f", tenant {visible(tenant)}")


def notes(frames: Curve) -> tuple[str, ...]:
    """What is left out, and where half of the gain ends."""
    if frames.empty:
        return ()
    said = []
    for (space, tenant), rows in frames.points.group_by(_LINE, maintain_order=True):
        best = rows["share"][-1]
        if best is None or best == 0:
            continue
        near = rows.filter(pl.col("share") >= 0.9 * best).row(0, named=True)
        said.append(
            f"{_name(space, tenant)}: at most {best:.1f} % can be hit; room for {count(near['capacity'])} "
            f"{frames.unit} reaches nine tenths of it."
        )
    drawn = frames.points.select(_LINE).n_unique()
    if drawn < frames.lines:
        said.append(f"Drawn are the {drawn} of {many(frames.lines, 'line')} with the most keys.")
    return tuple(said)


def table(frames: Curve) -> Table | None:
    """Each tier's size of a cache that never evicts."""
    rows = tuple(_row(row) for row in frames.tiers.iter_rows(named=True))
    head = ("tier", "component", "keys", "all keys", "tokens", "bytes", "hit")
    caption = "The room that a cache without eviction would fill, in each tier in which such keys lie."
    return Table(head, rows, caption, names=3) if rows else None


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        NOT_OBSERVED if row["tier"] is None else visible(row["tier"]),
        NONE if row["component"] is None else visible(row["component"]),
        visible(row["key_space"]),
        count(row["capacity_keys"]),
        count(row["capacity_tokens"]),
        size(row["capacity_bytes"]),
        share(row["hit_keys"], row["asked_keys"]),
    )
