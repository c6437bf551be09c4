"""Bars: how far each number that an engine reports of itself lies from what was measured, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.panels._card import Story, Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NOT_OBSERVED, count, duration, listed, many, plain, size, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import polars as pl

    from kvtrace.run import Run

TITLE = "Do the engine's own numbers say what happened?"
READING = (
    "A bar a number that an engine reports of itself, against what was measured: to the right it reports "
    "more, to the left less; green agrees. Bars longer than twice the measured are cut there. Below stands "
    "what each difference consists of."
)
_NOTHING = (
    "No engine's number stands beside a measured one. Pages of metrics would fill this (kvtrace collect "
    "--metrics, or pages of /metrics kept in files), in a run that kvtrace run recorded."
)
MOST = 2.0
"""Longer bars are cut, in parts of what was measured: a time may be wrong by years."""
_AGREES, _DIFFERS, _UNEXPLAINED = "#009e73", "#e69f00", "#d55e00"
_WORDS = {_AGREES: "agrees", _DIFFERS: "differs, explained", _UNEXPLAINED: "differs, unexplained"}


@dataclass(frozen=True)
class EngineNumbers:
    """The rows of the question, as they are."""

    rows: pl.DataFrame
    empty: str | None = None


def data(run: Run) -> EngineNumbers:
    """Every number, reported and measured."""
    from kvtrace.analyses.engine_numbers import engine_numbers

    rows = engine_numbers(run)
    return EngineNumbers(rows, None if rows["difference"].count() else _NOTHING)


def _value(number: int | None, unit: str) -> str:
    if number is None:
        return NOT_OBSERVED
    return {"ns": duration, "bytes": size}.get(unit, count)(number)


def _length(row: dict[str, Any]) -> float:
    """The difference in parts of what was measured, cut; of nothing it is the longest."""
    whole = abs(row["measured"])
    part = row["difference"] / whole if whole else float("inf") * (row["difference"] or 0)
    return 100 * max(-MOST, min(MOST, part if part == part else 0.0))


def _color(row: dict[str, Any]) -> str:
    if row["agrees"]:
        return _AGREES
    return _UNEXPLAINED if "unexplained" in (row["reason"] or "") else _DIFFERS


def draw(frames: EngineNumbers) -> go.Figure:
    """A bar a number, in the order of the table."""
    if frames.empty:
        return sentence(frames.empty)
    rows = [row for row in frames.rows.iter_rows(named=True) if row["difference"] is not None]
    labels = [plain(row["number"]) for row in rows]
    figure = blank(height=26 * len(rows) + 110, barmode="overlay", bargap=0.3)
    figure.update_layout(
        xaxis=axis(
            "reported - measured, of what was measured (%)", range=[-104 * MOST, 104 * MOST], zeroline=True
        ),
        yaxis=axis(
            autorange="reversed", showgrid=False, type="category", categoryorder="array", categoryarray=labels
        ),
    )
    for color, words in _WORDS.items():
        if mine := [row for row in rows if _color(row) == color]:
            figure.add_bar(
                orientation="h",
                name=words,
                y=[plain(row["number"]) for row in mine],
                x=[_length(row) for row in mine],
                marker={"color": color, "line": {"color": color, "width": 2}},
                customdata=[[plain(row["number"]), *map(plain, _told(row))] for row in mine],
                hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
            )
    return figure


def _told(row: dict[str, Any]) -> tuple[str, str]:
    sides = " , ".join(f"{name} {_value(row[name], row['unit'])}" for name in ("reported", "measured"))
    return sides.replace(" ,", ","), row["reason"] or _WORDS[_AGREES]


def notes(frames: EngineNumbers) -> tuple[str, ...]:
    """How many agree, and which do not for a reason that nobody saw."""
    if frames.empty:
        return ()
    rows = [row for row in frames.rows.iter_rows(named=True) if row["difference"] is not None]
    agree = sum(row["agrees"] for row in rows)
    said = [f"{many(agree, 'number')} of {len(rows):,} {'agrees' if agree == 1 else 'agree'}."]
    if unexplained := [row["number"] for row in rows if _color(row) == _UNEXPLAINED]:
        said.append(f"Unexplained, in part or whole: {listed(unexplained)}.")
    if missing := [row["number"] for row in frames.rows.iter_rows(named=True) if row["difference"] is None]:
        said.append(f"Not told or not measured: {listed(missing)}.")
    return tuple(said)


def stories(frames: EngineNumbers) -> tuple[Story, ...]:
    """What each difference consists of."""
    rows = [row for row in frames.rows.iter_rows(named=True) if row["agrees"] is False]
    return tuple(
        Story(visible(row["number"]), (_both(row), f"{visible(row['reason'], 400)}.")) for row in rows
    )


def _both(row: dict[str, Any]) -> str:
    reported, measured = (_value(row[name], row["unit"]) for name in ("reported", "measured"))
    return f"Reported {reported}, measured {measured} ({visible(row['basis'], 200)})."


def table(frames: EngineNumbers) -> Table | None:
    """Every number and what was measured; of null what would have recorded it."""
    if frames.empty:
        return None
    rows = tuple(
        (
            visible(row["number"]),
            visible(row["basis"], 200),
            *(_value(row[name], row["unit"]) for name in ("reported", "measured", "difference")),
            count(row["requests"]),
        )
        for row in frames.rows.iter_rows(named=True)
    )
    head = ("number", "measured by", "reported", "measured", "difference", "requests")
    caption = "Difference: reported - measured. Times agree within a millisecond a request, or 1 %."
    return Table(head, rows, caption, names=2)
