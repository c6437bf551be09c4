"""Bars: how many requests got what the cache offered, and what the others got in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NOT_OBSERVED, count, duration, many, plain, share, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go
    import polars as pl

    from kvtrace.run import Run

TITLE = "Did requests get what the cache offered, or a right answer after recomputing?"
READING = (
    "One bar a verdict, the first that holds for a request. A request that was answered can still have lost "
    "what the cache had for it: red and orange bars are those."
)
_NOTHING = (
    "No engine in this run has an external tier: no lookup, no health of a cache and no identity of one was "
    "recorded, or no request was. kvtrace's own instruments inside an engine would fill this (kvtrace run), "
    "or any span with kvtrace.op = lookup."
)
_WHY_UNTOLD = (
    "what was recorded does not tell whether the GPU held what the cache found, or whether the cache was "
    "asked at all"
)
COLORS = {
    "hung": "#7a1f1f",
    "failed": "#a63603",
    "cancelled": "#8a63c4",
    "recompute_after_timeout": "#d55e00",
    "recompute_degraded": "#e07b39",
    "admission_fallback": "#e69f00",
    "recompute_after_failure": "#c2447e",
    "partial": "#cdb400",
    "recompute_after_preemption": "#9a6a1f",
    "noop": "#a3a9c9",
    "loaded": "#009e73",
    "declined": "#56b4e9",
    "shadowed": "#0072b2",
    "miss": "#7c8aa0",
}
"""Verdict -> colour, in the order in which verdicts are tried."""
_UNTOLD = "#bcc3d6"

_COUNTS = """
SELECT verdict, reason, count(*) AS requests, sum(waited_ns)::DOUBLE AS waited_ns,
    median(waited_ns) AS median_ns, sum(expected_tokens)::DOUBLE AS expected,
    sum(loaded_tokens)::DOUBLE AS loaded, sum(recomputed_tokens)::DOUBLE AS recomputed,
    count(expected_tokens) AS said_expected, count(loaded_tokens) AS said_loaded,
    count(recomputed_tokens) AS said_recomputed
FROM read_parquet($path) GROUP BY verdict, reason
"""


@dataclass(frozen=True)
class Fallbacks:
    """One row a (verdict, reason): how many requests, how long they waited, how many tokens."""

    counts: pl.DataFrame
    requests: int
    empty: str | None = None


def data(run: Run) -> Fallbacks:
    """Requests by verdict and reason."""
    import polars as pl

    from kvtrace.analyses.fallbacks import VERDICTS
    from kvtrace.analyses.fallbacks import table as cached

    counts = run.connection().sql(_COUNTS, params={"path": str(cached(run))}).pl()
    place = pl.col("verdict").replace_strict({name: at for at, name in enumerate(VERDICTS)}, default=99)
    counts = counts.sort(place, "requests", "reason", descending=[False, True, False], nulls_last=True)
    return Fallbacks(counts, int(counts["requests"].sum() or 0), None if counts.height else _NOTHING)


def _verdict(row: dict[str, Any]) -> str:
    return f"verdict {NOT_OBSERVED}" if row["verdict"] is None else row["verdict"].replace("_", " ")


def draw(frames: Fallbacks) -> go.Figure:
    """One bar a verdict, cut by reason."""
    if frames.empty:
        return sentence(frames.empty)
    rows = list(frames.counts.iter_rows(named=True))
    labels = list(dict.fromkeys(_verdict(row) for row in rows))
    figure = blank(height=34 * len(labels) + 110, barmode="stack", bargap=0.36)
    figure.update_layout(
        showlegend=False,
        xaxis=axis("requests", rangemode="tozero"),
        yaxis=axis(
            autorange="reversed", showgrid=False, type="category", categoryorder="array", categoryarray=labels
        ),
    )
    for row in rows:
        reason = plain(row["reason"].replace("_", " ")) if row["reason"] else ""
        figure.add_bar(
            orientation="h",
            y=[_verdict(row)],
            x=[row["requests"]],
            name=reason or _verdict(row),
            text=[reason],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            marker={
                "color": COLORS.get(row["verdict"] or "", _UNTOLD), "line": {"width": 1, "color": "#ffffff"},
            },
            customdata=[
                [
                    plain(f"{_verdict(row)}{f': {reason}' if reason else ''}"),
                    plain(f"{many(row['requests'], 'request')}, {share(row['requests'], frames.requests)}"),
                    plain(f"waited {duration(row['median_ns'])} for the cache (median)"),
                ]
            ],
            hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
        )  # fmt: skip
    return figure


def notes(frames: Fallbacks) -> tuple[str, ...]:
    """How many have no verdict, and why."""
    untold = int(frames.counts.filter(frames.counts["verdict"].is_null())["requests"].sum() or 0)
    if not untold:
        return ()
    return (f"{many(untold, 'request')} without a verdict: {_WHY_UNTOLD}.",)


def table(frames: Fallbacks) -> Table | None:
    """The numbers of the bars."""
    rows = [
        (
            visible(_verdict(row)),
            visible(row["reason"].replace("_", " ")) if row["reason"] else "\N{EN DASH}",
            count(row["requests"]),
            share(row["requests"], frames.requests),
            duration(row["median_ns"]),
            _tokens(row, "expected"),
            _tokens(row, "loaded"),
            _tokens(row, "recomputed"),
        )
        for row in frames.counts.iter_rows(named=True)
    ]
    head = (
        "verdict",
        "reason",
        "requests",
        "share",
        "waited, median",
        "expected tokens",
        "loaded",
        "recomputed",
    )
    caption = "Waited: lookups, loads from submit to usable, and locks. “Without”: did not say it."
    return Table(head, tuple(rows), caption, names=2)


def _tokens(row: dict[str, Any], name: str) -> str:
    """A sum, and how many requests are not in it."""
    missing = row["requests"] - row[f"said_{name}"]
    if missing == row["requests"]:
        return NOT_OBSERVED
    return count(row[name]) + (f" ({missing:,} without)" if missing else "")
