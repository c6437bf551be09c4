"""Bars: the times of each group of runs, and what each step from one group to the next brought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.experiment.groups.words import change, level, limits, metric_words
from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import many, plain, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import polars as pl

    from kvtrace.run import Run

TITLE = "What does each step bring?"
READING = (
    "A bar a group of runs: the mean over its runs, and the 95% interval over them; of a group with one run "
    "that of its requests, for quantiles alone. First: what each step from one group to the next changed."
)
_NOTHING = "No request was recorded. Each run's group is what kvtrace run --group NAME said, or --plan fixes."
_LEFT = (
    "ttft_p50_ns", "ttft_p90_ns", "ttft_p99_ns", "ttft_mean_ns", "e2e_mean_ns", "exposed_transfer_mean_ns",
)  # fmt: skip
_RIGHT = ("itl_p50_ns", "itl_p90_ns", "itl_p99_ns")
_TOLD = ("ttft_mean_ns", "ttft_p99_ns", "e2e_mean_ns", "exposed_transfer_mean_ns", "recomputed_tokens")
_COLORS = ("#a9b0bb", "#56b4e9", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#8a63c4")
_MOST_LIMITS = 6


@dataclass(frozen=True)
class Groups:
    """The rows of the comparison, as they are."""

    rows: pl.DataFrame | None
    empty: str | None = None

    def cells(self) -> dict[tuple[str, str], dict[str, Any]]:
        """A row a group and metric."""
        found = [] if self.rows is None else self.rows.to_dicts()
        return {(row["group"], row["metric"]): row for row in found}


def data(*runs: Run) -> Groups:
    """All runs of a page, by group; see `kvtrace compare`.

    Raises:
        NotComparableError: the runs differ in what must be the same, or a warm group was not ready.
    """
    from kvtrace.experiment.groups import groups

    asked = [run for run in runs if run.connection().sql("SELECT 1 FROM request LIMIT 1").fetchall()]
    if not asked:
        return Groups(None, _NOTHING)
    return Groups(groups(runs if len(asked) == len(runs) else asked))


def draw(frames: Groups) -> go.Figure:
    """Horizontal bars with intervals: whole requests at the left, times between tokens at the right."""
    if frames.empty:
        return sentence(frames.empty)
    cells = frames.cells()
    names = list(dict.fromkeys(group for group, _ in cells))
    height = 26 * len(_LEFT) * max(2, len(names)) + 130
    figure = blank(height=height, barmode="group", bargap=0.25, bargroupgap=0.05)
    for side, (metrics, domain) in enumerate((((_LEFT), (0.0, 0.56)), ((_RIGHT), (0.74, 1.0))), start=1):
        suffix = "" if side == 1 else str(side)
        labels = [metric_words(metric) for metric in metrics]
        figure.update_layout(
            {
                f"xaxis{suffix}": axis("time (ms)", domain=domain, rangemode="tozero", anchor=f"y{suffix}"),
                f"yaxis{suffix}": axis(
                    autorange="reversed", showgrid=False, type="category", anchor=f"x{suffix}",
                    categoryorder="array", categoryarray=labels,
                ),
            }
        )  # fmt: skip
        for place, name in enumerate(names):
            _bars(figure, [cells[name, metric] for metric in metrics], place, suffix)
    return figure


def _bars(figure: go.Figure, rows: list[dict[str, Any]], place: int, suffix: str) -> None:
    """One group's bars; an end that is not known has no whisker."""
    values = [row["value"] for row in rows]
    name = plain(rows[0]["group"], 40)
    figure.add_bar(
        orientation="h",
        name=name,
        legendgroup=str(place),
        showlegend=not suffix,
        xaxis=f"x{suffix}",
        yaxis=f"y{suffix}",
        y=[metric_words(row["metric"]) for row in rows],
        x=[None if value is None else value / 1e6 for value in values],
        marker={"color": _COLORS[place % len(_COLORS)]},
        error_x={
            "type": "data", "symmetric": False, "thickness": 1.2, "width": 3,
            "array": [_reach(row["value"], row["ci_high"]) for row in rows],
            "arrayminus": [_reach(row["value"], _not_below_0(row["ci_low"])) for row in rows],
        },
        customdata=[[name, f"{metric_words(row['metric'])}: {level(row)}"] for row in rows],
        hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
    )  # fmt: skip


def _not_below_0(end: float | None) -> float | None:
    """No time is negative: of an interval that says so the part from 0 on is drawn."""
    return None if end is None else max(0.0, end)


def _reach(value: float | None, end: float | None) -> float:
    return 0.0 if value is None or end is None else abs(end - value) / 1e6


def notes(frames: Groups) -> tuple[str, ...]:
    """A sentence a step, and what limits the numbers."""
    cells = frames.cells()
    said = []
    for name, base in dict.fromkeys((row["group"], row["against"]) for row in cells.values()):
        if base is None:
            continue
        parts = [
            f"{metric_words(metric)} {change(cells[name, metric])}"
            for metric in _TOLD
            if cells.get((name, metric), {}).get("change") is not None
        ]
        if parts:
            said.append(f"{visible(base, 40)} → {visible(name, 40)}: {'; '.join(parts)}.")
    limited = [visible(line, 400) for line in limits(cells.values())]
    left = len(limited) - _MOST_LIMITS
    more = (f"{many(left, 'more limit')}: kvtrace compare names them.",) if left > 0 else ()
    return (*said, *limited[:_MOST_LIMITS], *more)


def table(frames: Groups) -> Table | None:
    """The groups side by side, then the steps."""
    cells = frames.cells()
    names, metrics = (list(dict.fromkeys(key[at] for key in cells)) for at in (0, 1))
    steps = {row["group"]: row["against"] for row in cells.values() if row["against"] is not None}
    head = (
        "", *(f"{visible(name, 40)} ({many(cells[name, metrics[0]]['runs'], 'run')})" for name in names),
        *(f"{visible(base, 40)} → {visible(name, 40)}" for name, base in steps.items()),
    )  # fmt: skip
    rows = tuple(
        (
            metric_words(metric),
            *(level(cells[name, metric]) for name in names),
            *(change(cells[name, metric]) for name in steps),
        )
        for metric in metrics
    )
    caption = (
        "95% intervals in brackets; an end that is not there is not known. Changes of means are over the "
        "same requests where the groups share their ids."
    )
    return Table(head, rows, caption) if rows else None
