"""A table to sort: every quantity of the slowest requests, and dots for their times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from kvtrace.errors import UsageError
from kvtrace.panels._card import Table
from kvtrace.panels._layout import axis, blank, sentence
from kvtrace.panels._text import NONE, NOT_OBSERVED, count, duration, many, plain, size, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    import plotly.graph_objects as go

    from kvtrace.run import Run

TITLE = "What did each request get, wait for and pay?"
READING = (
    "Dots are times of the requests that waited longest for their first token, on a logarithmic scale; a "
    "time of 0 or one that was not observed has no dot. The table has every quantity: a click on the head of "
    "a column sorts it."
)
MOST_DRAWN = 15
_NOTHING = (
    "No request is in this run; a front end's request spans would fill this (vLLM: --otlp-traces-endpoint), "
    "or kvtrace's own instruments (kvtrace run)."
)
TIMES: dict[str, tuple[str, str]] = {
    "ttft_ns": ("to first token", "#39424e"),
    "lookup_wait_ns": ("lookups", "#009e73"),
    "lock_wait_ns": ("locks", "#cdb400"),
    "h2d_ns": ("host to GPU", "#0072b2"),
    "d2h_ns": ("GPU to host", "#cc79a7"),
    "network_ns": ("network", "#56b4e9"),
    "block_hold_ns": ("GPU blocks held", "#9a6a1f"),
    "itl_p99_ns": ("between tokens, p99", "#8a63c4"),
}
"""Column -> name and colour of its dots."""

_COLUMNS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "verdict": ("verdict", lambda value: NONE if value is None else value.replace("_", " ")),
    "status": ("status", lambda value: NOT_OBSERVED if value is None else value),
    "ttft_ns": ("first token", duration),
    "itl_p50_ns": ("between tokens, median", duration),
    "itl_p99_ns": ("99th percentile", duration),
    "gpu_hit_tokens": ("GPU hit, tokens", count),
    "external_hit_tokens": ("external hit, tokens", count),
    "recomputed_tokens": ("recomputed, tokens", count),
    "loaded_bytes": ("loaded", size),
    "lookup_wait_ns": ("lookup wait", duration),
    "lock_wait_ns": ("lock wait", duration),
    "h2d_ns": ("host to GPU", duration),
    "d2h_ns": ("GPU to host", duration),
    "network_ns": ("network", duration),
    "stored_after_ns": ("stored after", duration),
    "block_hold_ns": ("blocks held", duration),
}
"""Column -> its head and how a value is written."""

_WORST = """
WITH known AS (
    SELECT l.*, TRY(l.store_completed_ns - r.start_ns) AS stored_after_ns,
        row_number() OVER (ORDER BY l.ttft_ns DESC NULLS LAST, l.request_id) AS place,
        row_number() OVER (ORDER BY l.ttft_ns IS NOT NULL, r.start_ns, l.request_id) AS unstarted,
        count(*) OVER () AS requests, count(*) FILTER (l.ttft_ns IS NULL) OVER () AS without
    FROM read_parquet($path) l LEFT JOIN request r USING (request_id)
)
SELECT * EXCLUDE (place, unstarted) FROM known
WHERE (ttft_ns IS NOT NULL AND place <= $top) OR (ttft_ns IS NULL AND unstarted <= $others)
ORDER BY ttft_ns IS NOT NULL, ttft_ns DESC, request_id
"""


@dataclass(frozen=True)
class Ledger:
    """The rows that are shown: those without a first token first, then the slowest to theirs."""

    rows: pl.DataFrame
    requests: int
    without: int
    empty: str | None = None


def data(run: Run, *, top: int = 100) -> Ledger:
    """The slowest requests to their first token, and a fifth more of those that never had one.

    Raises:
        UsageError: `top` is not between 1 and 1,000.
    """
    from kvtrace.analyses.ledger import table as cached

    if not 1 <= top <= 1000:
        raise UsageError(f"ledger: top must be between 1 and 1000, not {top}.")
    asked = {"path": str(cached(run)), "top": top, "others": -(-top // 5)}
    rows = pl.DataFrame(run.connection().sql(_WORST, params=asked).to_arrow_table())
    if not rows.height:
        return Ledger(rows, 0, 0, _NOTHING)
    return Ledger(rows, rows["requests"][0], rows["without"][0])


def draw(frames: Ledger) -> go.Figure:
    """A row a request, a dot a time."""
    if frames.empty:
        return sentence(frames.empty)
    rows = list(frames.rows.head(MOST_DRAWN).iter_rows(named=True))
    labels = [plain(row["request_id"], 40) for row in rows]
    figure = blank(height=26 * len(rows) + 130)
    figure.update_layout(
        xaxis=axis("time, ms", type="log"),
        yaxis=axis(autorange="reversed", type="category", tickvals=list(range(len(rows))), ticktext=labels),
    )
    for column, (words, tint) in TIMES.items():
        seen = [(at, row[column]) for at, row in enumerate(rows) if row[column]]
        if not seen:
            continue
        figure.add_scatter(
            mode="markers",
            name=words,
            x=[ns / 1e6 for _, ns in seen],
            y=[at for at, _ in seen],
            marker={"color": tint, "size": 11 if column == "ttft_ns" else 8},
            customdata=[[labels[at], plain(f"{words} {duration(ns)}")] for at, ns in seen],
            hovertemplate="<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
        )
    return figure


def notes(frames: Ledger) -> tuple[str, ...]:
    """Which requests are shown, where not all are."""
    shown = frames.rows.height
    if shown == frames.requests:
        return ()
    started = frames.rows["ttft_ns"].count()
    others = f", and {shown - started:,} of {frames.without:,} that have none" if frames.without else ""
    which = f"the {started:,} slowest to their first token{others}"
    return (f"{many(shown, 'request')} of {frames.requests:,} are shown: {which}.",)


def table(frames: Ledger) -> Table | None:
    """Every quantity; the keys are what a column sorts by."""
    rows, keys = [], []
    for row in frames.rows.iter_rows(named=True):
        rows.append(
            (
                visible(row["request_id"]),
                *(visible(write(row[name])) for name, (_, write) in _COLUMNS.items()),
            )
        )
        keys.append((None, *(_key(row[name]) for name in _COLUMNS)))
    head = ("request", *(name for name, _ in _COLUMNS.values()))
    caption = (
        "Stored after: from the arrival to the end of the last store. A dash as verdict: no external tier, "
        "or what was recorded does not tell. Columns sort by a click; what was not observed stays at the end."
    )
    return Table(head, tuple(rows), caption, names=3, keys=tuple(keys))


def _key(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
