"""A bar a difference: how many tokens were read across it or stored in vain, coloured by who keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NONE, count, listed, many, plain, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import polars as pl

    from kvtrace.run import Run

TITLE = "May this state be reused at all?"
READING = (
    "A bar a field in which a writer and a reader differ: tokens that were read all the same, or that were "
    "stored under a key that the other never asks for. Its colour says who keeps such state from being read: "
    "the key, the backend, or nobody. What fits has no bar."
)
_NOTHING = (
    "Nothing here says what state was written, read or asked for by whom. kvtrace's own instruments inside "
    "the engines and the cache's server would fill this (kvtrace run), or KV events and hash logs (LMCache: "
    "lmcache server --lookup-hash-log-dir)."
)
COLORS = {"nobody": "#d55e00", "backend": "#0072b2", "key": "#e69f00", None: "#a9b0bb"}
"""Who keeps a difference from being read -> its colour, the worst first."""
_WORDS = {"nobody": "nobody looks at it", "backend": "the backend compares it", "key": "the key holds it",
          None: "not known who looks at it"}  # fmt: skip
_WHAT = {"read_as_written": "read across", "written_can_be_asked": "stored in vain"}
_HELD, _LONGEST = "#009e73", 90


@dataclass(frozen=True)
class Compatibility:
    """The violated rows, most tokens first, of which the first are drawn, and the others."""

    broken: pl.DataFrame
    others: pl.DataFrame
    most: int
    empty: str | None = None


def data(run: Run, *, most: int = 20) -> Compatibility:
    """The rows of the question; at most so many differences are drawn."""
    import polars as pl

    from kvtrace.analyses.compatibility import compatibility

    rows = compatibility(run)
    broken = rows.filter(pl.col("status") == "violated").sort(
        "tokens", "invariant", "field", "writer", "reader", "detail", descending=[True] + [False] * 5,
        nulls_last=True,
    )  # fmt: skip
    others = rows.filter(pl.col("status") != "violated")
    silent = broken.is_empty() and others["status"].is_in(["unobserved", "not_applicable"]).all()
    return Compatibility(broken, others, most, _NOTHING if silent else None)


def _name(row: dict[str, Any]) -> str:
    if row["field"] is None:
        return str(row["invariant"]).replace("_", " ")
    sides = f"{visible(row['writer'], 24)} \N{RIGHTWARDS ARROW} {visible(row['reader'], 24)}"
    return f"{_WHAT.get(row['invariant'], row['invariant'])}: {visible(row['field'])} {sides}"


def draw(frames: Compatibility) -> go.Figure:
    """Bars by who keeps the difference; what fits or cannot be judged has its word and no length."""
    if frames.empty:
        return sentence(frames.empty)
    broken = list(frames.broken.head(frames.most).iter_rows(named=True))
    others = list(frames.others.iter_rows(named=True))
    names = {number: plain(_name(row), _LONGEST) for number, row in enumerate(broken + others)}
    figure = blank(height=40 * len(names) + 110, barmode="overlay", bargap=0.3)
    figure.update_layout(
        xaxis=axis("tokens", rangemode="tozero"),
        yaxis=axis(
            autorange="reversed", showgrid=False, tickmode="array", tickvals=list(names),
            ticktext=list(names.values()),
        ),
    )  # fmt: skip
    numbered = list(enumerate(broken))
    for who, color in COLORS.items():
        if mine := [(number, row) for number, row in numbered if row["enforced_by"] == who]:
            _bars(figure, mine, _WORDS[who], color)
    if others:
        _bars(figure, list(enumerate(others, len(broken))), "no difference seen", _HELD)
    return figure


def _bars(figure: go.Figure, rows: list[tuple[int, dict[str, Any]]], name: str, color: str) -> None:
    figure.add_bar(
        orientation="h",
        y=[number for number, _ in rows],
        x=[row["tokens"] or 0 for _, row in rows],
        name=name,
        marker={"color": color},
        text=[
            f"{count(row['tokens'])} tokens" if row["status"] == "violated"
            else plain(f"{row['status'].replace('_', ' ')} \N{EN DASH} {row['detail']}", _LONGEST)
            for _, row in rows
        ],
        textposition="auto",
        cliponaxis=False,
        customdata=[[plain(_name(row), _LONGEST), plain(row["detail"], 300)] for _, row in rows],
        hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
    )  # fmt: skip


def notes(frames: Compatibility) -> tuple[str, ...]:
    """What differs and nobody looks at, and what is not drawn."""
    if frames.empty:
        return ()
    rows = list(frames.broken.iter_rows(named=True))
    loose = sorted({str(row["field"]) for row in rows if row["enforced_by"] == "nobody"})
    said = [f"Nobody looks at {listed([visible(field) for field in loose])}."] if loose else []
    if len(rows) > frames.most:
        said.append(f"{many(len(rows), 'difference')}: the first {frames.most:,} are drawn.")
    return tuple(said)


def table(frames: Compatibility) -> Table | None:
    """Every difference drawn, with who keeps it."""
    if frames.empty or frames.broken.is_empty():
        return None
    rows = tuple(
        (
            visible(row["field"]),
            *(visible(row[side], 40) for side in ("writer", "reader")),
            _WHAT.get(row["invariant"], visible(row["invariant"])),
            row["enforced_by"] or NONE,
            count(row["tokens"]),
        )
        for row in frames.broken.head(frames.most).iter_rows(named=True)
    )
    head = ("field", "where written", "where read", "what became of it", "kept by", "tokens")
    return Table(head, rows, "kvtrace analyze compatibility has every row, and its sentence.", names=5)
