"""A band an invariant of the lock contract: its status in colour and in words, violations as dots in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NONE, listed, many, plain, visible
from kvtrace.schema.vocabulary import FIRST_DATE_NS

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import polars as pl

    from kvtrace.run import Run

TITLE = "May what was found vanish before it is read?"
READING = (
    "One band an invariant, the broken ones first, over the time that was recorded; dots are violations. "
    "Inconclusive: it holds as far as was seen, but records are missing or only a part was watched. "
    "Unobserved: the records that would tell were not made."
)
_NOTHING = (
    "Nothing that has a contract was recorded: no lock of a cache, no transfer, no block that a transfer "
    "holds. kvtrace's own instruments inside an engine or a cache's server would fill this (kvtrace run), or "
    "any span with kvtrace.op = load or store."
)
COLORS = {
    "violated": "#d55e00",
    "warning": "#e69f00",
    "inconclusive": "#cdb400",
    "pass": "#009e73",
    "unobserved": "#a9b0bb",
    "not_applicable": "#d5d9e0",
}
"""What is shown, the worst first; a violation that a time to live or a forced clear explains is `warning`."""
_WORDS = {"warning": "violated: bound to happen", "not_applicable": "not applicable"}
_DOT, _LONGEST = "#1c222b", 100

_RECORDED = """
WITH seen AS (
    SELECT start_ns AS first_ns, greatest(start_ns, end_ns) AS last_ns FROM span WHERE op IS NOT NULL
    UNION ALL SELECT time_ns, time_ns FROM block
)
SELECT coalesce(min(first_ns) FILTER (first_ns >= $dated_ns), min(first_ns)), max(last_ns)
FROM seen  -- rows of 1970 are of a clock without a date
"""


@dataclass(frozen=True)
class LockContract:
    """A row an invariant with its worst status and first violation; the violations; what was recorded."""

    board: pl.DataFrame
    dots: pl.DataFrame
    start_ns: int
    end_ns: int
    empty: str | None = None


def data(run: Run, *, bound_s: float = 60.0, most: int = 500) -> LockContract:
    """Every invariant with its worst status; of many violations the first stay as dots.

    Raises:
        UsageError: `bound_s` is not above 0.
    """
    import polars as pl

    from kvtrace.analyses.lock_contract import lock_contract

    found = lock_contract(run, bound_s=bound_s)
    broken = pl.col("status") == "violated"
    warned = broken & (pl.col("severity") == "warning")
    told = found.with_columns(shown=pl.when(warned).then(pl.lit("warning")).otherwise("status"))
    order = {name: at for at, name in enumerate(COLORS)}
    place = pl.col("shown").replace_strict(order, return_dtype=pl.Int64)
    rows = told.with_columns(place=place).sort("place", "time_ns", "key", nulls_last=True)
    board = rows.group_by("invariant", maintain_order=True).agg(
        pl.first("shown", "place", "detail", "key", "time_ns"),
        violations=broken.sum(),
    )
    dots = rows.filter(broken, pl.col("time_ns").is_not_null()).sort("time_ns").head(most)
    ((first, last),) = run.connection().sql(_RECORDED, params={"dated_ns": FIRST_DATE_NS}).fetchall()
    silent = board["shown"].is_in(["unobserved", "not_applicable"]).all()
    board = board.sort("place", "invariant")
    return LockContract(board, dots, first or 0, last or first or 0, _NOTHING if silent else None)


def _name(row: dict[str, Any]) -> str:
    return str(row["invariant"]).replace("_", " ")


def _word(status: str) -> str:
    return _WORDS.get(status, status)


def draw(frames: LockContract) -> go.Figure:
    """Bands by status, with the word and what was seen on them; dots where a violation was."""
    if frames.empty:
        return sentence(frames.empty)
    rows = list(frames.board.iter_rows(named=True))
    names = [_name(row) for row in rows]
    latest = max([frames.end_ns, *frames.dots["time_ns"].to_list()])
    length = max((latest - frames.start_ns) / 1e9, 1e-9)
    figure = blank(height=32 * len(rows) + 110, barmode="overlay", bargap=0.16)
    figure.update_layout(
        xaxis=axis("seconds after the run's first record"),
        yaxis=axis(
            autorange="reversed", showgrid=False, type="category", categoryorder="array", categoryarray=names
        ),
    )
    for status, color in COLORS.items():
        if mine := [row for row in rows if row["shown"] == status]:
            figure.add_bar(
                orientation="h",
                y=[_name(row) for row in mine],
                x=[length] * len(mine),
                name=_word(status),
                marker={"color": color, "opacity": 0.85},
                text=[plain(f"{_word(status)} \N{EN DASH} {row['detail']}", _LONGEST) for row in mine],
                textposition="inside",
                insidetextanchor="start",
                textangle=0,
                insidetextfont={"color": _DOT},
                constraintext="none",
                customdata=[[plain(_name(row)), plain(row["detail"], 200)] for row in mine],
                hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
            )
    _dots(figure, frames)
    return figure


def _dots(figure: go.Figure, frames: LockContract) -> None:
    """Violations in time, under their own invariant."""
    rows = list(frames.dots.iter_rows(named=True))
    if rows:
        figure.add_scatter(
            mode="markers",
            marker={"color": _DOT, "size": 6, "symbol": "diamond"},
            name="violation",
            y=[_name(row) for row in rows],
            x=[(row["time_ns"] - frames.start_ns) / 1e9 for row in rows],
            customdata=[[plain(visible(row["key"], 40)), plain(row["detail"], 200)] for row in rows],
            hovertemplate="<b>key %{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
        )


def notes(frames: LockContract) -> tuple[str, ...]:
    """What is broken, what could not be told, and which dots are missing."""
    if frames.empty:
        return ()
    by: dict[str, list[str]] = {status: [] for status in COLORS}
    for row in frames.board.iter_rows(named=True):
        by[row["shown"]].append(_name(row))
    told = {
        "violated": "Violated",
        "warning": "Violated, and bound to happen by a time to live or a forced clear",
        "inconclusive": "Inconclusive",
    }
    said = [f"{what}: {listed(by[status])}." for status, what in told.items() if by[status]]
    violations = int(frames.board["violations"].sum())
    if violations > frames.dots.height:
        said.append(f"{violations:,} violations: the first {frames.dots.height:,} with a time are drawn.")
    return tuple(said) or (f"{many(len(by['pass']), 'invariant')} seen to hold, none violated.",)


def table(frames: LockContract) -> Table | None:
    """Every invariant with its first violation."""
    if frames.empty:
        return None
    rows = [
        (
            visible(_name(row)),
            _word(row["shown"]),
            visible(row["detail"], 200),
            NONE if row["key"] is None else visible(row["key"], 24),
            f"{row['violations']:,}",
            NONE if row["time_ns"] is None else f"{(row['time_ns'] - frames.start_ns) / 1e9:,.3f}",
        )
        for row in frames.board.iter_rows(named=True)
    ]
    head = ("invariant", "status", "what was seen", "first key", "violations", "first, s")
    caption = "The worst and first of each; kvtrace analyze lock_contract has every violation."
    return Table(head, tuple(rows), caption, names=4)
