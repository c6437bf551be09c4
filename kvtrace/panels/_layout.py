"""What every figure shares: no background of its own, quiet lines, units on its axes.

Colours of text and lines are those of the light page; the page's runner changes them with the reader's
colour scheme. Nothing here knows what is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import plotly.graph_objects as go

FONT = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", sans-serif'
INK, GRID = "#39424e", "#e3e7ed"


def blank(*, height: int, left: int = 12, **layout: Any) -> go.Figure:
    """An empty figure in the page's manner; margins grow with the labels."""
    import plotly.graph_objects as go

    figure = go.Figure()
    figure.update_layout(
        template=go.layout.Template(),
        height=height,
        margin={"l": left, "r": 12, "t": 8, "b": 44},
        font={"family": FONT, "size": 13, "color": INK},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"align": "left", "font": {"family": FONT, "size": 12.5}},
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        **layout,
    )
    return figure


def axis(title: str | None = None, **more: Any) -> dict[str, Any]:
    """An axis with its unit in the title."""
    line: dict[str, Any] = {
        "gridcolor": GRID,
        "zerolinecolor": GRID,
        "linecolor": GRID,
        "tickcolor": GRID,
        "automargin": True,
        "zeroline": False,
        "showgrid": True,
    }
    if title is not None:
        line["title"] = {"text": title, "standoff": 10, "font": {"size": 12}}
    return line | more


def sentence(text: str) -> go.Figure:
    """A figure that says why there is nothing to see; the page shows the sentence alone."""
    from kvtrace.panels._text import plain

    figure = blank(height=120)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    figure.add_annotation(text=plain(text, 400), showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper")
    return figure
