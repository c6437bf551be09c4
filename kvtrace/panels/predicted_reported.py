"""Points: the router's forecast of cached tokens against the worker's report, a point a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import count, many, plain, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "Did the router's forecast of cached tokens come true?"
READING = (
    "A point a request. On the diagonal the worker reported what the router forecast; above it the worker "
    "had more than the router counted, below it less. A forecast is never a result."
)
MOST_POINTS = 3000
_NOTHING = (
    "No request has both a router's forecast and its worker's report of cached tokens. Dynamo's request "
    "trace and the answers' usage would fill this, or spans with kvtrace.op = request."
)
_POINT = "#0072b2"

_ROWS = """
WITH forecast AS (
    SELECT request_id, arg_min(predicted_tokens, (coalesce(attempt, 1), start_ns)) AS tokens FROM span
    WHERE op = 'route' AND predicted_tokens IS NOT NULL AND request_id IS NOT NULL GROUP BY request_id
)
SELECT r.request_id, coalesce(r.predicted_tokens, f.tokens) AS predicted,
    r.reported_cached_tokens AS reported, r.prompt_tokens
FROM request r LEFT JOIN forecast f USING (request_id)
ORDER BY r.start_ns, r.request_id
"""


@dataclass(frozen=True)
class PredictedReported:
    """Requests that have both, the drawn ones of them, and how many have only one."""

    points: pl.DataFrame
    requests: int
    more: int
    less: int
    only_predicted: int
    only_reported: int
    empty: str | None = None


def data(run: Run) -> PredictedReported:
    """Forecast and report of every request; of very many the first of each pair are drawn."""
    rows = pl.DataFrame(run.connection().sql(_ROWS).to_arrow_table())
    predicted, reported = pl.col("predicted"), pl.col("reported")
    both = rows.filter(predicted.is_not_null(), reported.is_not_null())
    points = both.group_by("predicted", "reported", maintain_order=True).agg(
        pl.col("request_id").first(), requests=pl.len()
    )
    points = points.sort("requests", descending=True, maintain_order=True).head(MOST_POINTS)
    return PredictedReported(
        points, both.height, both.filter(reported > predicted).height,
        both.filter(reported < predicted).height,
        rows.filter(predicted.is_not_null(), reported.is_null()).height,
        rows.filter(predicted.is_null(), reported.is_not_null()).height, None if both.height else _NOTHING,
    )  # fmt: skip


def draw(frames: PredictedReported) -> go.Figure:
    """Points and the diagonal."""
    if frames.empty:
        return sentence(frames.empty)
    rows = frames.points
    largest = max(rows["predicted"].to_list() + rows["reported"].to_list() + [1])
    room = [-0.04 * largest, 1.06 * largest]
    figure = blank(height=430)
    figure.update_layout(
        xaxis=axis("cached tokens forecast by the router", range=room),
        yaxis=axis("cached tokens reported by the worker", range=room),
        legend={"itemsizing": "constant"},
    )
    figure.add_scatter(
        x=[0, largest], y=[0, largest], mode="lines", name="as forecast", hoverinfo="skip",
        line={"dash": "dot", "width": 1.5, "color": "#8b93a1"},
    )  # fmt: skip
    figure.add_scatter(
        x=rows["predicted"].to_list(), y=rows["reported"].to_list(), mode="markers", name="requests",
        cliponaxis=False, marker={"color": _POINT, "size": 10, "opacity": 0.75},
        customdata=[[plain(row["request_id"]), plain(_others(row["requests"]))] for row in rows.to_dicts()],
        hovertemplate="<b>%{customdata[0]}</b>%{customdata[1]}<br>forecast %{x:,}, reported %{y:,} tokens"
        "<extra></extra>",
    )  # fmt: skip
    return figure


def _others(requests: int) -> str:
    return "" if requests == 1 else f" and {many(requests - 1, 'other')}"


def notes(frames: PredictedReported) -> tuple[str, ...]:
    """How many lie off the diagonal, and who has no point."""
    said: list[str] = []
    if frames.empty:
        return ()
    if frames.more:
        said.append(
            f"{many(frames.more, 'request')} of {frames.requests:,} had more cached tokens than forecast: a "
            "router weighs tiers below the GPU with less than one, and may not see them at all."
        )
    if frames.less:
        said.append(
            f"{many(frames.less, 'request')} of {frames.requests:,} had less than forecast: what the router "
            "counted was gone, or was not loaded."
        )
    if frames.only_predicted or frames.only_reported:
        said.append(
            f"Without a point: {many(frames.only_predicted, 'request')} with a forecast alone, "
            f"{frames.only_reported:,} with a report alone."
        )
    return tuple(said)


def table(frames: PredictedReported) -> Table | None:
    """The points furthest from the diagonal."""
    off = frames.points.with_columns(gap=pl.col("reported") - pl.col("predicted")).filter(pl.col("gap") != 0)
    rows = tuple(
        (
            visible(row["request_id"]),
            *(count(row[name]) for name in ("requests", "predicted", "reported", "gap")),
        )
        for row in off.sort(pl.col("gap").abs(), descending=True, maintain_order=True).head(10).to_dicts()
    )
    head = ("request (the first of its kind)", "requests", "forecast", "reported", "reported - forecast")
    return Table(head, rows, "The points furthest from the diagonal.") if rows else None
