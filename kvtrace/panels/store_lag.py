"""A survival curve: the share of finished requests whose state is not yet reusable, over the lag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import count, duration, many, share, visible

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "How long after a request is its state reusable?"
READING = (
    "The share of finished requests whose state nobody else can reuse yet, against the time since their "
    "finish. The lower and the further left, the sooner; what is left at the right was never stored."
)
MOST_POINTS = 2000
_NOTHING = (
    "No request of this run stored anything, or nobody recorded it. The cache's own spans would fill this "
    "(LMCache: lmcache server --enable-tracing --otlp-endpoint), events of keys beyond the GPU (Dynamo's "
    "event plane), or any span with kvtrace.op = store."
)
_LINE, _NEVER = "#cc79a7", "#d55e00"


@dataclass(frozen=True)
class StoreLag:
    """The curve (lag_ns, waiting), and the requests by what became of their stores.

    `stored` and `never` are in the curve. Not in it: `open`, whose end nobody saw, and `nothing`, which had
    nothing to store.
    """

    curve: pl.DataFrame
    reasons: pl.DataFrame
    stored: int
    never: int
    open: int
    nothing: int
    empty: str | None = None


def data(run: Run) -> StoreLag:
    """Lags of all requests as steps, and why some were never stored."""
    from kvtrace.analyses.store_lag import store_lag

    rows = store_lag(run)
    known = rows.filter(pl.col("lag_ns").is_not_null()).sort("lag_ns")
    missing = rows.filter(pl.col("lag_ns").is_null())
    never = missing.filter(pl.col("never_stored"))
    told = known.height + never.height
    curve = known.group_by("lag_ns", maintain_order=True).agg(ended=pl.len())
    curve = curve.select("lag_ns", waiting=told - pl.col("ended").cum_sum())
    reasons = (
        missing.filter(pl.col("never_stored").is_not_null())
        .group_by("never_stored", "skip_reason")
        .agg(requests=pl.len(), tokens=pl.col("skipped_tokens").sum(), said=pl.col("skipped_tokens").count())
        .sort("never_stored", "requests", "skip_reason", descending=[True, True, False], nulls_last=True)
    )
    nothing = missing.filter(~pl.col("never_stored")).height
    return StoreLag(
        _thinned(curve), reasons, known.height, never.height, missing["never_stored"].null_count(), nothing,
        None if told else _NOTHING,
    )  # fmt: skip


def _thinned(curve: pl.DataFrame) -> pl.DataFrame:
    """Of very many steps every so-manieth, and the last."""
    every = max(1, -(-curve.height // MOST_POINTS))
    return curve.filter((pl.int_range(pl.len()) % every == 0) | (pl.int_range(pl.len()) == pl.len() - 1))


def draw(frames: StoreLag) -> go.Figure:
    """The share still waiting, a step a lag."""
    if frames.empty:
        return sentence(frames.empty)
    told = frames.stored + frames.never
    lags = [ns / 1e6 for ns in frames.curve["lag_ns"].to_list()]
    shares = [100 * waiting / told for waiting in frames.curve["waiting"].to_list()]
    figure = blank(height=320)
    figure.update_layout(
        xaxis=axis("ms after the request's finish (negative: before it)"),
        yaxis=axis("% of finished requests not reusable", range=[-3, 103]),
    )
    if lags:
        begin, end = min(lags[0], 0.0), max(lags[-1], 0.0)
        room = 0.04 * max(1e-3, end - begin)
        figure.add_scatter(
            mode="lines",
            line={"shape": "hv", "color": _LINE, "width": 2},
            name="not reusable yet",
            x=[begin - room, *lags, end + room],
            y=[100.0, *shares, shares[-1]],
            hovertemplate="after %{x:.3~f} ms<br>%{y:.1f} % not reusable<extra></extra>",
        )
    if frames.never:
        figure.add_hline(
            y=100 * frames.never / told, line={"dash": "dash", "color": _NEVER, "width": 1.4},
            annotation={"text": f"never stored: {many(frames.never, 'request')}", "font": {"size": 12}},
        )  # fmt: skip
    return figure


def notes(frames: StoreLag) -> tuple[str, ...]:
    """The median, the plateau, and who is not in the curve."""
    said = []
    told = frames.stored + frames.never
    if frames.stored:
        half = frames.curve.filter(2 * pl.col("waiting") <= told)
        before = "" if half.is_empty() else _median(int(half["lag_ns"][0]))
        said.append(f"{many(frames.stored, 'request')} stored what they could{before}.")
    if frames.never:
        said.append(
            f"{many(frames.never, 'request')} ({share(frames.never, told)}) finished and stored nothing: no "
            "later request can reuse them from beyond the GPU."
        )
    if frames.open:
        said.append(
            f"Of {many(frames.open, 'request')} it cannot be told: still open, or records of stores are "
            "missing; they are not in the curve."
        )
    if frames.nothing:
        said.append(
            f"{many(frames.nothing, 'request')} had nothing to store: what it had was there already, or is "
            "shorter than a chunk."
        )
    return tuple(said)


def _median(lag_ns: int) -> str:
    where = "after" if lag_ns > 0 else "before"
    return f"; half of all were reusable {duration(abs(lag_ns))} {where} their finish"


def table(frames: StoreLag) -> Table | None:
    """Requests without a store, by reason."""
    rows = tuple(
        (
            "never stored" if row["never_stored"] else "nothing to store",
            visible(row["skip_reason"]),
            count(row["requests"]),
            count(row["tokens"] if row["said"] == row["requests"] else None),
        )
        for row in frames.reasons.iter_rows(named=True)
    )
    head = ("what became of it", "reason", "requests", "tokens not stored")
    return Table(head, rows, "Requests without a store of their own.", names=2) if rows else None
